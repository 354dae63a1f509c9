from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from numpy.typing import NDArray

from layerprobe.plots.train_vs_test import draw, table
from layerprobe.system.errors import DataError
from layerprobe.values.facts import DataFacts
from layerprobe.values.scores import Score
from tests.plots.conftest import VGG, sure, with_chance
from tests.scores import CLUSTERS, with_layer

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


def has(axes: Axes, label: str) -> bool:
    return any(line.get_label() == label for line in axes.lines)


def values(scores: Sequence[Score], layer: str, split: str) -> list[float]:
    return [
        100 * score.value
        for score in scores
        if (score.ranked.layer.layer, score.split) == (layer, split) and score.value
    ]


def texts(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def test_a_path_is_train_and_test_in_percent_over_epochs(make_scores: MakeScores) -> None:
    scores = make_scores()
    (axes,) = draw(scores, layers={score.ranked for score in scores}).axes
    for layer in dict.fromkeys(score.ranked.layer.layer for score in scores):
        path = line(axes, layer)
        assert x(path) == pytest.approx(values(scores, layer, "train"), rel=1e-12)
        assert y(path) == pytest.approx(values(scores, layer, "test"), rel=1e-12)


def test_the_last_epoch_is_large_and_the_untrained_hollow(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP)
    (axes,) = draw(scores).axes
    end, start = line(axes, "_end of fc6"), line(axes, "_start of fc6")
    train, test = values(scores, "fc6", "train"), values(scores, "fc6", "test")
    assert xy(start) == [pytest.approx([train[0], test[0]])]
    assert xy(end) == [pytest.approx([train[-1], test[-1]])]
    assert start.get_markerfacecolor() == "white"
    assert end.get_markersize() > 2 * line(axes, "_epochs of fc6").get_markersize()


def test_without_epoch_zero_nothing_is_hollow(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(DEEP, [1, 2])).axes
    assert not has(axes, "_start of fc6")
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["epochs", "epoch 2"]


def test_the_diagonal_is_where_test_equals_train(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores()).axes
    diagonal = line(axes, "_diagonal")
    assert x(diagonal) == y(diagonal)


def test_chance_lines_stand_at_the_levels_given(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(), data=with_chance(train=0.02, test=0.03)).axes
    assert x(line(axes, "_chance train")) == [2, 2]
    assert y(line(axes, "_chance test")) == [3, 3]
    assert {"chance 2.0 %", "chance 3.0 %"} <= {text.get_text() for text in axes.texts}


def test_a_chance_level_is_in_view_only_together_with_the_other(make_scores: MakeScores) -> None:
    # Chance on train is near the values, on test far from them.
    (axes,) = draw(make_scores(DEEP, near=True), data=with_chance(train=0.45, test=0.01)).axes
    assert not has(axes, "_chance test")
    assert not has(axes, "_chance train")
    assert axes.get_xlim()[0] > 45


def test_a_chance_level_out_of_view_is_written(make_scores: MakeScores) -> None:
    figure = draw(make_scores(DEEP, near=True), data=with_chance(train=0.02, test=0.03))
    assert not has(figure.axes[0], "_chance test")
    assert "test: 100 queries of 10 classes, chance R@1 3.0 %" in texts(figure)


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("layers", [1, 4, 14, 18])
def test_no_text_covers_another(
    make_scores: MakeScores, overlaps: Overlaps, covers: Overlaps, layers: int, near: bool
) -> None:
    names = [f"layer{i // 4}.{i % 4}" for i in range(layers)]
    figure = draw(make_scores(names, near=near), data=with_chance(train=0.02, test=0.03))
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_no_label_lies_on_a_line(make_scores: MakeScores, covers: Overlaps) -> None:
    # The first layer ends in the corner of the chance levels and the line test = train.
    assert covers(draw(make_scores(), data=with_chance(train=0.05, test=0.05))) == []


def test_no_text_covers_another_with_three_runs(make_scores: MakeScores, overlaps: Overlaps, covers: Overlaps) -> None:
    scores = [score for run in ("netA", "netA-softmax", "netE") for score in make_scores(run=run)]
    figure = draw(scores, data=with_chance(train=0.02, test=0.03))
    assert (overlaps(figure), covers(figure)) == ([], [])
    assert [axes.get_title("left").split(":")[0] for axes in figure.axes] == ["netA", "netA-softmax", "netE"]


def test_every_layer_is_named_in_its_panel(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(DEEP)).axes
    assert [text.get_text() for text in axes.texts if text.get_text() in DEEP] == DEEP


FEW = ["pool1.1", "pool3.3", "pool5.3", "fc6"]


def coloured(axes: Axes) -> list[str]:
    """The layers whose last point is large."""
    ends = [line for line in axes.lines if str(line.get_label()).startswith("_end of ") and line.get_markersize() > 4]
    return [str(line.get_label()).removeprefix("_end of ") for line in ends]


def test_of_fourteen_layers_a_few_are_in_colour_and_the_others_pale(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores()).axes
    assert coloured(axes) == FEW
    assert len(pale(axes)) == len(VGG) - len(FEW)
    assert len({line(axes, name).get_color() for name in FEW}) == 4
    assert set(FEW) <= {text.get_text() for text in axes.texts}


def pale(axes: Axes) -> list[NDArray[np.float64]]:
    """The paths of the pale layers, and the points at their ends."""
    (lines,) = axes.collections
    assert isinstance(lines, LineCollection)
    assert np.allclose(lines.get_color(), to_rgba("0.75"))
    paths = [np.asarray(path) for path in lines.get_segments()]
    assert xy(line(axes, "_pale ends")) == [path[-1].tolist() for path in paths]
    return paths


def artists(axes: Axes) -> int:
    """How many lines and collections there are, but for those that join a label to its point."""
    return len(axes.collections) + sum(not str(line.get_label()).startswith("_line to") for line in axes.lines)


def test_a_pale_path_is_train_and_test_in_percent_over_epochs(make_scores: MakeScores) -> None:
    scores = make_scores()
    (axes,) = draw(scores).axes
    for name, path in zip((name for name in VGG if name not in FEW), pale(axes), strict=True):
        assert path[:, 0] == pytest.approx(values(scores, name, "train"), rel=1e-12)
        assert path[:, 1] == pytest.approx(values(scores, name, "test"), rel=1e-12)


def test_hundreds_of_layers_are_as_many_artists_as_fourteen(make_scores: MakeScores) -> None:
    many = [f"block{i}" for i in range(300)]
    (few_axes,), (axes,) = (draw(make_scores(names, range(3))).axes for names in (VGG, many))
    assert len(pale(axes)) == 300 - 4
    assert artists(axes) == artists(few_axes)
    # Those in colour are named, and no place is looked for the names of the others.
    assert {text.get_text() for text in axes.texts} & set(many) == {"block0", "block149", "block298", "block299"}
    assert len(table(make_scores(many, range(3))).splitlines()) == 1 + 300 * 3


def test_layers_that_are_asked_for_are_in_colour_instead(make_scores: MakeScores) -> None:
    scores = make_scores()
    asked = [scores[2].ranked, scores[4].ranked]
    (axes,) = draw(scores, layers=asked).axes
    assert coloured(axes) == VGG[1:3]


def test_post_processing_is_drawn_where_it_is_asked_for(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP)
    scores += [replace(with_layer(score, post_processing="l2"), value=0.5) for score in scores]
    (axes,) = draw(scores, layers=[scores[-1].ranked]).axes
    assert coloured(axes) == ["fc6/l2"]


def test_few_layers_of_two_runs_share_a_panel_with_a_colour_for_each_run(make_scores: MakeScores) -> None:
    scores = make_scores(["pool5", "fc6"], run="one") + make_scores(["pool5", "fc6"], run="two")
    (axes,) = draw(scores).axes
    assert coloured(axes) == ["pool5", "fc6"] * 2
    colours = [drawn.get_color() for drawn in axes.lines if drawn.get_label() == "fc6"]
    assert len(set(colours)) == 2
    assert {"one", "two"} <= {text.get_text() for text in axes.findobj(Text) if isinstance(text, Text)}


def test_runs_that_end_at_other_epochs_have_a_last_epoch(make_scores: MakeScores) -> None:
    scores = make_scores(["fc6"], [0, 1, 2], run="one") + make_scores(["fc6"], [0, 1], run="two")
    (axes,) = draw(scores).axes
    shown = {text.get_text() for text in axes.findobj(Text) if isinstance(text, Text)}
    assert "last epoch" in shown
    assert "epoch 2" not in shown


def test_more_than_six_paths_have_a_panel_for_each_run(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP, run="one") + make_scores(DEEP, run="two")
    assert len(draw(scores).axes) == 2


def test_some_epochs_are_numbered(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(["fc6"])).axes
    numbers = [int(text.get_text()) for text in axes.texts if text.get_text().isdigit()]
    assert numbers
    assert set(numbers) <= {1, 2, 3, 4}
    assert numbers == sorted(numbers)


def test_the_title_says_run_metric_and_similarity(make_scores: MakeScores) -> None:
    (axes,) = draw([with_layer(score, similarity="dot") for score in make_scores(DEEP)]).axes
    assert axes.get_title("left") == "netA: R@1 by layer, dot"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("train R@1", "test R@1")


def units_per_inch(figure: Figure) -> tuple[float, float]:
    (axes,) = figure.axes
    box, (left, right), (bottom, top) = axes.get_window_extent(), axes.get_xlim(), axes.get_ylim()
    return (right - left) / box.width, (top - bottom) / box.height


def test_both_axes_have_one_scale(make_scores: MakeScores) -> None:
    figure = draw(make_scores())
    across, up = units_per_inch(figure)
    assert across == pytest.approx(up, rel=1e-6)
    assert "scale" not in texts(figure)


def test_a_narrow_test_range_has_its_own_scale_and_says_so(make_scores: MakeScores) -> None:
    scores = [replace(s, value=0.3 + 0.02 * (s.value or 0)) if s.split == "test" else s for s in make_scores(DEEP)]
    figure = draw(scores)
    across, up = units_per_inch(figure)
    assert up < across / 2
    assert "The axes differ in scale." in texts(figure)


def test_a_diagonal_out_of_view_is_said(make_scores: MakeScores) -> None:
    # Train between 50 and 90 %, test between 30 and 31 %.
    scores = [
        replace(s, value=0.3 + 0.01 * (s.value or 0) if s.split == "test" else 0.5 + 0.4 * (s.value or 0))
        for s in make_scores(DEEP)
    ]
    figure = draw(scores)
    assert not has(figure.axes[0], "_diagonal")
    assert "The line test = train lies outside the axes." in texts(figure)


def test_a_diagonal_in_the_corner_is_named_below(make_scores: MakeScores) -> None:
    # Both ranges of 3 points, the test's top a little above the train's bottom.
    scores = [
        replace(s, value=(0.30 if s.split == "test" else 0.32) + 0.03 * (s.value or 0)) for s in make_scores(DEEP)
    ]
    figure = draw(scores)
    (axes,) = figure.axes
    assert has(axes, "_diagonal")
    assert "test = train" not in {text.get_text() for text in axes.texts}
    assert "The line in the corner is test = train." in texts(figure)


@pytest.mark.parametrize(("split", "absent", "coordinate"), [("test", "train", 0), ("train", "test", 1)])
def test_a_missing_split_is_said_and_the_other_drawn(
    make_scores: MakeScores, split: str, absent: str, coordinate: int
) -> None:
    scores = make_scores(DEEP, splits=(split,))
    figure = draw(scores, data=with_chance(train=0.02, test=0.03))
    (axes,) = figure.axes
    drawn = list(zip(*xy(line(axes, "fc6")), strict=True))
    assert drawn[1 - coordinate] == pytest.approx(values(scores, "fc6", split))
    assert set(drawn[coordinate]) == {(axes.get_xlim(), axes.get_ylim())[coordinate][0]}
    assert f"no {absent} scores" in texts(figure)
    assert not has(axes, f"_chance {absent}")
    assert not has(axes, "_diagonal")


def test_scores_of_validation_alone_are_refused(make_scores: MakeScores) -> None:
    with pytest.raises(DataError, match=r"no layer has R@1 on train or test\. Run .*--splits train,test"):
        draw(make_scores(DEEP, splits=("validation",)))


def test_a_layer_of_validation_alone_is_not_drawn(make_scores: MakeScores) -> None:
    figure = draw([*make_scores(["fc6"]), *make_scores(["pool5.1"], splits=("validation",))])
    assert has(figure.axes[0], "fc6")
    assert not has(figure.axes[0], "pool5.1")


def test_one_epoch_is_drawn_and_said(make_scores: MakeScores) -> None:
    figure = draw(make_scores(DEEP, [15]))
    assert len(x(line(figure.axes[0], "_end of fc6"))) == 1
    assert "One epoch only (15): no paths." in texts(figure)


def test_weights_without_an_epoch_are_no_start(make_scores: MakeScores) -> None:
    figure = draw(make_scores(DEEP, [0]), data={"netA": DataFacts("", {}, "epoch 0", weights="weights of own.pth")})
    (axes,) = figure.axes
    assert has(axes, "_end of fc6")
    assert not has(axes, "_start of fc6")
    assert "weights of own.pth" in texts(figure)
    assert "epoch 0" not in texts(figure)
    assert "One epoch only (weights of own.pth): no paths." in texts(figure)


def test_untrained_alone_is_hollow(make_scores: MakeScores) -> None:
    (axes,) = draw(make_scores(DEEP, [0])).axes
    assert has(axes, "_start of fc6")
    assert not has(axes, "_end of fc6")


def test_invalid_values_are_left_out_and_said(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=None, notes=("NaN (3 rows)",))
        if (s.ranked.layer.layer, s.split) == ("fc6", "test") and s.epoch > 2
        else s
        for s in make_scores(DEEP)
    ]
    figure = draw(scores)
    (axes,) = figure.axes
    assert len(x(line(axes, "fc6"))) == 3
    assert "not valid: fc6, test, epochs 3-5: NaN (3 rows)" in texts(figure)
    # Its path ends early: no large marker, which stands for the last epoch, and the epoch beside the name.
    assert not has(axes, "_end of fc6")
    assert "fc6 (epoch 2)" in [text.get_text() for text in axes.texts]


