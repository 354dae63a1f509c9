from __future__ import annotations

import pytest
import torch

from layerprobe.nets.lenet import build


def test_layers_are_the_convolutions_the_pool_and_the_bottleneck_after_f6() -> None:
    net = build(fc=[84, 2])
    assert list(net.layers) == ["c1", "c3", "c5", "pool5", "fc6", "fc7"]
    assert [name for name, _ in net.module.named_children()][-3:] == ["fc6", "relu6", "fc7"]


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("side", [28, 32])
def test_digits_of_28_and_32_pixels_become_points(side: int, dim: int) -> None:
    assert build(fc=[84, dim]).module.eval()(torch.zeros(5, 3, side, side)).shape == (5, dim)


def test_of_28_pixels_the_last_convolution_is_one_position_as_lecuns() -> None:
    module = build(fc=[]).module.eval()
    trunk = torch.nn.Sequential(*(child for name, child in module.named_children() if name != "pool5"))
    maps = trunk(torch.randn(2, 3, 28, 28))
    assert maps.shape == (2, 120, 1, 1)


def test_it_has_lecuns_parameters_but_for_connections_and_colours() -> None:
    # C1 156 and, for two further colours, 300; C3 with all 6 x 16 connections 2,416; C5 48,120; F6 10,164.
    count = sum(parameter.numel() for parameter in build(fc=[84]).module.parameters())
    assert count == 156 + 300 + 2_416 + 48_120 + 10_164
