from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from layerprobe.plots.figure import PanelLayout, make_panels
from layerprobe.plots.trainings import ValueAxis, draw, table
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.intervals import Interval
from layerprobe.values.views import OverTrainings, Repeated, RepeatedLine

Overlaps = Callable[[Figure], list[tuple[str, str]]]


def point(place: float | str, mean: float, difference: bool = False) -> Repeated:
    """Two trainings, 0.1 (or 0.02) to both sides of their mean, with an interval of 0.2 (or 0.04)."""
    half = 0.02 if difference else 0.1
    each = {0: mean - half, 1: mean + half}
    return Repeated(place, each, mean, Interval(mean - 2 * half, mean + 2 * half))


def view_of(
    *places: float | str, names: tuple[str, ...] = ("a", "b"), layers: tuple[str, ...] = ("fc6",)
) -> OverTrainings:
    """Lines from 0.4 that rise by 0.1 at each place, the one after 0.05 higher than the one before."""
    lines = []
    for i, (name, layer) in enumerate((name, layer) for name in names for layer in layers):
        points = tuple(point(place, 0.4 + 0.1 * j + 0.05 * i) for j, place in enumerate(places))
        less = tuple(point(place, 0.05 * i, difference=True) for place in places) if i else ()
        lines.append(RepeatedLine(name, layer, points, less))
    return OverTrainings("R@1", "test", "net.fc", places, tuple(lines), (5,), ("r0", "r1"))


def facts(queries: int, classes: int = 10, chance: float | None = 0.1) -> DataFacts:
    return DataFacts("glyphs", {"test": SplitFacts(queries, classes, chance=chance)})


def shown(figure: Figure, panel: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


def caption(figure: Figure) -> str:
    return " ".join(figure.texts[-1].get_text().split())


def test_lines_dots_and_bands_have_the_values_in_percent_over_the_logarithm() -> None:
    axes = draw(view_of(4, 64)).axes[0]
    curve, dots = axes.lines[0], axes.lines[1]
    assert (curve.get_label(), dots.get_label()) == ("a", "_trainings of a")
    assert curve.get_xydata() == pytest.approx(np.array([(2, 40), (6, 50)]))
    assert dots.get_xydata() == pytest.approx(np.array([(2, 30), (2, 50), (6, 40), (6, 60)]))
    corners = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert sorted(set(corners[corners[:, 0] == 2, 1].round(6))) == [20, 60]


def test_the_second_panel_has_differences_in_points_from_the_first_line() -> None:
    axes = draw(view_of(4, 64)).axes[1]
    assert axes.get_title("left") == "Difference from a"
    assert axes.get_ylabel() == "R@1, difference in points"
    (curve,) = [line for line in axes.lines if line.get_label() == "b"]
    assert curve.get_xydata() == pytest.approx(np.array([(2, 5), (6, 5)]))
    assert shown(draw(view_of(4, 64)), 1) == ["b: +5.0"]


def test_without_differences_there_is_one_panel() -> None:
    assert len(draw(view_of(4, 64, names=("a",))).axes) == 1


def test_categories_have_bars_and_no_line_between_them() -> None:
    axes = draw(view_of("softmax", "triplet", names=("a",))).axes[0]
    assert axes.lines[0].get_linestyle() == "None"
    (low, high) = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert (low, high) == (pytest.approx((0, 20)), pytest.approx((0, 60)))


def test_each_line_is_labelled_by_what_tells_it_from_others() -> None:
    assert shown(draw(view_of(4, 64))) == ["a: 50.0 %", "b: 55.0 %"]
    several = draw(view_of(4, 64, layers=("fc6", "pool5")))
    assert shown(several)[:2] == ["a fc6: 50.0 %", "a pool5: 55.0 %"]
    assert shown(draw(view_of(4, 64, names=("",), layers=("fc6", "pool5")))) == ["fc6: 50.0 %", "pool5: 55.0 %"]
    assert draw(view_of(4, 64)).axes[0].get_title("left").splitlines() == ["R@1 over net.fc", "fc6, test, epoch 5"]


@pytest.mark.parametrize(("measure", "label"), [("loss", "training loss"), ("effective-rank", "effective-rank")])
def test_a_number_that_is_no_share_has_its_own_axis(measure: str, label: str) -> None:
    view = view_of(4, 64, names=("a",))
    axes = draw(replace(view, measure=measure)).axes[0]
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([(2, 0.4), (6, 0.5)]))
    assert axes.get_ylabel() == label
    assert shown(draw(replace(view, measure=measure))) == ["0.500"]
    assert not any("%" in tick.get_text() for tick in axes.get_yticklabels())


def test_the_chance_level_that_all_runs_share_is_drawn_for_recall_at_1() -> None:
    data = {"r0": facts(100), "r1": facts(100)}
    assert "chance: test 10.0 %" in shown(draw(view_of(4, 64), data=data))
    for measure in ("NMI", "loss", "R@K"):
        assert not any("chance" in text for text in shown(draw(replace(view_of(4, 64), measure=measure), data=data)))