def test_a_layer_without_a_valid_value_is_left_out(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=None, notes=("NaN (3 rows)",)) if s.ranked.layer.layer == "fc6" else s
        for s in make_scores(["pool5", "fc6"])
    ]
    (axes,) = draw(scores).axes
    assert not has(axes, "fc6")
    assert has(axes, "pool5")


def test_no_valid_value_at_all_is_drawn_as_such(make_scores: MakeScores) -> None:
    scores = [replace(s, value=None, notes=("NaN (3 rows)",)) for s in make_scores(["fc6"], [1])]
    figure = draw(scores)
    assert not has(figure.axes[0], "fc6")
    assert "not valid: fc6, test, epoch 1: NaN (3 rows)" in texts(figure)


def test_the_last_point_has_a_bar_for_each_split(make_scores: MakeScores) -> None:
    scores = sure(make_scores(["fc6"]))
    figure = draw(scores)
    train, test = (s for s in scores if s.epoch == 5)
    across, upright = (line(figure.axes[0], f"_interval {split} of fc6") for split in ("train", "test"))
    assert x(across) == pytest.approx([100 * (train.low or 0), 100 * (train.high or 0)])
    assert y(across) == pytest.approx([100 * (test.value or 0)] * 2)
    assert x(upright) == pytest.approx([100 * (train.value or 0)] * 2)
    assert y(upright) == pytest.approx([100 * (test.low or 0), 100 * (test.high or 0)])
    assert "Bars: 95 % interval over classes, against this gallery" in texts(figure)


