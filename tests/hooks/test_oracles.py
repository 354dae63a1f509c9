"""Every listed layer of the three networks, against forwards written by hand and against captum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from captum.attr import LayerActivation
from torch import Tensor, nn

from layerprobe.hooks import capture_layers, list_layers, resolve_hooks
from layerprobe.nets import googlenet, resnet, vgg16_bn
from layerprobe.nets.net import Net

SIZES = {"vgg16_bn": 32, "resnet50": 64, "googlenet": 64}


def images_for(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    size = SIZES[name]
    return torch.randn(2, 3, size, size, generator=generator).contiguous(memory_format=torch.channels_last)


def lively(net: Net, images: Tensor) -> Net:
    """The net in channels_last, its batch normalisation with statistics of the images and an offset of its own."""
    net.module.to(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(2)
    norms = [part for part in net.module.modules() if isinstance(part, nn.BatchNorm2d)]
    with torch.no_grad():
        for norm in norms:
            norm.momentum = 1.0
            norm.bias.copy_(torch.randn(len(norm.bias), generator=generator) / 4)
        net.module.train()(images)
    return net


@pytest.fixture(scope="module")
def nets() -> dict[str, Net]:
    build = {"vgg16_bn": vgg16_bn.build, "resnet50": resnet.build_resnet50, "googlenet": googlenet.build}
    return {name: lively(build[name](fc=[32, 16], seed=3), images_for(name)) for name in SIZES}


def part_of(module: nn.Module) -> Callable[..., Tensor]:
    """A function that runs the submodule at a path on a tensor."""
    return lambda path, x: module.get_submodule(path)(x)


def vgg16_bn_by_hand(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    part, found, index = part_of(module), {}, 0
    for stage, count in enumerate((2, 2, 3, 3, 3), start=1):
        for number in range(1, count + 1):
            x = F.relu(part(f"features.{index + 1}", part(f"features.{index}", x)))
            found[f"pool{stage}.{number}"] = x.amax((2, 3))
            index += 3
        if stage < 5:
            x = F.max_pool2d(x, 2, 2)
            index += 1
    return found | head_by_hand(module, x.amax((2, 3)))


def head_by_hand(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    part = part_of(module)
    fc6 = part("fc6", x)
    return {"fc6": fc6, "fc7": part("fc7", F.relu(fc6))}


def resnet50_by_hand(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    part, found = part_of(module), {}
    x = F.max_pool2d(F.relu(part("bn1", part("conv1", x))), 3, 2, 1)
    for stage, count in enumerate((3, 4, 6, 3), start=1):
        for number in range(count):
            block = f"layer{stage}.{number}"
            y = F.relu(part(f"{block}.bn1", part(f"{block}.conv1", x)))
            y = F.relu(part(f"{block}.bn2", part(f"{block}.conv2", y)))
            y = part(f"{block}.bn3", part(f"{block}.conv3", y))
            if number == 0:
                x = part(f"{block}.downsample.1", part(f"{block}.downsample.0", x))
            x = F.relu(y + x)
            found[block] = x.amax((2, 3))
    pooled = x.mean((2, 3))
    return found | {"pool5": pooled} | head_by_hand(module, pooled)


def googlenet_by_hand(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    part, found = part_of(module), {}

    def unit(path: str, x: Tensor) -> Tensor:
        return F.relu(part(f"{path}.bn", part(f"{path}.conv", x)))

    scale = torch.tensor([0.229 / 0.5, 0.224 / 0.5, 0.225 / 0.5]).view(3, 1, 1)
    shift = torch.tensor([(0.485 - 0.5) / 0.5, (0.456 - 0.5) / 0.5, (0.406 - 0.5) / 0.5]).view(3, 1, 1)
    x = F.max_pool2d(unit("conv1", x * scale + shift), 3, 2, ceil_mode=True)
    x = F.max_pool2d(unit("conv3", unit("conv2", x)), 3, 2, ceil_mode=True)
    for block in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        if block == "4a":
            x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        if block == "5a":
            x = F.max_pool2d(x, 2, 2, ceil_mode=True)
        name = f"inception{block}"
        branches = [
            unit(f"{name}.branch1", x),
            unit(f"{name}.branch2.1", unit(f"{name}.branch2.0", x)),
            unit(f"{name}.branch3.1", unit(f"{name}.branch3.0", x)),
            unit(f"{name}.branch4.1", F.max_pool2d(x, 3, 1, 1, ceil_mode=True)),
        ]
        x = torch.cat(branches, 1)
        found[name] = x.amax((2, 3))
    pooled = x.mean((2, 3))
    return found | {"pool5": pooled} | head_by_hand(module, pooled)


BY_HAND = {"vgg16_bn": vgg16_bn_by_hand, "resnet50": resnet50_by_hand, "googlenet": googlenet_by_hand}


def captured(net: Net, name: str, expressions: list[str]) -> dict[str, Tensor]:
    """Layer -> features, by hooks."""
    hooks = resolve_hooks(expressions, net, image_size=SIZES[name])
    with capture_layers(net.module, hooks) as features_of:
        features = features_of(images_for(name))
    return {hook.layer: features[hook.key] for hook in hooks}


@pytest.mark.parametrize("name", SIZES)
def test_hooks_equal_a_forward_written_by_hand_to_the_last_bit(nets: dict[str, Net], name: str) -> None:
    net = nets[name]
    with torch.inference_mode():
        expected = BY_HAND[name](net.module.eval(), images_for(name))
    found = captured(net, name, list(net.layers))
    assert list(found) == list(expected) == list(net.layers)
    assert {layer: (found[layer] - expected[layer]).abs().max().item() for layer in found} == dict.fromkeys(found, 0.0)
    assert all(values.std(0).max() > 0.01 for values in found.values())  # the images differ, or equality says little


@pytest.mark.parametrize("name", SIZES)
def test_hooks_equal_captums_layer_activation_then_pooled(nets: dict[str, Net], name: str) -> None:
    net = nets[name]
    net.module.eval()
    modules = [net.module.get_submodule(path) for path in net.layers.values()]
    with torch.no_grad():
        outputs = LayerActivation(net.module, modules).attribute(images_for(name))
    pooled = [output.amax((2, 3)) if output.ndim == 4 else output for output in outputs]
    found = captured(net, name, list(net.layers))
    assert all(torch.equal(found[layer], values) for layer, values in zip(net.layers, pooled, strict=True))


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("vgg16_bn", [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6),
        ("resnet50", [256] * 3 + [512] * 4 + [1024] * 6 + [2048] * 3 + [2048]),
        ("googlenet", [256, 480, 512, 512, 512, 528, 832, 832, 1024, 1024]),
    ],
)
def test_layers_are_listed_in_execution_order_with_their_dimensions(
    nets: dict[str, Net], name: str, dims: list[int]
) -> None:
    infos = list_layers(nets[name], SIZES[name])
    assert [info.name for info in infos] == list(nets[name].layers)
    assert [info.module for info in infos] == list(nets[name].layers.values())
    assert [info.dim for info in infos] == [*dims, 32, 16]
    vectors = {"pool5", "fc6", "fc7"}
    assert [info.kind for info in infos] == ["vector" if info.name in vectors else "map" for info in infos]
    assert {info.calls for info in infos} == {1}


def test_batch_normalisation_before_an_in_place_relu_keeps_its_negatives(nets: dict[str, Net]) -> None:
    net = nets["vgg16_bn"]
    before = captured(net, "vgg16_bn", ["features.41", "pool5.3"])
    relu = net.module.get_submodule("features.42")
    assert isinstance(relu, nn.ReLU)
    assert relu.inplace
    relu.inplace = False
    kept = captured(net, "vgg16_bn", ["features.41"])
    relu.inplace = True
    assert before["features.41"].min() < 0
    assert torch.equal(before["features.41"], kept["features.41"])
    assert torch.equal(before["features.41"].clamp(min=0), before["pool5.3"])


def test_a_residual_blocks_last_normalisation_is_not_the_blocks_output(nets: dict[str, Net]) -> None:
    found = captured(nets["resnet50"], "resnet50", ["layer4.2.bn3", "layer4.2"])
    assert not torch.equal(found["layer4.2.bn3"], found["layer4.2"])
    assert found["layer4.2.bn3"].min() < 0


def test_googlenets_normalisation_keeps_its_negatives(nets: dict[str, Net]) -> None:
    assert captured(nets["googlenet"], "googlenet", ["inception5b.branch1.bn"]).popitem()[1].min() < 0


def test_pools_are_after_the_relu_and_fully_connected_layers_before_it(nets: dict[str, Net]) -> None:
    found = captured(nets["vgg16_bn"], "vgg16_bn", ["pool5.3", "fc6"])
    assert found["pool5.3"].min() >= 0
    assert found["fc6"].min() < 0


def test_the_third_call_of_a_blocks_relu_is_the_blocks_output(nets: dict[str, Net]) -> None:
    net = nets["resnet50"]
    hooks = resolve_hooks(["layer4.2.relu#1", "layer4.2.relu#3", "layer4.2"], net, image_size=64)
    assert [(str(hook.key), hook.call, hook.dim) for hook in hooks] == [
        ("layer4.2.relu#1@max", 1, 512),
        ("layer4.2.relu#3@max", 3, 2048),
        ("layer4.2@max", 1, 2048),
    ]
    found = captured(net, "resnet50", ["layer4.2.relu#1", "layer4.2.relu#3", "layer4.2"])
    assert torch.equal(found["layer4.2.relu#3"], found["layer4.2"])
    assert found["layer4.2.relu#1"].shape == (2, 512)
