from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from layerprobe.plots.drawn_layers import (
    default_layers,
    group_by_network,
    match_layers,
    omission_notes,
    select_unreduced,
)
from layerprobe.plots.values import group_by_run, make_points
from layerprobe.system.errors import UnknownNameError
from layerprobe.values.facts import DataFacts
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from tests.plots.conftest import VGG
from tests.scores import with_layer


def layer(name: str, reduction: str = "none", pool: str = "max") -> RankedLayer:
    return RankedLayer(LayerKey(name, pool), reduction, "cosine")


KNOWN = [layer("pool5.2"), layer("pool5.3"), layer("pool5.3", pool="avg"), layer("fc6"), layer("fc6", "pca:8")]


def test_a_name_means_every_pool_of_the_layer_as_it_is() -> None:
    assert match_layers(("fc6", "pool5.3"), KNOWN) == [KNOWN[3], KNOWN[1], KNOWN[2]]


def test_a_reduction_follows_a_slash() -> None:
    assert match_layers(("fc6/pca:8",), KNOWN) == [KNOWN[4]]


def test_a_glob_after_the_slash_means_all_reductions_that_match() -> None:
    known = [*KNOWN, layer("fc6", "pca:16"), layer("fc6", "random:8")]
    assert match_layers(("fc6/pca:*",), known) == known[4:6]


def test_a_glob_means_all_that_match_and_each_once() -> None:
    assert match_layers(("pool5.?@max", "pool5.2"), KNOWN) == [KNOWN[0], KNOWN[1]]


def test_a_layer_that_is_measured_reduced_alone_needs_no_slash() -> None:
    assert match_layers(("fc6",), [KNOWN[4]]) == [KNOWN[4]]


@pytest.mark.parametrize(("name", "near"), [("pool5.4", "pool5.3@max"), ("fc6/pca:9", "fc6@max/pca:8")])
def test_an_unknown_name_is_told_with_its_near_miss(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean '{near}'"):
        match_layers((name,), KNOWN)


def test_an_unknown_layer_is_told_the_layers_and_an_unknown_reduction_those_of_its_layer() -> None:
    with pytest.raises(UnknownNameError, match=r"Known: pool5.2@max, .*, fc6@max, fc6@max/pca:8\.?$"):
        match_layers(("conv9",), KNOWN)
    with pytest.raises(UnknownNameError, match=r"Known: fc6@max, fc6@max/pca:8\.?$"):
        match_layers(("fc6/binary",), KNOWN)


def test_a_glob_that_nothing_matches_is_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown layer 'nothing"):
        match_layers(("nothing.*",), KNOWN)


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


RESNET18 = ("layer1.0", "layer1.1", "layer2.0", "layer2.1", "output")
RESNET50 = ("layer1.0", "layer1.1", "layer1.2", "layer2.0", "layer2.1", "output")


def of(network: str, layers: tuple[str, ...]) -> DataFacts:
    return DataFacts("", {}, network=network, layers=layers)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (of("timm:resnet18", RESNET18), of("timm:resnet50", RESNET50), False),  # whose names include all of the first's
        (of("timm:resnet18", RESNET18), of("torchvision:resnet18", RESNET18), True),
        (of("netA", ("c1", "c2")), of("netA", ("c1", "c2", "fc6")), True),  # without and with fc6
        (of("vit", ("blocks.0", "blocks.1")), of("large", ("blocks.0", "blocks.1", "blocks.2")), False),
        (of("netA", ("c1", "c2")), of("netA", ("c2", "c1")), False),
    ],
)
def test_runs_share_a_network_by_its_layers(one: DataFacts, other: DataFacts, same: bool) -> None:
    measured = {"a": ["output"], "b": ["output"]}
    groups = group_by_network(measured, {"a": one, "b": other})
    assert sorted(map(sorted, groups)) == ([["a", "b"]] if same else [["a"], ["b"]])


def test_where_a_network_is_not_known_its_measured_layers_are_compared() -> None:
    known = {"a": of("timm:resnet18", RESNET18)}
    measured = {"a": ["output"], "b": ["layer1.0", "output"], "c": ["blocks.0", "output"]}
    assert group_by_network(measured, known) == [["a", "b"], ["c"]]


def test_reduced_layers_are_left_out_beside_layers_as_they_are(make_scores: MakeScores) -> None:
    (score,) = make_scores(["a"], [1], ["test"])
    l2, pca = (with_layer(score, reduction=name) for name in ("l2", "pca:8"))
    alone = replace(l2, run="other")
    assert select_unreduced([score, l2, pca, alone]) == [score, alone]
    assert omission_notes([score, l2, pca]) == [
        "Unreduced layers; --layers '*/l2' shows them after one of 2 reductions."
    ]
    assert omission_notes([l2, pca]) == omission_notes([score]) == []
