from __future__ import annotations

import csv
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.plots.spectrum import draw, spectra_csv
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import Curve
from tests.plots.conftest import VGG

Overlaps = Callable[[Figure], list[tuple[str, str]]]


def curve(
    name: str, values: Sequence[float | None], split: str = "test", run: str = "netA", notes: tuple[str, ...] = ()
) -> Curve:
    ranked = RankedLayer(LayerKey(name, "none"), "none", "cosine")
    places = tuple(range(1, len(values) + 1))
    return Curve(run, 3, split, ranked, "share of the variance", "dimension", places, tuple(values), n=9, notes=notes)


def falling(steepness: float, dims: int = 60) -> list[float]:
    shares = np.arange(1, dims + 1) ** -float(steepness)
    return list(shares / shares.sum())


def lines(axes: Axes) -> dict[object, tuple[list[float], object]]:
    return {line.get_label(): (list(np.asarray(line.get_ydata())), line.get_linestyle()) for line in axes.lines}


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_line_for_each_layer_and_split_of_its_own_style() -> None:
    (axes,) = draw([curve("fc6", [0.7, 0.3], "train"), curve("fc6", [0.6, 0.4])]).axes
    drawn = lines(axes)
    assert drawn["_fc6, test"] == ([0.6, 0.4], "-")
    assert drawn["_fc6, train"][0] == [0.7, 0.3]
    assert drawn["_fc6, train"][1] != "-"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_labels_have_the_effective_ranks() -> None:
    # equal singular values are as many ranks; 0.8 and 0.2 have those of 2 to 1: e^(ln 3 - 2/3 ln 2) = 1.89
    layers = [
        curve("a", [0.25] * 4),
        curve("b", [0.8, 0.2]),
        curve("b", [0.5, 0.5], "train"),
        curve("c", [1.0], "train"),
    ]
    assert texts(draw(layers).axes[0]) == ["a 4.0", "b 1.9 (train 2.0)", "c 1.0 (train)"]


def test_a_panel_for_each_run_with_the_same_axes() -> None:
    first, second = draw([curve("fc6", [0.6, 0.4]), curve("fc6", falling(1), run="netB")]).axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["netA, epoch 3", "netB, epoch 3"]
    assert (first.get_xlim(), first.get_ylim()) == (second.get_xlim(), second.get_ylim())


def test_directions_that_hardly_vary_do_not_stretch_the_axes() -> None:
    (axes,) = draw([curve("fc6", [0.9, 0.1, *[1e-14] * 50])]).axes
    assert 1e-7 < axes.get_ylim()[0] < 1e-6
    assert 2 < axes.get_xlim()[1] < 3


def test_what_has_no_value_is_told_and_not_drawn() -> None:
    figure = draw([curve("fc5", [0.6, 0.4], notes=("a",)), curve("fc6", [None], notes=("a", "NaN"))])
    assert texts(figure.axes[0]) == ["fc5 2.0"]
    assert figure.texts[-1].get_text().splitlines()[-2:] == ["a", "netA, fc6, test: NaN"]
    draw([curve("fc6", [None])]).draw_without_rendering()


def test_the_caption_has_the_splits_shown_without_chance() -> None:
    facts = {name: SplitFacts(100, 10, chance=0.1) for name in ("train", "validation", "test")}
    text = draw([curve("fc6", [1.0])], data={"netA": DataFacts("glyphs", facts)}).texts[-1].get_text()
    assert "test: 100 images of 10 classes" in text
    assert not {"train:", "validation", "chance"} & set(text.split())


@pytest.mark.parametrize("layers", [1, 5, 9])
def test_no_text_covers_another(layers: int, overlaps: Overlaps, covers: Overlaps) -> None:
    curves = [
        curve(name, falling(2 - i / 10), split) for i, name in enumerate(VGG[:layers]) for split in ("train", "test")
    ]
    figure = draw(curves)
    assert overlaps(figure) == []
    if layers < 9:  # of nine layers with long names one has no place beside all lines
        assert covers(figure) == []


def test_long_names_stay_in_their_panel(overlaps: Overlaps) -> None:
    names = [f"features.denseblock{i}.denselayer16.norm2" for i in range(1, 5)]
    figure = draw([curve(name, falling(2 - i / 3)) for i, name in enumerate(names)])
    assert overlaps(figure) == []
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(box.x0 >= axes.bbox.x0 and box.x1 <= axes.bbox.x1 + 1 for box in boxes)


def test_a_dollar_in_a_name_is_itself() -> None:
    draw([curve("$x_$", [0.6, 0.4], run="$y_$", notes=("$z_$",))]).draw_without_rendering()


def test_the_table_has_every_share() -> None:
    rows = list(csv.DictReader(spectra_csv([curve("fc6", [0.5, 0.5], notes=("a", "b"))]).splitlines()))
    assert [(row["dimension"], row["share"]) for row in rows] == [("1", "0.5"), ("2", "0.5")]
    assert float(rows[0]["effective-rank"]) == pytest.approx(2)
    assert (rows[0]["layer"], rows[0]["pool"], rows[0]["n"], rows[0]["note"]) == ("fc6", "none", "9", "a; b")


def test_a_name_is_no_formula_in_the_table() -> None:
    (row,) = csv.DictReader(spectra_csv([curve("=1+1", [1.0])]).splitlines())
    assert row["layer"] == "'=1+1"
