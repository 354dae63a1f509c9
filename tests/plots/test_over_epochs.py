from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.plots.over_epochs import draw, scores_csv
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from tests.scores import TRAININGS

Overlaps = Callable[[Figure], list[tuple[str, str]]]
SCORE = Score(
    "a", "e", 0, 1, "train", RankedLayer(LayerKey("fc6", "none"), "none", "cosine"), "training loss", 0.5, None, 8
)


def over(run: str, *values: float, first: int = 1, **more: object) -> list[Score]:
    return [
        replace(SCORE, run=run, epoch=first + i, value=value, **more)  # type: ignore[arg-type] # a Score's fields
        for i, value in enumerate(values)
    ]


def points(axes: Axes) -> dict[object, list[tuple[float, float]]]:
    return {line.get_label(): [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())] for line in axes.lines}


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_panel_for_each_metric_with_a_line_for_each_run() -> None:
    recall = over("a", 0.25, 0.5, first=0, split="test", metric="R@1")
    loss, recalls = draw([*over("a", 2.0, 1.5), *over("b", 3.0, 0.75), *recall]).axes
    assert points(loss) == {"a": [(1, 2.0), (2, 1.5)], "b": [(1, 3.0), (2, 0.75)]}
    assert points(recalls) == {"a": [(0, 25.0), (1, 50.0)]}
    titles = [axes.get_title(loc="left") for axes in (loss, recalls)]
    assert titles == ["training loss", "R@1 of the embedding on test"]
    assert loss.get_xlim() == recalls.get_xlim()


def test_a_label_has_the_last_value() -> None:
    recall = over("a", 0.25, 0.5, split="test", metric="R@1")
    loss, recalls = draw([*over("a", 2.0, 0.012345), *recall]).axes
    assert (texts(loss), texts(recalls)) == (["a 0.0123"], ["a 50.0"])


@pytest.mark.parametrize(("last", "scale"), [(0.101, "linear"), (0.099, "log"), (0.0, "linear"), (-1.0, "linear")])
def test_the_axis_is_logarithmic_beyond_a_factor_of_20(last: float, scale: str) -> None:
    (axes,) = draw(over("a", 2.0, last)).axes
    assert axes.get_yscale() == scale


def test_labels_stand_at_the_ends_of_lines_on_a_logarithmic_axis() -> None:
    (axes,) = draw([*over("a", 100.0, 10.0), *over("b", 100.0, 1.0)]).axes
    for text, value in zip(axes.texts, (10.0, 1.0), strict=True):
        height = axes.transAxes.inverted().transform(axes.transData.transform((1, value)))[1]
        assert text.get_position()[1] == pytest.approx(height, abs=0.05)


def test_ranges_over_trainings_are_bands_and_other_intervals_are_not_drawn() -> None:
    figure = draw(over("a", 2.0, 1.0, interval=Interval(0.5, 2.5), units=TRAININGS))
    (axes,) = figure.axes
    (band,) = axes.collections[:1]
    assert band.get_label() == "_range of a"
    assert band.get_paths()[0].get_extents().intervaly.tolist() == [0.5, 2.5]
    assert "lowest to highest training" in figure.texts[-1].get_text()
    (axes,) = draw(over("a", 2.0, 1.0, interval=Interval(0.5, 2.5))).axes
    assert not [each for each in axes.collections if str(each.get_label()).startswith("_range")]


def test_what_every_score_says_is_in_the_caption() -> None:
    scores = [*over("a", 2.0, 1.0, notes=("x", "y")), *over("b", 2.0, 1.0, notes=("x",))]
    assert draw(scores, how="What it is.").texts[-1].get_text().splitlines() == ["What it is.", "x", "a: y"]


def test_no_text_covers_another(overlaps: Overlaps, covers: Overlaps) -> None:
    runs = [over(f"a_long_name_of_a_run_{i}", 2.0, 1.0 + i / 1000) for i in range(12)]
    figure = draw([score for own in runs for score in own])
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_the_table_has_every_number() -> None:
    means = over("a", 2.0, interval=Interval(1.0, 3.0), units=TRAININGS)
    scores = [*means, *over("b", 1.0, interval=Interval(0.5, 1.5))]
    rows = list(csv.DictReader(scores_csv(scores).splitlines()))
    assert [(row["run"], row["value"], row["low"], row["high"]) for row in rows] == [
        ("a", "2.0", "1.0", "3.0"),
        ("b", "1.0", "", ""),
    ]
