from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from layerprobe.nets.googlenet import build
from layerprobe.system.errors import UnknownNameError

LAYERS = ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b")


@pytest.fixture(scope="module")
def pretrained() -> dict[str, Tensor]:
    """As torchvision's file: with auxiliary heads and classifier."""
    torch.manual_seed(7)
    return dict(models.GoogLeNet(aux_logits=True, init_weights=False).state_dict())


def without_heads(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if not name.startswith("aux")}


def test_layers_are_the_blocks_the_pool_and_the_head() -> None:
    net = build()
    assert list(net.layers) == [*(f"inception{block}" for block in LAYERS), "pool5", "fc6"]
    assert all(name == path for name, path in net.layers.items())


def test_there_are_no_auxiliary_heads_and_training_gives_one_tensor() -> None:
    module = build(fc=[64]).module.train()
    assert not [name for name, _ in module.named_modules() if "aux" in name]
    output = module(torch.randn(2, 3, 64, 64))
    assert isinstance(output, Tensor)
    assert output.shape == (2, 64)


def test_it_equals_torchvisions_network_that_converts_its_input(pretrained: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    theirs = models.GoogLeNet(aux_logits=False, transform_input=True, init_weights=False).eval()
    theirs.load_state_dict(without_heads(pretrained))
    theirs.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        expected = theirs(images)
        assert torch.equal(build(fc=[], weights=pretrained).module.eval()(images), expected)
        theirs.transform_input = False
        assert not torch.allclose(theirs(images), expected)


def test_a_reloaded_net_sees_the_same_input(pretrained: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    net = build(weights=pretrained, fc=[16], seed=1)
    again = build(fc=[16], seed=2)
    again.module.load_state_dict(net.module.state_dict())
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(again.module.eval()(images), net.module.eval()(images))


def test_the_input_conversion_has_no_tensors_in_the_state() -> None:
    assert not [name for name in build().module.state_dict() if name.startswith("transform_input")]


def test_the_classifiers_stay_out_and_the_head_is_new(pretrained: dict[str, Tensor]) -> None:
    assert build(weights=pretrained).new_parameters == {"fc6.weight", "fc6.bias"}


def test_the_start_is_torchvisions_own() -> None:
    torch.manual_seed(3)
    expected = models.GoogLeNet(aux_logits=False, init_weights=True).state_dict()
    ours = build(fc=[], seed=3).module.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in ours.items())


def test_the_last_block_can_start_from_scratch(pretrained: dict[str, Tensor]) -> None:
    net = build(weights=pretrained, from_scratch=["inception5b"])
    assert {name.partition(".")[0] for name in net.new_parameters} == {"inception5b", "fc6"}


def test_an_unknown_block_names_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match=r"googlenet to train from scratch 'inception5c'\. Did you mean 'incep"):
        build(from_scratch=["inception5c"])
