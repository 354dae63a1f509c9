from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layerprobe.store import FeatureKey, RankEntry, RankKey, Rows, write_ranks
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.values.layers import RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.values.retrieval import Ranks
from layerprobe.workflow.run.references import (
    LastTwo,
    RankedSplit,
    Reference,
    embedding_among,
    find_layers,
    find_reference,
    last_two,
    open_ranked_split,
    parse_reference,
    reference_text,
    require_any_right_item,
)
from tests.records import recorded
from tests.workflow.stored_ranks import ranked, store_ranks, write_run

C1, C2_MAX, C2_AVG, FC6 = ranked("c1@max"), ranked("c2@max"), ranked("c2@avg"), ranked("fc6@none")
LAYERS = ["pool4", "pool5", "fc6"]
DOT, PCA = ranked("fc6@none", similarity="dot"), ranked("fc6@none", "pca:8")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("netA", Reference("netA")),
        ("a~b+1.x#0", Reference("a~b+1.x", 0)),
        ("netA:fc6", Reference("netA", None, "fc6")),
        ("a~b:fc6~dot", Reference("a~b", None, "fc6", "none", "dot")),
        ("netA#12:c2#1@grid:2/pca:8~euclidean", Reference("netA", 12, "c2#1@grid:2", "pca:8", "euclidean")),
        ("netA:c2*@max", Reference("netA", None, "c2*@max")),
    ],
)
def test_words_are_divided_at_the_first_colon(text: str, found: Reference) -> None:
    assert parse_reference(text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (":fc6", "':fc6' names no run. Write [RUN"),
        ("netA:", "netA:: no layer after the colon"),
        ("netA#:fc6", "'' is not an epoch"),
        ("netA#last", "'last' is not an epoch"),
        ("netA:fc6/", "no post-processing after /"),
        ("netA:fc6~cosin", "unknown similarity 'cosin'. Did you mean 'cosine'?"),
    ],
)
def test_words_that_name_nothing_are_refused(text: str, message: str) -> None:
    with pytest.raises(LayerprobeError) as caught:
        parse_reference(text)
    assert message in str(caught.value)


@pytest.fixture
def ranked_split(tmp_path: Path) -> RankedSplit:
    run = write_run(tmp_path, "netA")
    layers = (C1, C2_MAX, C2_AVG, FC6, DOT, PCA)
    store_ranks(run, {layer: [1, 0] for layer in layers}, [0, 1])
    return open_ranked_split(run, None, "test")


def found(ranked_split: RankedSplit, text: str) -> list[RankedLayer]:
    return find_layers(ranked_split, parse_reference(f"netA:{text}"))


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("c1", [C1]),
        ("c2@avg", [C2_AVG]),
        ("c?", [C1, C2_MAX, C2_AVG]),
        ("*@max", [C1, C2_MAX]),
        ("*", [C1, C2_MAX, C2_AVG, FC6]),
        ("fc6~dot", [DOT]),
        ("fc6/pca:8", [PCA]),
    ],
)
def test_a_reference_finds_ranked_layers_in_network_order(
    ranked_split: RankedSplit, text: str, layers: list[RankedLayer]
) -> None:
    assert found(ranked_split, text) == layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fc7", "Did you mean 'fc6'? Known: c1@max, c2@max, c2@avg, fc6. Run layerprobe probe netA --epochs 2"),
        ("c2", "c2 has several pools. Choose one of c2@max, c2@avg"),
        ("c1~dot", "c1~dot is not ranked. Ranked: c1@max~cosine. Run layerprobe probe netA --epochs 2"),
        ("x*", "no ranked layer matches x*. Ranked: c1"),
    ],
)
def test_a_layer_that_is_not_ranked_is_told_with_what_is(ranked_split: RankedSplit, text: str, message: str) -> None:
    with pytest.raises(LayerprobeError) as caught:
        found(ranked_split, text)
    assert message in str(caught.value)


def test_binary_codes_are_searched_by_hamming_unless_told(ranked_split: RankedSplit) -> None:
    codes = ranked("fc6@none", "l2+binary", "hamming")
    store_ranks(ranked_split.run, {FC6: [1, 0], codes: [1, 0]}, [0, 1])
    assert found(open_ranked_split(ranked_split.run, None, "test"), "fc6/l2+binary") == [codes]


def test_a_mean_of_draws_is_found_where_each_of_them_is_ranked(ranked_split: RankedSplit) -> None:
    first, second = ranked("fc6@none", "random:2"), ranked("fc6@none", "random:2:1")
    store_ranks(ranked_split.run, {C1: [1, 0], first: [1, 0], second: [1, 1]}, [0, 1])
    there = open_ranked_split(ranked_split.run, None, "test")
    assert found(there, "fc6/random:2x2") == [ranked("fc6@none", "random:2x2")]
    with pytest.raises(RecipeError, match=r"fc6/random:2x3~cosine is not ranked\. .* --layers fc6 --post random:2x3"):
        found(there, "fc6/random:2x3")


def test_a_misspelt_post_processing_has_the_near_miss(ranked_split: RankedSplit) -> None:
    with pytest.raises(UnknownNameError, match="unknown post-processing 'pcaa:8'. Did you mean 'pca:'"):
        found(ranked_split, "fc6/pcaa:8")


