from __future__ import annotations

import pytest

from layerprobe.plots.names import common_pool, layer_labels
from layerprobe.values.keys import LayerKey, RankedLayer


def pooled(layer: str, pool: str) -> RankedLayer:
    return RankedLayer(LayerKey(layer, pool), "none", "cosine")


def test_a_layer_shown_with_one_of_its_pools_is_called_with_that() -> None:
    shown, other = pooled("blocks.11", "avg"), pooled("blocks.11", "cls")
    assert layer_labels([("vit", shown)]) == {shown: "blocks.11"}
    assert layer_labels([("vit", shown)], [shown, other]) == {shown: "blocks.11@avg"}


@pytest.mark.parametrize(
    ("pools", "expected"), [(["max", "max", "none"], ["max"]), (["avg", "cls"], []), (["none"], [])]
)
def test_the_pool_that_all_layers_have(pools: list[str], expected: list[str]) -> None:
    assert common_pool(pooled(f"c{place}", pool) for place, pool in enumerate(pools)) == expected
