from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from layerprobe.plots.shown import few
from layerprobe.plots.values import by_run, points
from layerprobe.values.scores import Score
from tests.plots.conftest import VGG

MakeScores = Callable[..., list[Score]]


def test_the_few_of_fourteen_layers_are_first_middle_and_the_last_two(make_scores: MakeScores) -> None:
    assert few(by_run(points(make_scores()))) == ["pool1.1", "pool3.3", "pool5.3", "fc6"]


def test_the_best_on_validation_is_that_of_the_mean_over_runs(make_scores: MakeScores) -> None:
    best = {("a", "pool2.1"): 0.9, ("b", "pool2.1"): 0.1, ("a", "pool4.2"): 0.7, ("b", "pool4.2"): 0.8}
    scores = [
        replace(score, value=best.get((run, score.layer), 0.3) if score.epoch == 1 else 0.99)
        for run in "ab"
        for score in make_scores(VGG, [0, 1], ["validation"], run=run)
    ]
    assert few(by_run(points(scores))) == ["pool1.1", "pool3.3", "pool4.2", "pool5.3", "fc6"]
