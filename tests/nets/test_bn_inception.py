from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.nets.bn_inception import HalvingPool, build
from layerprobe.system.errors import DataError, UnknownNameError

# Block -> channels and side of its map for images of 224: Ioffe and Szegedy, Figure 5, with the Caffe network's widths.
MAPS = {
    "3a": (256, 28), "3b": (320, 28), "3c": (576, 14), "4a": (576, 14), "4b": (576, 14), "4c": (608, 14),
    "4d": (608, 14), "4e": (1056, 7), "5a": (1024, 7), "5b": (1024, 7),
}  # fmt: skip
HALVING = ("3c", "4e")


def caffe_pool(maps: Tensor) -> Tensor:
    return F.max_pool2d(maps, 3, 2, ceil_mode=True)


def port_features(w: dict[str, Tensor], bgr: Tensor) -> Tensor:
    """The port's forward up to its last map, from its file's names, written as a list of operations."""

    def unit(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = w[f"{name}.weight"]
        x = F.conv2d(x, weight, w[f"{name}.bias"], stride, weight.shape[-1] // 2)
        mean, variance, scale, shift = (
            w[f"{name}_bn.{key}"].reshape(-1, 1, 1) for key in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (variance + 1e-5).sqrt() * scale + shift).relu()

    x = caffe_pool(unit("conv1_7x7_s2", bgr, 2))
    x = caffe_pool(unit("conv2_3x3", unit("conv2_3x3_reduce", x)))
    for block in MAPS:
        name = f"inception_{block}_"
        stride = 2 if block in HALVING else 1
        triple = unit(f"{name}3x3", unit(f"{name}3x3_reduce", x), stride)
        double = unit(f"{name}double_3x3_1", unit(f"{name}double_3x3_reduce", x))
        double = unit(f"{name}double_3x3_2", double, stride)
        if block in HALVING:
            x = torch.cat([triple, double, caffe_pool(x)], 1)
            continue
        pooled = F.max_pool2d(x, 3, 1, 1) if block == "5b" else F.avg_pool2d(x, 3, 1, 1)
        x = torch.cat([unit(f"{name}1x1", x), triple, double, unit(f"{name}pool_proj", pooled)], 1)
    return x


def port_names() -> list[str]:
    """The convolutions of the port, as its file spells them."""
    stem = ["conv1_7x7_s2", "conv2_3x3_reduce", "conv2_3x3"]
    parts = ["3x3_reduce", "3x3", "double_3x3_reduce", "double_3x3_1", "double_3x3_2"]
    return stem + [
        f"inception_{block}_{part}"
        for block in MAPS
        for part in (parts if block in HALVING else ["1x1", *parts, "pool_proj"])
    ]


def in_port_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {re.sub(r"^inception(\d[a-e])\.", r"inception_\1_", name): value for name, value in state.items()}


@pytest.fixture(scope="module")
def port() -> dict[str, Tensor]:
    """As the port's file: BatchNorm's tensors of (1, C), no batch counters, a classifier."""
    generator = torch.Generator().manual_seed(3)
    weights = {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}
    for name, value in in_port_names(build(fc=[]).module.state_dict()).items():
        if "_bn." in name and not name.endswith("num_batches_tracked"):
            weights[name] = torch.rand((1, *value.shape), generator=generator) + 0.5
        elif value.dim():
            weights[name] = value
    return weights


def test_the_file_has_the_ports_names(port: dict[str, Tensor]) -> None:
    convolutions = [name.removesuffix(".weight") for name, value in port.items() if value.dim() == 4]
    assert convolutions == port_names()
    batch_norms = {name.partition("_bn.")[0] for name in port if "_bn." in name}
    assert batch_norms == set(port_names())


@pytest.mark.parametrize("side", [64, 96])
def test_with_the_ports_file_it_computes_the_ports_features(port: dict[str, Tensor], side: int) -> None:
    torch.manual_seed(0)
    net = build(fc=[], weights=port)
    rgb = torch.rand(2, 3, side, side)
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    bgr = 255 * rgb[:, [2, 1, 0]] - torch.tensor([104.0, 117.0, 128.0])[:, None, None]
    with torch.inference_mode():
        expected = port_features(port, bgr).mean((2, 3))
        embeddings = net.module.eval()((rgb - mean) / deviation)
    torch.testing.assert_close(embeddings, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
    assert not net.new_parameters


def test_with_a_classifier_of_1000_it_has_the_ports_11_295_240_parameters() -> None:
    assert sum(parameter.numel() for parameter in build(fc=[1000]).module.parameters()) == 11_295_240


def test_layers_are_the_blocks_with_their_maps_the_pool_and_the_head() -> None:
    net = build(fc=[64])
    assert list(net.layers) == [*(f"inception{block}" for block in MAPS), "pool5", "fc6"]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, path in net.layers.items():
        net.module.get_submodule(path).register_forward_hook(
            lambda _module, _args, output, name=name: shapes.update({name: tuple(output.shape[1:])})
        )
    with torch.inference_mode():
        net.module.eval()(torch.zeros(1, 3, 224, 224))
    maps = {f"inception{block}": (channels, side, side) for block, (channels, side) in MAPS.items()}
    assert shapes == maps | {"pool5": (1024,), "fc6": (64,)}


def test_the_halving_pool_is_caffes_for_even_sizes() -> None:
    torch.manual_seed(0)
    maps = torch.randn(1, 2, 6, 8)
    assert torch.equal(HalvingPool()(maps), caffe_pool(maps))


def test_the_halving_pool_keeps_the_last_row_of_an_odd_size() -> None:
    rows = torch.tensor([-5.0, -4.0, -3.0, -2.0, -1.0])[None, None, :, None]
    # Windows -5 -4 -3, -3 -2 -1, and -1 alone.
    assert HalvingPool()(rows).flatten().tolist() == [-3.0, -1.0, -1.0]


@pytest.mark.parametrize("side", [16, 50, 72])
def test_images_of_other_sizes_fit(side: int) -> None:
    assert build(fc=[2]).module.eval()(torch.zeros(1, 3, side, side)).shape == (1, 2)


def test_a_reloaded_net_is_the_same(port: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    net = build(fc=[8], weights=port, seed=1)
    again = build(fc=[8], weights=net.module.state_dict(), seed=2)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.module.eval()(images), net.module.eval()(images))


def test_the_last_block_can_start_from_scratch(port: dict[str, Tensor]) -> None:
    net = build(weights=port, from_scratch=["inception5b"])
    assert {name.partition(".")[0] for name in net.new_parameters} == {"inception5b", "fc6"}


def test_a_file_without_a_branch_is_refused(port: dict[str, Tensor]) -> None:
    weights = {name: value for name, value in port.items() if name != "inception_4e_3x3.bias"}
    with pytest.raises(
        DataError, match=r"network than bn_inception: inception4e\.3x3\.bias is missing\. Name the network"
    ):
        build(weights=weights)


def test_an_unknown_block_names_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match=r"bn_inception to train from scratch 'inception5c'\. Did you mean"):
        build(from_scratch=["inception5c"])
