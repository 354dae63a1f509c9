from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from layerprobe.plots.curves import curves_csv, draw
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import Score
from tests.plots.conftest import VGG, sure, with_chance
from tests.scores import CLUSTERS, TRAININGS, with_layer

MakeScores = Callable[..., list[Score]]
Overlaps = Callable[[Figure], list[tuple[str, str]]]
DEEP = ["pool5.1", "pool5.2", "pool5.3", "fc6"]


def line(axes: Axes, label: str) -> Line2D:
    (found,) = (line for line in axes.lines if line.get_label() == label)
    return found


def xy(drawn: Line2D) -> list[list[float]]:
    """The points of a line."""
    return [[float(x), float(y)] for x, y in np.asarray(drawn.get_xydata(), float)]


def x(drawn: Line2D) -> list[float]:
    return [point[0] for point in xy(drawn)]


def y(drawn: Line2D) -> list[float]:
    return [point[1] for point in xy(drawn)]


def notes(figure: Figure) -> str:
    """The lines under the figure as one."""
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def of_layers(scores: list[Score], names: list[str]) -> list[RankedLayer]:
    return [score.ranked for score in scores if score.ranked.layer.layer in names]


def test_a_curve_is_a_split_in_percent_over_epochs(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP, [0, 2, 5])
    (axes,) = draw(scores).axes
    for layer in DEEP:
        for split in ("train", "test"):
            own = [s for s in scores if (s.ranked.layer.layer, s.split) == (layer, split)]
            curve = line(axes, f"{layer} {split}")
            assert x(curve) == [0, 2, 5]
            assert y(curve) == pytest.approx([100 * (s.value or 0) for s in own], rel=1e-12)


def test_test_is_solid_and_train_dashed_and_hollow(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(DEEP)).axes
    solid, dashed = line(axes, "fc6 test"), line(axes, "fc6 train")
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert dashed.get_markerfacecolor() == "white"
    assert (solid.get_color(), solid.get_marker()) == (dashed.get_color(), dashed.get_marker())


def test_curves_are_named_with_their_last_value(make_scores: MakeScores) -> None:
    scores = make_scores(["fc6"], [0, 1])
    (axes,) = draw(scores).axes
    last = {s.split: f"fc6 {s.split} {100 * (s.value or 0):.1f}" for s in scores if s.epoch == 1}
    assert [text.get_text() for text in axes.texts] == [last["test"], last["train"]]


def test_more_than_six_layers_asked_for_have_a_panel_for_each_split(make_scores: MakeScores) -> None:
    scores = make_scores()
    figure = draw(scores, layers=of_layers(scores, VGG))
    assert [axes.get_title("left") for axes in figure.axes] == ["netA: test R@1, cosine", "netA: train R@1, cosine"]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert [str(curve.get_label()) for curve in figure.axes[0].lines] == [f"{layer} test" for layer in VGG]


def test_of_many_layers_a_few_are_drawn_and_it_is_said(make_scores: MakeScores) -> None:
    scores = make_scores(splits=("train", "validation", "test"))
    best = [
        replace(s, value=0.99) if (s.ranked.layer.layer, s.split, s.epoch) == ("pool2.1", "validation", 5) else s
        for s in scores
    ]
    figure = draw(best)
    # first, best on validation, middle, the one before the embedding, and that
    chosen = ["pool1.1", "pool2.1", "pool3.3", "pool5.3", "fc6"]
    assert [str(curve.get_label()) for curve in figure.axes[0].lines if str(curve.get_label()).endswith("test")] == [
        f"{layer} test" for layer in chosen
    ]
    assert "5 of 14 layers; --layers shows others." in notes(figure)
    rows = list(csv.DictReader(curves_csv(best).splitlines()))
    assert list(dict.fromkeys(row["layer"] for row in rows)) == chosen
    assert "validation R@1" not in rows[0]


def test_few_layers_share_a_panel(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(DEEP)).axes
    assert axes.get_title("left") == "netA: R@1, cosine"


def test_runs_of_at_most_six_layers_in_all_share_a_panel_in_their_own_colours(make_scores: MakeScores) -> None:
    scores = [score for run in ("netA", "netE") for score in make_scores(["pool5", "fc6"], run=run)]
    (axes,) = draw(scores).axes
    colour = {str(curve.get_label()): curve.get_color() for curve in axes.lines}
    assert colour["netA fc6 test"] == colour["netA pool5 train"] != colour["netE fc6 test"]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["test", "train", "netA", "netE"]
    assert line(axes, "netA fc6 test").get_marker() == line(axes, "netE fc6 test").get_marker() != "None"


