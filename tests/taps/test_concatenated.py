from __future__ import annotations

import re

import pytest

from layerprobe.system.errors import LayerprobeError
from layerprobe.taps import find_layers, measure_layers, member_taps, skipped_pool_lines
from layerprobe.values.layers import LayerKey
from tests.taps.models import Layers, timm_vit


def found(net: Layers, *expressions: str, pools: tuple[str, ...] | None = ("max",), size: int = 8) -> list[str]:
    return [str(layer.key) for layer in find_layers(expressions, measure_layers(net, size), pools=pools)]


def test_layers_side_by_side_have_the_networks_order_and_one_pool(net: Layers) -> None:
    assert found(net, "pool2+pool1") == found(net, "pool1+pool2@max") == ["pool1+pool2@max"]
    assert found(net, "pool1+conv+pool2@avg") == ["conv+pool1+pool2@avg"]
    assert found(net, "pool2+pool1", "pool1+pool2") == ["pool1+pool2@max"]


def test_a_map_and_a_vector_have_the_maps_pool(net: Layers) -> None:
    (layer,) = find_layers(["fc6+pool1@avg"], measure_layers(net, 8))
    assert layer.key == LayerKey("pool1+fc6", "avg")
    assert [tap.key for tap in member_taps([layer])] == [LayerKey("pool1", "avg"), LayerKey("fc6", "none")]
    assert layer.dim == 4 + 4
    assert found(net, "last+fc6", pools=("max", "avg")) == ["fc6+last"]


def test_each_pool_that_is_asked_for_makes_a_layer(net: Layers) -> None:
    assert found(net, "pool1+fc6", pools=("max", "avg")) == ["pool1+fc6@max", "pool1+fc6@avg"]
    # gem needs values above 0, which conv does not have
    assert found(net, "conv+pool2", pools=("gem", "avg")) == ["conv+pool2@avg"]


def test_tokens_side_by_side_have_the_pools_of_tokens() -> None:
    net = Layers(timm_vit(), {"a": "blocks.0", "b": "blocks.1"}, final_norm="norm")
    assert found(net, "b+a", pools=None, size=32) == ["a+b@cls", "a+b@avg"]
    assert found(net, "normed(b)+normed(a)@cls+avg", size=32) == ["normed(a)+normed(b)@cls+avg"]
    assert found(net, "b+normed(b)@cls", size=32) == ["b+normed(b)@cls"]


def test_side_by_side_follow_the_last_of_their_layers(net: Layers) -> None:
    assert found(net, "fc6", "pool1+pool2", "pool2", "conv+pool2", "conv") == [
        "conv@max", "pool2@max", "conv+pool2@max", "pool1+pool2@max", "fc6",
    ]  # fmt: skip


def test_a_pool_that_globbed_layers_cannot_have_is_said(net: Layers) -> None:
    # Convolution and normalisation go below 0, the ReLU does not; a vector needs no pool.
    measured = measure_layers(Layers(net.module, {"fc6": "fc6"}), 8)
    below = "gem skipped for conv, norm: conv@gem: the layer has values below 0, which GeM would raise to 0"
    assert "conv@gem" not in [str(layer.key) for layer in find_layers(["*[!6]@gem", "fc?@gem"], measured)]
    assert skipped_pool_lines(["*[!6]@gem", "fc?@gem"], measured) == [below]


def test_a_pool_is_said_that_a_layer_lacks_beside_another(net: Layers) -> None:
    assert found(net, "pool1", "fc6", pools=("max", "grid:9")) == ["pool1@max", "fc6"]
    assert skipped_pool_lines(["pool1", "fc6", "pool1+pool2"], measure_layers(net, 8), pools=("max", "grid:9")) == [
        "grid:9 skipped for pool1: pool1@grid:9: the map is 8 x 8"
    ]


def test_a_layer_is_extracted_once(net: Layers) -> None:
    layers = find_layers(["pool1+pool2", "pool1+fc6", "pool1"], measure_layers(net, 8), pools=["max"])
    assert sorted(tap.layer for tap in member_taps(layers)) == ["fc6", "pool1", "pool2"]


def test_a_module_whose_own_name_has_a_plus_is_a_layer(net: Layers) -> None:
    named = Layers(net.module, {"rgb+depth": "norm", "pool2": "drop"})
    assert found(named, "rgb+depth") == ["rgb+depth@max"]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("pool1+pool*", "pool1+pool*: pool* may be several layers. Name every layer of A+B itself."),
        ("modules+fc6", "modules+fc6: modules may be several layers. Name every layer of A+B itself."),
        ("pool1+", "pool1+: a layer is missing beside +. Name every layer of A+B itself."),
        ("pool1+norm", "pool1+norm: a layer stands there twice. Name each layer once."),
        ("pool1+fc6+pool1", "pool1+fc6+pool1: a layer stands there twice. Name each layer once."),
        ("pool1@max+fc6", "pool1@max+fc6: A+B has one pool. Write it once, at the end, like A+B@max."),
        ("pool1+pool3", "unknown layer 'pool3'. Did you mean 'pool2'? Known: pool1, pool2, fc6, aux."),
        ("pool1+pool2@mx", "unknown pool 'mx'. Did you mean 'max'?"),
        ("pool1+fc6@none", "pool1 is a map (4, 8, 8) and needs a pool."),
        ("pool1+pool2@grid:5", "pool2@grid:5: the map is 4 x 4."),
    ],
)
def test_what_is_no_layer_side_by_side_is_refused(net: Layers, expression: str, message: str) -> None:
    with pytest.raises(LayerprobeError, match=re.escape(message)):
        found(net, expression)
