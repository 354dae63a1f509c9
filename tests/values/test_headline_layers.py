from __future__ import annotations

from layerprobe.values.headline_layers import headline_layers, last_two_layers
from layerprobe.values.keys import LayerKey, RankedLayer


def ranked(text: str, reduction: str = "none") -> RankedLayer:
    return RankedLayer(LayerKey.parse(text), reduction, "cosine")


CHAIN = [ranked(f"c{i}@max") for i in range(8)]


def names(few: list[RankedLayer]) -> list[str]:
    return [str(one.layer) for one in few]


def test_first_middle_and_the_last_two_are_the_few() -> None:
    assert names(headline_layers(CHAIN, {}, None)) == ["c0@max", "c3@max", "c6@max", "c7@max"]


def test_the_best_on_validation_is_among_them_the_first_of_equals() -> None:
    assert names(headline_layers(CHAIN, {CHAIN[2]: 0.5, CHAIN[4]: 0.5, CHAIN[7]: 0.4}, None)) == [
        "c0@max", "c2@max", "c3@max", "c6@max", "c7@max",
    ]  # fmt: skip


def test_layers_side_by_side_are_no_embedding() -> None:
    assert names(headline_layers([*CHAIN, ranked("c6+c7@max")], {}, None)) == ["c0@max", "c3@max", "c6@max", "c7@max"]


def test_of_several_rankings_of_a_layer_the_first_stands_for_it() -> None:
    layers = [ranked(f"{name}@{pool}", how) for name in "abc" for pool in ("max", "avg") for how in ("none", "pca:8")]
    assert headline_layers(layers, {}, None) == [ranked("a@max"), ranked("b@max"), ranked("c@max")]


def test_one_layer_is_all_there_is() -> None:
    assert headline_layers(CHAIN[:1], {CHAIN[0]: 0.5}, None) == CHAIN[:1]
    assert headline_layers([], {}, None) == []


def test_the_embedding_and_the_layer_before_it_are_among_them_though_later_layers_are_measured() -> None:
    # c3 is the middle one of eight
    assert names(headline_layers(CHAIN, {}, CHAIN[5])) == ["c0@max", "c3@max", "c4@max", "c5@max"]
    assert names(last_two_layers(CHAIN, CHAIN[0])) == ["c0@max"]


def test_the_embedding_is_shown_with_its_own_pool() -> None:
    layers = [*CHAIN, ranked("c7@avg")]
    assert names(last_two_layers(layers, layers[-1])) == ["c6@max", "c7@avg"]


def test_an_embedding_that_was_not_measured_leaves_the_last_layer() -> None:
    assert last_two_layers(CHAIN, ranked("fc8@none")) == CHAIN[-2:]