def test_a_bare_name_is_a_run_or_a_layer_of_the_run_used_last(ranked_split: RankedSplit) -> None:
    run, cache = ranked_split.run, ranked_split.run.folder.parent
    run.write(recorded(run.read().as_json() | {"layer_order": ["c1", "fc6"]}))
    assert find_reference(cache, "netA") == (run, Reference("netA"))
    assert find_reference(cache, "fc6~dot") == (run, Reference(None, None, "fc6", "none", "dot"))
    with pytest.raises(UnknownNameError, match="unknown run, or layer of netA, 'fc7'. Did you mean 'fc6'"):
        find_reference(cache, "fc7")


def test_what_is_named_can_be_named_again(ranked_split: RankedSplit) -> None:
    text = reference_text(ranked_split.subject(PCA))
    assert text == "netA#2:fc6/pca:8~cosine"
    assert find_layers(ranked_split, parse_reference(text)) == [PCA]


def test_a_name_for_people_tells_what_is_not_plain(ranked_split: RankedSplit) -> None:
    names = [ranked_split.name(layer) for layer in (C1, C2_MAX, FC6, DOT, PCA)]
    assert names == ["c1@max", "c2@max", "fc6", "fc6~dot", "fc6/pca:8"]


def test_epochs_and_splits_that_are_not_there_are_told(ranked_split: RankedSplit) -> None:
    with pytest.raises(RecipeError, match="netA has no epoch 3. Choose one from 0 to 2"):
        open_ranked_split(ranked_split.run, 3, "test")
    with pytest.raises(UnknownNameError, match="Did you mean 'test'"):
        open_ranked_split(ranked_split.run, None, "tset")
    with pytest.raises(DataError, match="epoch 1 is not ranked .* layerprobe probe netA --epochs 1 --splits test"):
        open_ranked_split(ranked_split.run, 1, "test")


def test_the_embedding_of_a_model_from_python_is_not_known(ranked_split: RankedSplit) -> None:
    ranked_split.run.write(recorded(ranked_split.run.read().as_json() | {"from_python": True}))
    with pytest.raises(RecipeError, match="Name a layer, such as netA:c1"):
        find_layers(open_ranked_split(ranked_split.run, None, "test"), parse_reference("netA"))


def test_a_split_in_which_no_query_had_a_right_item_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "netA")
    zeros = np.zeros(3, np.int32)
    entry = RankEntry(
        RankKey(FeatureKey("netA", 2, "test", "w", "t", "m"), None, "s", 1e-12), Ranks(zeros, zeros, zeros, zeros)
    )
    write_ranks(run.rank_file(2, "test"), Rows(np.arange(3), ["a", "b", "c"]), {FC6: entry})
    with pytest.raises(DataError, match="netA: no query of test had a right item to find at epoch 2"):
        require_any_right_item(open_ranked_split(run, None, "test"))


def record(embedding: str = "fc6@none", **fields: object) -> RunRecord:
    """Of a network whose loss takes a layer."""
    network: dict[str, object] = {
        "layers": LAYERS,
        "embedding": embedding.split("@"),
        "cuts": {},
        "input": None,
        "files": {},
    }
    return recorded({"layer_order": LAYERS, "network": network} | fields)


def test_the_embedding_of_a_model_measured_from_python_is_not_known() -> None:
    unknown = recorded({"from_python": True, "layer_order": LAYERS})
    assert embedding_among(unknown, [ranked("fc6@none")]) is None
    assert last_two(unknown, [ranked("pool5@max"), ranked("fc6@none")]) is None


@pytest.mark.parametrize(
    ("measured", "found"),
    [
        (["fc6@none", "pool5@max", "pool4@max"], LastTwo(ranked("pool5@max"), ranked("fc6@none"), adjacent=True)),
        (["fc6@none", "pool4@max"], LastTwo(ranked("pool4@max"), ranked("fc6@none"), adjacent=False)),
        (["pool5@avg", "pool5@max", "fc6@none"], LastTwo(ranked("pool5@max"), ranked("fc6@none"), adjacent=True)),
        (["pool5@cls", "pool5@avg", "fc6@none"], LastTwo(ranked("pool5@avg"), ranked("fc6@none"), adjacent=True)),
        (
            ["pool4@max", "pool4+pool5@max", "fc6@none"],
            LastTwo(ranked("pool4@max"), ranked("fc6@none"), adjacent=False),
        ),
        (["pool4@max", "pool5@max"], None),
        (["fc6@none"], None),
    ],
)
def test_the_pair_is_the_embedding_and_the_last_layer_measured_before_it(
    measured: list[str], found: LastTwo | None
) -> None:
    assert last_two(record(), map(ranked, measured)) == found


def test_neither_of_the_pair_is_post_processed_or_searched_otherwise() -> None:
    layers = [ranked("pool4@max"), ranked("pool5@max", "l2"), ranked("pool5@max", similarity="dot"), ranked("fc6@none")]
    assert last_two(record(), layers) == LastTwo(layers[0], layers[-1], adjacent=False)


def test_the_similarity_is_the_recipes() -> None:
    dot = ranked("fc6@none", similarity="dot")
    assert embedding_among(record(recipe={"probe": {"similarity": "dot"}}), [ranked("fc6@none"), dot]) == dot


def test_the_embedding_has_the_pool_of_its_network() -> None:
    found = last_two(record("pool5@avg"), map(ranked, ["pool4@max", "pool5@max", "pool5@avg"]))
    assert found == LastTwo(ranked("pool4@max"), ranked("pool5@avg"), adjacent=True)


def test_a_layer_measured_after_the_embedding_is_not_before_it() -> None:
    layers = [ranked("pool4@max"), ranked("pool5@max"), ranked("fc6@none")]
    assert last_two(record("pool5@max"), layers) == LastTwo(layers[0], layers[1], adjacent=True)
