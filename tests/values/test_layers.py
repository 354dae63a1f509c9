"""Names of layers for people."""

from __future__ import annotations

import pytest

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.layers import (
    LayerKey,
    RankedLayer,
    find_layer,
    headline_layers,
    last_two_layers,
    layer_names,
    matching_layers,
    members_of,
    network_order,
    spoken_name,
    spoken_post_processing,
    unlike_text,
)
from tests.workflow.stored_ranks import ranked as ranked_layer


@pytest.mark.parametrize(
    "key", [LayerKey("pool5.3", "max"), LayerKey("layer4.2.relu#3", "grid:2"), LayerKey("a@b", "avg")], ids=str
)
def test_a_layers_key_reads_back_as_it_is_written(key: LayerKey) -> None:
    assert LayerKey.parse(key.stored) == key


@pytest.mark.parametrize("text", ["fc6", "@max", "fc6@", ""])
def test_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a layer and its pool, like 'pool5.3@max'"):
        LayerKey.parse(text)


def ordered(*texts: str, known: str = "conv pool5 fc6") -> list[str]:
    """Layers with their pools, in network order."""
    rankings = [RankedLayer(LayerKey.parse(text), "none", "cosine") for text in texts]
    return [str(ranked.layer) for ranked in network_order(rankings, known.split())]


def test_layers_stand_as_the_network_runs_them_whatever_was_measured_first() -> None:
    assert ordered("fc6@none", "pool5@max", "conv@max", "fc6@none") == ["conv@max", "pool5@max", "fc6"]


def test_the_pools_of_a_layer_stand_together_in_one_order() -> None:
    pools = ["conv@grid:2", "pool5@max", "conv@gem", "conv@grid:10", "conv@avg", "conv@max"]
    assert ordered(*pools) == ["conv@max", "conv@avg", "conv@gem", "conv@grid:2", "conv@grid:10", "pool5@max"]


def test_pools_of_tokens_follow_those_that_maps_have_too() -> None:
    pools = ["conv@grid:2", "conv@cls+avg", "conv@avg", "conv@cls", "conv@max"]
    assert ordered(*pools) == ["conv@max", "conv@avg", "conv@cls", "conv@cls+avg", "conv@grid:2"]


def test_post_processing_then_similarities_order_the_rankings_of_a_layer() -> None:
    fc6 = LayerKey("fc6", "none")
    expected = [("none", "cosine"), ("none", "dot"), ("l2", "cosine"), ("pca:8", "cosine"), ("pca:64", "cosine")]
    found = network_order([RankedLayer(fc6, *names) for names in reversed(expected)], ["fc6"])
    assert [(ranked.post_processing, ranked.similarity) for ranked in found] == expected


def test_layers_side_by_side_follow_the_last_of_them() -> None:
    found = ordered("fc6@none", "fc6+conv@max", "pool5@max", "conv+pool5@max", "pool5+fc6@max")
    assert found == ["pool5@max", "conv+pool5@max", "fc6", "fc6+conv@max", "pool5+fc6@max"]


def test_layers_whose_place_is_unknown_follow_as_they_are_found() -> None:
    found = ordered("b@max", "b+c@max", "a@max", "fc6@none", "b@avg", known="fc6")
    assert found == ["fc6", "b@max", "b@avg", "b+c@max", "a@max"]


STORED = [LayerKey("pool5.3", "max"), LayerKey("pool5.3", "avg"), LayerKey("fc6", "none")]


def test_a_layer_is_found_by_its_name_and_its_pool() -> None:
    assert find_layer("pool5.3@avg", STORED) == LayerKey("pool5.3", "avg")
    assert find_layer("fc6", STORED) == LayerKey("fc6", "none")


def test_a_layer_of_several_pools_is_not_guessed() -> None:
    with pytest.raises(RecipeError, match=r"pool5.3 has several pools. Choose one of pool5.3@max, pool5.3@avg\."):
        find_layer("pool5.3", STORED)


def test_a_layer_that_is_not_there_has_the_near_miss() -> None:
    with pytest.raises(UnknownNameError, match="unknown layer 'pool5.3@gem'. Did you mean 'pool5.3@max'"):
        find_layer("pool5.3@gem", STORED)


def test_vectors_side_by_side_are_two_layers() -> None:
    stored = [LayerKey("fc6", "none"), LayerKey("fc7", "none")]
    assert members_of(LayerKey("fc6+fc7", "none"), stored) == tuple(stored)


MAP, AVG, FC6, PCA, BITS, DOT = (
    RankedLayer(LayerKey(*key), post_processing, similarity)
    for key, post_processing, similarity in [
        (("p", "max"), "none", "cosine"), (("p", "avg"), "none", "cosine"), (("fc6", "none"), "none", "cosine"),
        (("fc6", "none"), "l2+pca:8", "cosine"), (("p", "max"), "binary", "hamming"),
        (("fc6", "none"), "none", "dot"),
    ]
)  # fmt: skip
EVERY = (MAP, AVG, BITS, FC6, PCA, DOT)


def test_a_name_has_the_pool_but_of_a_vector_and_the_post_processing() -> None:
    assert layer_names([MAP, AVG, FC6, PCA]) == ["p@max", "p@avg", "fc6", "fc6/l2+pca:8"]


def test_a_name_has_the_similarity_where_rows_differ_in_it_and_bits_have_but_one() -> None:
    assert layer_names([MAP, BITS]) == ["p@max", "p@max/binary"]
    assert layer_names([FC6, DOT, BITS]) == ["fc6~cosine", "fc6~dot", "p@max/binary"]


