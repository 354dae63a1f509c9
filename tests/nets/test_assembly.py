from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from layerprobe.registry import NETS, load


@pytest.mark.parametrize("name", list(NETS))
def test_every_network_takes_the_same_keys_which_a_recipe_can_read(name: str) -> None:
    build = load("network", NETS, name)
    assert list(inspect.signature(build).parameters) == [
        "fc", "pool", "norm", "dropout", "fc_bias", "fc_norm", "fc_dropout", "freeze_bn", "weights", "from_scratch",
        "seed",
    ]  # fmt: skip
    assert get_type_hints(build).keys() == {*inspect.signature(build).parameters, "return"}


@pytest.mark.parametrize("name", list(NETS))
def test_layers_are_in_execution_order(name: str) -> None:
    net = load("network", NETS, name)(fc=[4], norm="layer")
    paths = [path for path, _ in net.module.named_modules()]
    places = [paths.index(path) for path in net.layers.values()]
    assert places == sorted(places)
