from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from layerprobe.nets import lenet
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


def test_weights_that_are_not_used_are_named_with_their_shapes() -> None:
    given = dict(lenet.build(fc=[16]).module.state_dict())
    assert lenet.build(fc=[16], weights=given).notes == ()
    assert lenet.build(fc=[8], weights=given, from_scratch=["fc6"]).notes == ()  # the recipe says so
    assert lenet.build(fc=[8], weights=given | {"classifier.weight": given["fc6.bias"]}).notes == (
        "not used of the weights: classifier.weight (there is no such layer),"
        f" fc6.weight (shape {tuple(given['fc6.weight'].shape)}, not (8, {given['fc6.weight'].shape[1]})),"
        " fc6.bias (shape (16,), not (8,))",
    )
    more = {f"aux{i}.weight": given["fc6.bias"] for i in range(7)}
    assert (
        lenet.build(fc=[16], weights=given | more).notes[0].endswith("aux3.weight (there is no such layer) and 3 more")
    )
