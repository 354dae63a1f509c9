from __future__ import annotations

import csv
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from layerprobe.plots.histograms import draw, histograms_csv
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import Histogram

Overlaps = Callable[[Figure], list[tuple[str, str]]]
SAME, DIFFERENT = "same class", "different class"


def layer(name: str, run: str = "netA", splits: Sequence[str] = ("train", "test"), **fields: object) -> list[Histogram]:
    """Histograms of a layer: of ten pairs of the same class, and of 200 of different classes."""
    counts = {SAME: (0, 2, 8), DIFFERENT: (50, 100, 50)}
    shared = {"median": 0.5, "above": 0.0125, "notes": ()} | fields
    return [
        Histogram(run, 3, split, RankedLayer(LayerKey(name, "none"), "none", "cosine"), pairs, (-0.2, 0.2, 0.4, 1.0),
                  counts[pairs], 9, **shared)  # type: ignore[arg-type] # given by their names
        for split in splits
        for pairs in (SAME, DIFFERENT)
    ]  # fmt: skip


def areas(axes: Axes) -> dict[object, StepPatch]:
    return {patch.get_label(): patch for patch in axes.patches if isinstance(patch, StepPatch)}


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_panel_for_each_layer_and_split_with_the_area_1() -> None:
    figure = draw([*layer("pool5"), *layer("fc6")])
    titles = [axes.get_title(loc="left").strip() for axes in figure.axes]
    assert titles == ["pool5, train", "pool5, test", "fc6, train", "fc6, test"]
    heights, edges, _ = areas(figure.axes[0])[DIFFERENT].get_data()
    # a quarter, half and a quarter of the pairs, over 0.4, 0.2 and 0.6
    assert heights == pytest.approx([0.25 / 0.4, 0.5 / 0.2, 0.25 / 0.6])
    assert edges == pytest.approx([-0.2, 0.2, 0.4, 1.0])


def test_the_two_kinds_differ_by_more_than_colour() -> None:
    found = areas(draw(layer("fc6")).axes[0])
    assert (found[SAME].get_fill(), found[DIFFERENT].get_fill()) == (True, False)
    assert (found[SAME].get_linewidth(), found[DIFFERENT].get_linewidth() > 1) == (0, True)


def test_the_median_is_a_line_and_what_lies_beyond_a_number() -> None:
    axes = draw(layer("fc6")).axes[0]
    (line,) = axes.lines
    assert np.array_equal(line.get_xdata(), [0.5, 0.5])
    assert texts(axes) == ["1.2 % beyond the line"]


def test_rows_have_an_axis_each_that_shows_nearly_all_pairs() -> None:
    wide, narrow = layer("pool5"), layer("fc6")
    narrow = [Histogram(**(vars(each) | {"counts": (0, 1, 999)})) for each in narrow]
    figure = draw([*wide, *narrow])
    assert [axes.get_xlim() for axes in figure.axes] == [(-0.2, 1.0)] * 2 + [(0.4, 1.0)] * 2


def test_runs_stand_below_one_another_and_what_is_absent_leaves_no_panel() -> None:
    figure = draw([*layer("pool5"), *layer("fc6"), *layer("fc6", run="netB", splits=["test"])])
    shown = [title for axes in figure.axes if (title := " ".join(axes.get_title(loc="left").split()))]
    assert shown == ["netA pool5, train", "netA pool5, test", "netA fc6, train", "netA fc6, test", "netB fc6, test"]
    assert len({round(axes.get_position().x0, 3) for axes in figure.axes}) == 2
    blank = figure.axes[4]
    assert not any(spine.get_visible() for spine in blank.spines.values())
    assert (len(blank.get_xticks()), len(blank.patches), blank.get_xlabel()) == (0, 0, "cosine of two images")
    assert blank.get_legend() is not None


def test_what_has_no_number_says_why() -> None:
    histograms = [
        *layer("pool5", notes=("partial",)),
        *layer("fc6", median=None, above=None, notes=("partial", "NaN")),
    ]
    figure = draw([Histogram(**(vars(each) | {"counts": (0, 0, 0)})) for each in histograms])
    assert texts(figure.axes[2]) == ["no number"]
    assert "partial" in (lines := figure.texts[-1].get_text().splitlines())
    assert lines[-2:] == ["netA, fc6, train: NaN", "netA, fc6, test: NaN"]


def test_the_caption_names_data_epoch_and_the_splits_shown() -> None:
    facts = {name: SplitFacts(100, 10, chance=0.1) for name in ("train", "validation", "test")}
    text = draw(layer("fc6"), data={"netA": DataFacts("glyphs", facts)}).texts[-1].get_text()
    assert "netA, epoch 3." in text
    assert "test: 100 images of 10 classes" in text
    assert "validation" not in text


@pytest.mark.parametrize("runs", [["netA"], ["netA-softmax-v-s0", "another-run-with-a-long-name"]])
def test_no_text_covers_another(runs: list[str], overlaps: Overlaps, covers: Overlaps) -> None:
    names = ("pool1.1", "features.denseblock4.denselayer16.norm2", "fc6")
    figure = draw([each for run in runs for name in names for each in layer(name, run)])
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_long_numbers_of_two_panels_do_not_meet(overlaps: Overlaps) -> None:
    edges = (0.99875, 0.999, 0.9995, 0.99975)  # a tick near both ends
    assert overlaps(draw([Histogram(**(vars(each) | {"edges": edges})) for each in layer("blocks.0")])) == []


def test_a_dollar_in_a_name_is_itself() -> None:
    draw(layer("$x_$", run="$y_$", notes=("$z_$",))).draw_without_rendering()


def test_the_table_has_every_bin() -> None:
    rows = list(csv.DictReader(histograms_csv(layer("fc6", splits=["test"], notes=("a", "b"))).splitlines()))
    assert [(row["pairs"], row["low"], row["high"], row["count"]) for row in rows[2:4]] == [
        (SAME, "0.4", "1.0", "8"),
        (DIFFERENT, "-0.2", "0.2", "50"),
    ]
    assert (rows[0]["layer"], rows[0]["pool"], rows[0]["median"], rows[0]["above"]) == ("fc6", "none", "0.5", "0.0125")
    assert rows[0]["note"] == "a; b"
    assert np.sum([int(row["count"]) for row in rows]) == 210


def test_a_name_is_no_formula_in_the_table() -> None:
    (row, *_) = csv.DictReader(histograms_csv(layer("=1+1", splits=["test"])).splitlines())
    assert row["layer"] == "'=1+1"