def test_bars_are_in_view(make_scores: MakeScores) -> None:
    (axes,) = draw(sure(make_scores(["fc6"]), 0.3)).axes
    assert axes.get_xlim()[1] > max(x(line(axes, "_interval train of fc6")))
    assert axes.get_ylim()[1] > max(y(line(axes, "_interval test of fc6")))


def test_a_value_without_an_interval_has_no_bar(make_scores: MakeScores) -> None:
    scores = [s if s.split == "train" else sure([s])[0] for s in make_scores(["fc6"])]
    (axes,) = draw(scores).axes
    assert has(axes, "_interval test of fc6")
    assert not has(axes, "_interval train of fc6")
    assert "interval" not in texts(draw(make_scores(["fc6"])))


def test_a_layer_that_ends_earlier_has_no_bar_there(make_scores: MakeScores) -> None:
    (axes,) = draw(sure(make_scores(["pool5"], [0, 1, 2]) + make_scores(["fc6"], [0, 1]))).axes
    assert has(axes, "_interval test of pool5")
    assert not has(axes, "_interval test of fc6")


def test_intervals_of_different_kinds_are_not_drawn(make_scores: MakeScores) -> None:
    scores = sure(make_scores(["pool5"])) + sure(make_scores(["fc6"]), units=CLUSTERS)
    figure = draw(scores)
    assert not has(figure.axes[0], "_interval test of pool5")
    assert "intervals of different kinds are not shown together" in texts(figure)


def test_post_processing_is_not_drawn_beside_the_layers_as_they_are(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP)
    plain, figure = (
        draw(scores),
        draw([*scores, *(with_layer(score, post_processing="l2") for score in scores)]),
    )
    labels = [[line.get_label() for axes in each.axes for line in axes.lines] for each in (plain, figure)]
    assert labels[0] == labels[1]
    assert "--layers '*/l2' shows them after it." in texts(figure)


def test_the_table_has_the_paths_that_are_drawn(make_scores: MakeScores) -> None:
    one, two = (make_scores(VGG, [0, 1], ("train", "validation", "test"), run=run) for run in ("one", "two"))
    alone = table(one).splitlines()
    assert len(alone) == 1 + 14 * 2
    assert "validation" not in alone[0]
    # Two layers of two runs share a panel, which has no pale ones.
    asked = [score.ranked for score in one if score.ranked.layer.layer in ("pool5.3", "fc6")]
    assert len(table([*one, *two], layers=asked).splitlines()) == 1 + 2 * 2 * 2
