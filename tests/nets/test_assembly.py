from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from layerprobe.nets import bn_inception, googlenet, googlenet_caffe, lenet, resnet18, resnet50, vgg16_bn

BUILDERS = {
    "bn_inception": bn_inception.build,
    "googlenet": googlenet.build,
    "googlenet_caffe": googlenet_caffe.build,
    "lenet": lenet.build,
    "resnet18": resnet18.build,
    "resnet50": resnet50.build,
    "vgg16_bn": vgg16_bn.build,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_every_network_takes_the_same_keys_which_a_recipe_can_read(name: str) -> None:
    build = BUILDERS[name]
    assert list(inspect.signature(build).parameters) == [
        "fc", "pool", "norm", "dropout", "fc_bias", "fc_norm", "fc_dropout", "freeze_bn", "weights", "from_scratch",
        "seed",
    ]  # fmt: skip
    assert get_type_hints(build).keys() == {*inspect.signature(build).parameters, "return"}


@pytest.mark.parametrize("name", BUILDERS)
def test_layers_are_in_execution_order(name: str) -> None:
    net = BUILDERS[name](fc=[4], norm="layer")
    paths = [path for path, _ in net.module.named_modules()]
    places = [paths.index(path) for path in net.layers.values()]
    assert places == sorted(places)
