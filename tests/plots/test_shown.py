from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from layerprobe.plots.shown import default_layers
from layerprobe.plots.values import group_by_run, make_points
from layerprobe.values.keys import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from tests.plots.conftest import VGG

MakeScores = Callable[..., list[Score]]


def first(scores: list[Score], embeddings: dict[str, RankedLayer] | None = None) -> list[str]:
    return [str(ranked) for ranked in default_layers(group_by_run(make_points(scores)), embeddings or {}, {})]


def test_the_few_of_fourteen_layers_are_first_middle_and_the_last_two(make_scores: MakeScores) -> None:
    assert first(make_scores()) == ["pool1.1", "pool3.3", "pool5.3", "fc6"]


def test_the_best_on_validation_is_that_of_the_mean_over_runs(make_scores: MakeScores) -> None:
    best = {("a", "pool2.1"): 0.9, ("b", "pool2.1"): 0.1, ("a", "pool4.2"): 0.7, ("b", "pool4.2"): 0.8}
    scores = [
        replace(score, value=best.get((run, score.ranked.layer.layer), 0.3) if score.epoch == 1 else 0.99)
        for run in "ab"
        for score in make_scores(VGG, [0, 1], ["validation"], run=run)
    ]
    assert first(scores) == ["pool1.1", "pool3.3", "pool4.2", "pool5.3", "fc6"]


def test_the_embedding_is_shown_with_the_layer_before_it_though_later_layers_are_measured(
    make_scores: MakeScores,
) -> None:
    embedding = RankedLayer(LayerKey("pool5.2", "none"), "none", "cosine")
    assert first(make_scores(), {"netA": embedding}) == ["pool1.1", "pool3.3", "pool5.1", "pool5.2"]


def test_of_runs_with_different_embeddings_the_last_in_the_network_is_shown(make_scores: MakeScores) -> None:
    ends = {run: RankedLayer(LayerKey(f"pool5.{run}", "none"), "none", "cosine") for run in "21"}
    scores = [score for run in ends for score in make_scores(run=run)]
    assert first(scores, ends) == ["pool1.1", "pool3.3", "pool5.1", "pool5.2"]


def test_up_to_five_layers_are_all_shown(make_scores: MakeScores) -> None:
    assert first(make_scores(VGG[:5])) == VGG[:5]


def test_each_network_shows_layers_of_its_own(make_scores: MakeScores) -> None:
    blocks = [f"blocks.{place}" for place in range(7)]
    scores = [*make_scores([*blocks, "fc6"], run="vit"), *make_scores()]
    # of 8 layers the middle one, rounded down, is the fourth
    expected = ["pool1.1", "pool3.3", "pool5.3", "fc6", "blocks.0", "blocks.3", "blocks.6"]
    assert first(scores) == expected