def test_the_caption_says_what_points_dots_bands_and_classes_are() -> None:
    view = view_of(4, 64)
    text = caption(draw(view, data={"r0": facts(100), "r1": facts(100)}))
    assert "test: 100 queries of 10 classes, chance R@1 10.0 %" in text
    assert "Each point is the mean of 2 trainings, each with the same test classes; dots are single trainings." in text
    assert "Bands: 95 % interval of the mean over trainings (Student's t). Differences are paired by seed" in text
    own = caption(draw(replace(view, own_classes=True), data={"r0": facts(100), "r1": facts(90, 9)}))
    assert "test: 90 to 100 queries of 9 to 10 classes" in own
    assert "each with test classes of its own" in own


def test_one_training_of_each_has_neither_dots_nor_a_word_of_intervals() -> None:
    alone = tuple(Repeated(place, {0: 0.5}, 0.5) for place in (4, 64))
    figure = draw(replace(view_of(4, 64), lines=(RepeatedLine("", "fc6", alone),)))
    assert len(figure.axes[0].lines) == 1
    assert caption(figure) == "One training each."


@pytest.mark.parametrize(
    "view",
    [
        view_of(4, 16, 64, names=("loss.name=smooth_triplet, train.batch_size=64", "b", "c", "d")),
        view_of("smooth_triplet", "multi_similarity", "none", layers=("fc6", "pool5.3@max")),
        view_of(*range(1, 40)),
        view_of(64, names=tuple("abcdefghijkl")),
    ],
)
def test_no_text_overlaps_another(view: OverTrainings, overlaps: Overlaps, covers: Overlaps) -> None:
    figure = draw(view, data={"r0": facts(100)})
    assert (overlaps(figure), covers(figure)) == ([], [])


@pytest.mark.parametrize("level", [0.1, 0.45, 0.6])
def test_no_label_lies_on_a_line(level: float, covers: Overlaps) -> None:
    for view in (view_of(4, 64), view_of(*range(1, 40)), view_of(64, names=tuple("abcdefghijkl"))):
        assert covers(draw(view, data={"r0": facts(100, chance=level)})) == []


def test_a_figure_with_short_names_is_as_narrow_as_a_column() -> None:
    assert draw(view_of(4, 64)).get_size_inches()[0] <= 4.6


def rows_of(view: OverTrainings) -> list[Mapping[str, str]]:
    return list(csv.DictReader(table(view).splitlines()))


def test_the_csv_has_means_and_single_trainings() -> None:
    rows = rows_of(replace(view_of(4, 64), notes=("partial",)))
    (mean, one, _) = [row for row in rows if (row["line"], row["net.fc"]) == ("b", "4")]
    assert (mean["layer"], mean["seed"], mean["n"], mean["note"]) == ("fc6", "all", "2", "partial")
    numbers = [float(mean[name]) for name in ("test R@1", "low", "high", "difference", "difference low")]
    assert numbers == pytest.approx([0.45, 0.25, 0.65, 0.05, 0.01])
    assert (one["seed"], one["low"]) == ("0", "")
    assert [float(one[name]) for name in ("test R@1", "difference")] == pytest.approx([0.35, 0.03])


def test_the_weights_of_one_file_stand_in_the_title_instead_of_the_epoch() -> None:
    view = replace(view_of(4, 64, names=("",)), epochs=(0,), runs=("own",), weights="weights of own.pth")
    title = draw(view).axes[0].get_title("left")
    assert "weights of own.pth" in title
    assert "epoch" not in title


def drawn(places: Sequence[float | str]) -> tuple[Figure, list[str]]:
    """A figure with the axis, 2.4 inches wide, and the texts at its ticks."""
    axis = ValueAxis(places)
    figure, (axes,) = make_panels(["title"], PanelLayout(2.4, 2, 0.5, below=axis.height_below(2.4)))
    axis.set(axes, "net.fc")
    return figure, [label.get_text() for label in axes.get_xticklabels()]


@pytest.mark.parametrize(
    ("places", "is_log"), [((4, 16, 64), True), ((1, 8), True), ((1, 7.9), False), ((0, 64), False), ((-1, 64), False)]
)
def test_numbers_that_spread_over_a_factor_of_eight_have_a_logarithmic_axis(
    places: Sequence[float], is_log: bool
) -> None:
    axis = ValueAxis(places)
    assert axis.is_log == is_log
    steps = [axis.position(place) for place in places]
    assert steps == ([2, 4, 6] if places == (4, 16, 64) else [0, 3] if is_log else list(places))


def test_texts_and_single_numbers_are_categories_whose_points_stand_side_by_side() -> None:
    assert [ValueAxis(["none", "4", "64"]).position(place) for place in ("none", "4", "64")] == [0, 1, 2]
    axis = ValueAxis([64])
    assert axis.numbers == []
    assert [axis.position(64, line, 3) for line in range(3)] == pytest.approx([-0.14, 0, 0.14])


def test_ticks_are_the_values_without_those_whose_texts_would_touch(
    overlaps: Overlaps,
    covers: Overlaps,
) -> None:
    assert drawn([0.1, 0.5, 1])[1] == ["0.1", "0.5", "1"]
    figure, texts = drawn([100, 101, 300, 512])
    assert texts == ["100", "300", "512"]
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_long_names_of_categories_are_upright(overlaps: Overlaps, covers: Overlaps) -> None:
    names = ["smooth_triplet", "multi_similarity", "structured_clustering"]
    figure, texts = drawn(names)
    assert texts == names
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {90}
    assert (overlaps(figure), covers(figure)) == ([], [])