def test_runs_of_more_layers_have_a_panel_each_with_the_same_axes(make_scores: MakeScores) -> None:
    scores = [score for run in ("netA", "netE") for score in make_scores(DEEP, run=run)]
    first, second = draw([replace(s, value=(s.value or 0) / 2) if s.run == "netE" else s for s in scores]).axes
    assert (first.get_title("left"), second.get_title("left")) == ("netA: R@1, cosine", "netE: R@1, cosine")
    assert (first.get_xlim(), first.get_ylim()) == (second.get_xlim(), second.get_ylim())


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("layers", [1, 6, 14])
def test_no_text_covers_another(
    make_scores: MakeScores, overlaps: Overlaps, covers: Overlaps, layers: int, near: bool
) -> None:
    scores = make_scores([f"layer{i // 4}.{i % 4}" for i in range(layers)], near=near)
    asked = [score.ranked for score in scores]
    figure = draw(scores, data=with_chance(train=0.02, test=0.03), layers=asked)
    assert (overlaps(figure), covers(figure)) == ([], [])


@pytest.mark.parametrize("level", [0.02, 0.11, 0.3])
@pytest.mark.parametrize("layers", [1, 6, 14])
def test_no_label_lies_on_a_line(make_scores: MakeScores, covers: Overlaps, layers: int, level: float) -> None:
    scores = make_scores([f"layer{i // 4}.{i % 4}" for i in range(layers)])
    asked = [score.ranked for score in scores]
    assert covers(draw(scores, data=with_chance(train=level, test=level), layers=asked)) == []


@pytest.mark.parametrize("layers", [VGG, ["pool5.3", "fc6"]])
def test_no_text_covers_another_with_three_runs(
    make_scores: MakeScores, overlaps: Overlaps, covers: Overlaps, layers: list[str]
) -> None:
    scores = [score for run in ("netA", "netA-softmax", "netE") for score in make_scores(layers, run=run)]
    figure = draw(scores, data=with_chance(train=0.02, test=0.03))
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_names_stay_beside_their_panel(make_scores: MakeScores) -> None:
    scores = make_scores([f"layer{i}" for i in range(40)], near=True)
    figure = draw(scores, layers=[score.ranked for score in scores])
    for axes in figure.axes:
        assert len(axes.texts) == 40
        assert all(-1e-9 <= text.get_position()[1] <= 1 + 1e-9 for text in axes.texts)


def test_chance_lines_stand_at_the_levels_given(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(["pool1.1", "fc6"]), data=with_chance(train=0.02, test=0.03)).axes
    assert y(line(axes, "_chance train")) == [2, 2]
    assert y(line(axes, "_chance test")) == [3, 3]
    assert "chance: test 3.0 %, train 2.0 %" in [text.get_text() for text in axes.texts]


def test_a_chance_level_out_of_view_is_written(make_scores: MakeScores) -> None:
    figure = draw(make_scores(DEEP, near=True), data=with_chance(train=0.02, test=0.03))
    assert "test: 100 queries of 10 classes, chance R@1 3.0 %" in notes(figure)


def test_a_missing_split_is_said_and_the_other_drawn(make_scores: MakeScores) -> None:
    figure = draw(make_scores(DEEP, splits=("test",)))
    assert [curve.get_label() for curve in figure.axes[0].lines] == [f"{layer} test" for layer in DEEP]
    assert "no train scores" in notes(figure)
    assert figure.axes[0].get_title("left") == "netA: test R@1, cosine"
    assert figure.axes[0].get_legend() is None


def test_invalid_values_are_left_out_and_said(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=None, notes=("NaN (3 rows)",))
        if (s.ranked.layer.layer, s.split) == ("fc6", "test") and s.epoch > 2
        else s
        for s in make_scores(DEEP)
    ]
    figure = draw(scores)
    assert x(line(figure.axes[0], "fc6 test")) == [0, 1, 2]
    assert "not valid: fc6, test, epochs 3-5: NaN (3 rows)" in notes(figure)
    assert any(t.get_text().startswith("fc6 test") and "(epoch 2)" in t.get_text() for t in figure.axes[0].texts)


def test_no_valid_value_at_all_is_drawn_as_such(make_scores: MakeScores) -> None:
    figure = draw([replace(s, value=None, notes=("NaN (3 rows)",)) for s in make_scores(["fc6"], [1])])
    assert "not valid: fc6, test, epoch 1: NaN (3 rows)" in notes(figure)


