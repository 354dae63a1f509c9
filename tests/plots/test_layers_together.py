from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from layerprobe.plots.layers import draw
from layerprobe.values.scores import Score
from tests.plots.conftest import sure, with_chance
from tests.scores import TRAININGS, with_layer

MakeScores = Callable[..., list[Score]]
Overlaps = Callable[[Figure], list[tuple[str, str]]]
DEEP = ["pool5.1", "pool5.2", "pool5.3", "fc6"]


def line(axes: Axes, label: str) -> Line2D:
    (found,) = (line for line in axes.lines if line.get_label() == label)
    return found


def notes(figure: Figure) -> str:
    """The lines under the figure as one."""
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def two(make_scores: MakeScores) -> list[Score]:
    """Of netE each value is half of that of netA."""
    second = [replace(score, value=(score.value or 0) / 2) for score in make_scores(DEEP, run="netE")]
    return [*make_scores(DEEP), *second]


def test_a_line_is_a_split_of_a_run_at_its_last_epoch(make_scores: MakeScores) -> None:
    scores = two(make_scores)
    (axes,) = draw(scores).axes
    for run in ("netA", "netE"):
        for split in ("train", "test"):
            own = [100 * (s.value or 0) for s in scores if (s.run, s.split, s.epoch) == (run, split, 5)]
            drawn = np.asarray(line(axes, f"{run} {split}").get_xydata(), float)
            assert drawn.tolist() == [[place, pytest.approx(value)] for place, value in enumerate(own)]
    assert axes.get_title("left") == "R@1 by layer, epoch 5, cosine"


def test_a_run_has_its_colour_and_the_key_names_it(make_scores: MakeScores) -> None:
    (axes,) = draw(two(make_scores)).axes
    colours = [line(axes, f"{run} {split}").get_color() for run in ("netA", "netE") for split in ("train", "test")]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["netA", "netE"]


def test_layers_that_a_run_does_not_have_keep_their_place(make_scores: MakeScores) -> None:
    scores = [score for score in two(make_scores) if (score.run, score.ranked.layer.layer) != ("netE", "pool5.2")]
    (axes,) = draw(scores).axes
    assert [x for x, _ in np.asarray(line(axes, "netE test").get_xydata(), float).tolist()] == [0, 2, 3]
    assert [label.get_text() for label in axes.get_xticklabels()] == DEEP


def test_the_best_layer_of_each_run_is_ringed_and_named(make_scores: MakeScores) -> None:
    scores = [
        replace(s, value=0.625)
        if (s.run, s.ranked.layer.layer, s.split, s.epoch) == ("netE", "pool5.2", "test", 5)
        else s
        for s in two(make_scores)
    ]
    figure = draw(scores)
    rings = [ring for ring in figure.axes[0].lines if ring.get_label() == "_best"]
    assert np.asarray(rings[1].get_xydata(), float).tolist() == [[1, 62.5]]
    assert "netE: best on test (chosen on test): pool5.2, 62.5 %" in notes(figure)


def test_bars_of_trainings_reach_from_the_lowest_to_the_highest(make_scores: MakeScores) -> None:
    seeds = sure(make_scores(DEEP, run="s* (2 seeds)"), 0.1, units=TRAININGS)
    figure = draw([*seeds, *sure(make_scores(DEEP))])
    found = [part for part in figure.axes[0].collections if str(part.get_label()).startswith("_interval")]
    (bars,) = found
    assert isinstance(bars, LineCollection)
    own = [s for s in seeds if (s.split, s.epoch) == ("test", 5)]
    assert [np.asarray(ends)[:, 1].tolist() for ends in bars.get_segments()] == [
        pytest.approx([100 * (s.low or 0), 100 * (s.high or 0)]) for s in own
    ]
    assert "Bars: lowest to highest training" in notes(figure)


def test_each_reduction_has_a_panel_of_all_runs(make_scores: MakeScores) -> None:
    scores = two(make_scores)
    figure = draw(
        [
            *scores,
            *(with_layer(score, reduction="l2") for score in scores if score.ranked.layer.layer == "fc6"),
        ]
    )
    assert [axes.get_title("left") for axes in figure.axes] == [
        "R@1 by layer, epoch 5, cosine",
        "R@1 by layer, epoch 5, l2, cosine",
    ]
    assert "netE, l2, cosine: best on test" in notes(figure)


def test_no_text_covers_another(make_scores: MakeScores, overlaps: Overlaps) -> None:
    runs = ("netA-v-s* (3 seeds)", "netA-softmax-v-s* (2 seeds)", "netE")
    scores = [score for run in runs for score in make_scores(run=run)]
    assert overlaps(draw(scores, data=with_chance(train=0.02, test=0.03))) == []
