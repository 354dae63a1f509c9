from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from layerprobe.plots.gallery_size import draw, table
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import Curve
from tests.scores import TRAININGS

Overlaps = Callable[[Figure], list[tuple[str, str]]]

PLACES = (20.0, 100.0, 1000.0)
OVER = "Bands: 95 % interval over classes, against this gallery"


def curve(layer: str, *values: float | None, run: str = "netA", notes: tuple[str, ...] = ()) -> Curve:
    """With an interval of 2 % to both sides of every value."""
    ranked = RankedLayer(LayerKey(layer, "none"), "none", "cosine")
    low, high = (tuple(None if v is None else v + d for v in values) for d in (-0.02, 0.02))
    return Curve(run, 16, "test", ranked, "R@1", "items searched", PLACES, values, low, high, 1360, notes)


POOL, FC = curve("pool5.3", 0.99, 0.95, 0.852), curve("fc6", 0.98, 0.9, 0.801)


def shown(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_lines_and_bands_have_the_values_in_percent() -> None:
    (axes,) = draw([POOL, FC]).axes
    assert [line.get_label() for line in axes.lines] == ["pool5.3", "fc6"]
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([(20, 99), (100, 95), (1000, 85.2)]))
    corners = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert sorted(set(corners[corners[:, 0] == 1000, 1].round(6))) == [83.2, 87.2]
    assert axes.get_xscale() == "log"


def test_each_line_is_labelled_with_its_value_in_the_whole_gallery() -> None:
    assert shown(draw([POOL, FC])) == ["pool5.3 85.2 %", "fc6 80.1 %"]


@pytest.mark.parametrize("curves", [[POOL, FC], [curve(f"pool{i}", 1, 0.95, 0.9) for i in range(14)]])
def test_no_label_overlaps_another(curves: list[Curve], overlaps: Overlaps, covers: Overlaps) -> None:
    figure = draw([*curves, *(replace(one, run="a-long-name-of-a-second-run") for one in curves)])
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_a_figure_of_one_run_is_as_narrow_as_a_column() -> None:
    assert draw([POOL, FC]).get_size_inches()[0] <= 4.6


def test_a_panel_for_each_run_says_what_was_measured_and_all_have_one_scale() -> None:
    first, second = draw([POOL, curve("fc6", 0.5, 0.4, 0.3, run="netB")]).axes
    assert first.get_title("left").splitlines() == ["netA", "test, epoch 16, cosine"]
    assert (first.get_xlim(), first.get_ylim()) == (second.get_xlim(), second.get_ylim())


def test_the_caption_has_the_data_of_the_split_and_how_it_was_thinned() -> None:
    facts = DataFacts("omniglot", {"train": SplitFacts(9), "test": SplitFacts(1360, 68)})
    lines = draw([POOL], data={"netA": facts}).texts[-1].get_text()
    assert "test: 1,360 queries of 68 classes\nEach query searches all its positives" in lines
    assert OVER in lines
    assert "train" not in lines


def test_without_intervals_there_is_neither_band_nor_a_word_of_one() -> None:
    figure = draw([replace(POOL, low=(), high=())])
    assert len(figure.axes[0].collections) == 1  # the lines from labels to points
    assert OVER not in figure.texts[-1].get_text()


def test_intervals_over_classes_and_ranges_of_trainings_are_not_drawn_together() -> None:
    seeds = replace(POOL, run="netA-s* (3 seeds)", units=TRAININGS)
    figure = draw([POOL, seeds])
    assert [len(axes.collections) for axes in figure.axes] == [1, 1]
    assert "are not shown together" in figure.texts[-1].get_text()


def test_an_invalid_layer_has_no_label_and_its_reason_in_the_notes() -> None:
    figure = draw([POOL, curve("fc6", None, None, None, notes=("NaN (3 rows)",))])
    assert shown(figure) == ["pool5.3 85.2 %"]
    assert "not valid: fc6: NaN (3 rows)" in figure.texts[-1].get_text().splitlines()


def test_what_all_runs_say_is_said_once() -> None:
    curves = [replace(POOL, run=run, notes=("partial", run)) for run in ("a", "b")]
    assert draw(curves).texts[-1].get_text().splitlines()[-3:] == ["partial", "a: a", "b: b"]


def test_the_table_has_the_numbers_drawn() -> None:
    found = list(csv.DictReader(table([POOL, curve("fc6", None, 0.9, 0.8, notes=("why", "not"))]).splitlines()))
    assert [(row["layer"], row["items"], row["R@1"]) for row in found[:4]] == [
        ("pool5.3", "20", "0.99"), ("pool5.3", "100", "0.95"), ("pool5.3", "1000", "0.852"), ("fc6", "20", ""),
    ]  # fmt: skip
    assert (found[2]["low"], found[2]["high"], found[2]["n"]) == ("0.832", "0.872", "1360")
    assert found[5]["note"] == "why; not"


def test_a_single_number_of_items_is_drawn() -> None:
    figure = draw([replace(POOL, places=(7.0,), values=(0.5,), low=(0.4,), high=(0.6,))])
    figure.draw_without_rendering()
    assert shown(figure) == ["pool5.3 50.0 %"]


def test_a_name_is_no_formula_in_the_table() -> None:
    (row, *_) = csv.DictReader(table([curve("=1+1", 0.99, 0.95, 0.852)]).splitlines())
    assert row["layer"] == "'=1+1"