def test_every_name_means_the_layer_that_it_was_printed_for() -> None:
    for text, ranked in zip(layer_names(EVERY), EVERY, strict=True):
        assert matching_layers(text, EVERY) == matching_layers(f"netA#3:{text}", EVERY) == [ranked]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fc6", [FC6, DOT]),
        ("p", [MAP, AVG]),
        ("p/binary", [BITS]),
        ("fc6@none", [FC6, DOT]),
        ("fc6/l2+*", [PCA]),
        ("*@max/*", [MAP, BITS]),
        ("*~dot", [DOT]),
        ("p@gem", []),
    ],
)
def test_what_a_name_leaves_out_may_be_anything_but_post_processing(text: str, found: list[RankedLayer]) -> None:
    assert matching_layers(text, EVERY) == found


def test_a_colon_of_a_pool_or_post_processing_is_no_runs() -> None:
    grid = RankedLayer(LayerKey("p", "grid:2"), "none", "cosine")
    assert matching_layers("p@grid:2", [grid, MAP]) == [grid]
    assert matching_layers("fc6/l2+pca:8", EVERY) == [PCA]


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ("l2+whiten:128:0.5+l2", "partially whitened to 128"),
        ("whiten:64:1", "whitened to 64"),
        ("l2+whiten:64:0.3+l2", "whitened by 0.3 to 64"),
        ("l2+pca:8+l2", "PCA to 8"),
        ("random:16x5+l2", "random projection to 16"),
        ("l2+pca:64+binary", "PCA to 64, binary codes"),
        ("pca:8+l2@gallery", "PCA to 8, fitted on the gallery"),
        ("l2", "l2"),
        ("shift", "shift"),
    ],
)
def test_a_chain_is_named_by_what_it_does(chain: str, words: str) -> None:
    assert spoken_post_processing(chain, dimensions=True) == words


def test_a_layer_is_named_with_its_post_processing() -> None:
    ranked = RankedLayer(LayerKey("blocks.5.0", "avg"), "l2+whiten:128:0.5+l2", "cosine")
    assert spoken_name(ranked) == "blocks.5.0, partially whitened to 128"
    assert spoken_name(ranked, pool=True) == "blocks.5.0 (avg), partially whitened to 128"


@pytest.mark.parametrize(
    ("first", "second", "dims", "text"),
    [
        ("c1@max", "c2@max", (64, 64), ""),
        ("c1@max", "c2@avg", (64, 64), "they differ in pool (max, avg)"),
        ("c1@max", "fc6@none", (256, 1024), "they differ in dimensions (256, 1,024)"),
        ("c1@max", "c2@avg", (None, 64), "they differ in pool (max, avg)"),
        ("c1@max", "c2@avg", (8, 64), "they differ in pool (max, avg) and dimensions (8, 64)"),
    ],
)
def test_pool_and_dimensions_are_named(first: str, second: str, dims: tuple[int | None, int | None], text: str) -> None:
    assert unlike_text(ranked_layer(first), ranked_layer(second), dims) == text


def test_post_processing_is_named_last() -> None:
    text = "they differ in pool (max, avg), dimensions (8, 4) and post-processing (none, l2+pca:4)"
    assert unlike_text(ranked_layer("c1@max"), ranked_layer("c1@avg", "l2+pca:4"), (8, 4)) == text


def parsed_layer(text: str, post_processing: str = "none") -> RankedLayer:
    return RankedLayer(LayerKey.parse(text), post_processing, "cosine")


CHAIN = [parsed_layer(f"c{i}@max") for i in range(8)]


def names(few: list[RankedLayer]) -> list[str]:
    return [str(one.layer) for one in few]


def test_first_middle_and_the_last_two_are_the_few() -> None:
    assert names(headline_layers(CHAIN, {}, None)) == ["c0@max", "c3@max", "c6@max", "c7@max"]


def test_the_best_on_validation_is_among_them_the_first_of_equals() -> None:
    assert names(headline_layers(CHAIN, {CHAIN[2]: 0.5, CHAIN[4]: 0.5, CHAIN[7]: 0.4}, None)) == [
        "c0@max", "c2@max", "c3@max", "c6@max", "c7@max",
    ]  # fmt: skip


def test_layers_side_by_side_are_no_embedding() -> None:
    assert names(headline_layers([*CHAIN, parsed_layer("c6+c7@max")], {}, None)) == [
        "c0@max",
        "c3@max",
        "c6@max",
        "c7@max",
    ]


def test_of_several_rankings_of_a_layer_the_first_stands_for_it() -> None:
    layers = [
        parsed_layer(f"{name}@{pool}", how) for name in "abc" for pool in ("max", "avg") for how in ("none", "pca:8")
    ]
    assert headline_layers(layers, {}, None) == [parsed_layer("a@max"), parsed_layer("b@max"), parsed_layer("c@max")]


def test_one_layer_is_all_there_is() -> None:
    assert headline_layers(CHAIN[:1], {CHAIN[0]: 0.5}, None) == CHAIN[:1]
    assert headline_layers([], {}, None) == []


def test_the_embedding_and_the_layer_before_it_are_among_them_though_later_layers_are_measured() -> None:
    # c3 is the middle one of eight
    assert names(headline_layers(CHAIN, {}, CHAIN[5])) == ["c0@max", "c3@max", "c4@max", "c5@max"]
    assert names(last_two_layers(CHAIN, CHAIN[0])) == ["c0@max"]


def test_the_embedding_is_shown_with_its_own_pool() -> None:
    layers = [*CHAIN, parsed_layer("c7@avg")]
    assert names(last_two_layers(layers, layers[-1])) == ["c6@max", "c7@avg"]


def test_an_embedding_that_was_not_measured_leaves_the_last_layer() -> None:
    assert last_two_layers(CHAIN, parsed_layer("fc8@none")) == CHAIN[-2:]
