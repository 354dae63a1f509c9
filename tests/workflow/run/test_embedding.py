from __future__ import annotations

import pytest

from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.workflow.run.references import LastTwo, embedding_among, last_two
from tests.records import recorded

LAYERS = ["pool4", "pool5", "fc6"]


def ranked(text: str, reduction: str = "none", similarity: str = "cosine") -> RankedLayer:
    return RankedLayer(LayerKey.parse(text), reduction, similarity)


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


def test_neither_of_the_pair_is_reduced_or_searched_otherwise() -> None:
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
