from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from layerprobe.nets.resnet import build_resnet18, build_resnet50
from layerprobe.system.errors import DataError, UnknownNameError


def test_layers_of_resnet18_are_the_blocks_the_pool_and_the_head() -> None:
    net = build_resnet18(fc=[64])
    blocks = [f"layer{stage}.{block}" for stage in range(1, 5) for block in range(2)]
    assert list(net.layers) == [*blocks, "pool5", "fc6"]
    assert all(name == path for name, path in net.layers.items())


def test_with_torchvisions_weights_resnet18_computes_torchvisions_pooled_features() -> None:
    torch.manual_seed(0)
    theirs = models.resnet18(weights=None).eval()
    net = build_resnet18(fc=[], weights=theirs.state_dict())
    theirs.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(net.module.eval()(images), theirs(images), rtol=1e-5, atol=1e-6)
    assert net.embedding_dim == 512
    assert not net.new_parameters


@pytest.fixture(scope="module")
def theirs() -> nn.Module:
    torch.manual_seed(7)
    network: nn.Module = models.resnet50(weights=None)
    return network.eval()


@pytest.fixture(scope="module")
def pretrained(theirs: nn.Module) -> dict[str, Tensor]:
    return theirs.state_dict()


def test_layers_of_resnet50_are_the_blocks_the_pool_and_the_head() -> None:
    stages = {1: 3, 2: 4, 3: 6, 4: 3}
    blocks = [f"layer{stage}.{block}" for stage, size in stages.items() for block in range(size)]
    net = build_resnet50(fc=[64, 32])
    assert list(net.layers) == [*blocks, "pool5", "fc6", "fc7"]
    assert all(name == path for name, path in net.layers.items())


def test_with_torchvisions_weights_resnet50_computes_torchvisions_pooled_features(
    theirs: nn.Module, pretrained: dict[str, Tensor]
) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 64)
    head = theirs.get_submodule("fc")
    inputs: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
    with torch.inference_mode():
        theirs(images)
        handle.remove()
        embeddings = build_resnet50(fc=[], weights=pretrained).module.eval()(images)
    torch.testing.assert_close(embeddings, inputs[0], rtol=1e-5, atol=1e-6)


def test_the_embedding_without_fully_connected_layers_has_2048_numbers() -> None:
    assert build_resnet50(fc=[]).embedding_dim == 2048


def test_the_classifier_stays_out_and_the_head_is_new(pretrained: dict[str, Tensor]) -> None:
    assert build_resnet50(weights=pretrained).new_parameters == {"fc6.weight", "fc6.bias"}


def test_the_start_is_torchvisions_own() -> None:
    torch.manual_seed(3)
    expected = models.resnet50(weights=None).state_dict()
    ours = build_resnet50(fc=[], seed=3).module.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in ours.items())


def test_the_last_block_can_start_from_scratch(pretrained: dict[str, Tensor]) -> None:
    net = build_resnet50(weights=pretrained, from_scratch=["layer4.2"])
    assert {name.rpartition(".")[0] for name in net.new_parameters} == {
        "layer4.2.conv1", "layer4.2.bn1", "layer4.2.conv2", "layer4.2.bn2", "layer4.2.conv3", "layer4.2.bn3", "fc6",
    }  # fmt: skip


def test_an_unknown_block_names_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match=r"resnet50 to train from scratch 'layer4\.3'\. Did you mean 'layer4"):
        build_resnet50(from_scratch=["layer4.3"])


def test_a_deeper_trunk_is_refused_although_it_has_every_tensor(pretrained: dict[str, Tensor]) -> None:
    deeper = pretrained | {"layer3.6.conv1.weight": torch.zeros(256, 1024, 1, 1)}
    with pytest.raises(
        DataError, match=r"than resnet50: there is no place for layer3\.6\.conv1\.weight\. Name the network"
    ):
        build_resnet50(weights=deeper)
