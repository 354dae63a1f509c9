from __future__ import annotations

import pytest
from torch import nn

from layerprobe.nets.lenet import build
from layerprobe.taps import Measured, find_layers, forwards_as_json, measure_layers, recorded_forwards
from tests.taps.models import Layers, timm_vit

MADE_FROM = {"net": "lenet", "torch": "2.11"}


def unbuilt() -> nn.Module:
    raise AssertionError("the network is built")


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure_layers(build(fc=[8], seed=0), 28)


def test_layers_are_found_as_in_the_network_which_is_not_built(measured: Measured) -> None:
    text = forwards_as_json(measured, MADE_FROM).encode()
    found = recorded_forwards(text, MADE_FROM, unbuilt)
    assert found is not None
    for expressions in (["*"], ["modules"], ["*@avg"], ["c1+c3@max"]):
        assert find_layers(expressions, found) == find_layers(expressions, measured)


def test_tokens_are_found_as_in_the_network() -> None:
    measured = measure_layers(Layers(timm_vit(), {"1": "blocks.0", "2": "blocks.1"}, final_norm="norm"), 32)
    found = recorded_forwards(forwards_as_json(measured, MADE_FROM).encode(), MADE_FROM, lambda: measured.net.module)
    assert found is not None
    for expressions in (["*"], ["blocks.*.attn"], ["normed(1)"]):
        assert find_layers(expressions, found) == find_layers(expressions, measured)


def test_forwards_of_something_else_are_not_used(measured: Measured) -> None:
    text = forwards_as_json(measured, MADE_FROM).encode()
    assert recorded_forwards(text, {**MADE_FROM, "torch": "2.12"}, unbuilt) is None


@pytest.mark.parametrize("place", [-1, 0, 100])
def test_a_damaged_file_is_not_used(measured: Measured, place: int) -> None:
    text = bytearray(forwards_as_json(measured, MADE_FROM).encode())
    text[place] ^= 0x80
    assert recorded_forwards(bytes(text), MADE_FROM, unbuilt) is None


def test_a_value_of_another_type_is_not_used(measured: Measured) -> None:
    text = forwards_as_json(measured, MADE_FROM).replace('"channels":3', '"channels":"three"', 1)
    assert recorded_forwards(text.encode(), MADE_FROM, unbuilt) is None