def bands(axes: Axes) -> dict[str, PolyCollection]:
    return {str(part.get_label()): part for part in axes.collections if isinstance(part, PolyCollection)}


def test_a_band_is_the_interval_of_a_test_curve(make_scores: MakeScores) -> None:
    scores = sure(make_scores(["pool5", "fc6"], [0, 2]))
    figure = draw(scores)
    (axes,) = figure.axes
    assert list(bands(axes)) == ["_interval of pool5 test", "_interval of fc6 test"]
    corners = np.asarray(bands(axes)["_interval of fc6 test"].get_paths()[0].vertices, float).tolist()
    for s in scores:
        if (s.ranked.layer.layer, s.split) == ("fc6", "test"):
            assert [s.epoch, 100 * (s.low or 0)] in corners
            assert [s.epoch, 100 * (s.high or 0)] in corners
    assert "Bands around test curves: 95 % interval over classes, against this gallery" in notes(figure)


def test_bands_are_in_view(make_scores: MakeScores) -> None:
    scores = [replace(s, interval=Interval(0.05, 0.95)) if s.epoch == 2 else s for s in make_scores(["fc6"], [0, 2])]
    low, high = draw(scores).axes[0].get_ylim()
    assert low < 5
    assert high > 95


def test_with_a_panel_for_each_split_both_have_bands(make_scores: MakeScores) -> None:
    scores = sure(make_scores(epochs=[0, 5]))
    figure = draw(scores, layers=of_layers(scores, VGG))
    assert [len(bands(axes)) for axes in figure.axes] == [14, 14]
    assert "Bands: 95 % interval over classes" in notes(figure)


def test_eight_bands_over_each_other_are_so_light_that_they_cover_less_than_half(make_scores: MakeScores) -> None:
    scores = make_scores([f"layer{i}" for i in range(8)], [0, 1], ["test"])
    for step, opacity in [(0.1, 0.13), (0.0, 1 - 0.55 ** (1 / 8))]:
        own = sure(replace(s, value=0.1 + step * (i % 8)) for i, s in enumerate(scores))
        figure = draw(own, layers=[score.ranked for score in own])
        assert [band.get_alpha() for band in bands(figure.axes[0]).values()] == pytest.approx([opacity] * 8)


def test_a_layer_without_intervals_has_no_band(make_scores: MakeScores) -> None:
    scores = [s if s.ranked.layer.layer == "fc6" else sure([s])[0] for s in make_scores(["pool5", "fc6"])]
    assert list(bands(draw(scores).axes[0])) == ["_interval of pool5 test"]


def test_intervals_of_different_kinds_are_not_drawn(make_scores: MakeScores) -> None:
    scores = sure(make_scores(DEEP))
    scores[1] = replace(scores[1], units=CLUSTERS)
    figure = draw(scores)
    assert bands(figure.axes[0]) == {}
    assert "intervals of different kinds are not shown together" in notes(figure)


def test_ranges_of_trainings_are_drawn_and_intervals_of_a_run_beside_them_not(make_scores: MakeScores) -> None:
    seeds = sure(make_scores(["fc6"], run="s* (2 seeds)"), units=TRAININGS)
    figure = draw([*seeds, *sure(make_scores(["fc6"]))])
    assert list(bands(figure.axes[0])) == ["_interval of s* (2 seeds) fc6 test"]
    assert "Bands around test curves: lowest to highest training" in notes(figure)
    assert "interval: lowest" not in notes(figure)


def test_post_processing_is_not_drawn_beside_the_layers_as_they_are(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP)
    plain, figure = (
        draw(scores),
        draw([*scores, *(with_layer(score, post_processing="l2") for score in scores)]),
    )
    labels = [[line.get_label() for axes in each.axes for line in axes.lines] for each in (plain, figure)]
    assert labels[0] == labels[1]
    assert "--layers '*/l2' shows them after it." in notes(figure)


def test_a_layer_is_labelled_with_its_pool(make_scores: MakeScores) -> None:
    scores = make_scores(["c1", "c2", "output"], [0, 1])
    pooled = [with_layer(score, pool="max") for score in scores if score.ranked.layer.layer == "c1"]
    shown = [score.ranked for score in scores if score.ranked.layer.layer == "c1"]
    (axes,) = draw([*scores, *pooled], layers=[*shown, pooled[0].ranked]).axes
    assert line(axes, "c1 test")
    assert line(axes, "c1@max test")
