"""What Inception networks share: their inputs, their block, and the names in Caffe's weights files.

The conversion of the input is part of the network, so that a reloaded network never sees another input. Its constants
are not in the network's state, since weights files have no such names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from layerprobe.values import network_input

_MEAN, _DEVIATION = torch.tensor([network_input.MEAN, network_input.DEVIATION], dtype=torch.float64)


class TransformInput(nn.Module):
    """(B, 3, H, W) normalised with ImageNet's mean and deviation -> normalised with 0.5 and 0.5.

    torchvision's weights of GoogLeNet, ported from TensorFlow, want the latter. torchvision converts only where a
    network was made with its weights.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", (_DEVIATION / 0.5).float()[:, None, None], persistent=False)
        self.register_buffer("shift", ((_MEAN - 0.5) / 0.5).float()[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 3, H, W)."""
        return images * self.scale + self.shift


class CaffeInput(nn.Module):
    """(B, 3, H, W) RGB normalised with ImageNet's mean and deviation -> BGR from 0 to 255, less a mean.

    Args:
        mean: of blue, green and red, from 0 to 255.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: tuple[float, float, float]) -> None:
        super().__init__()
        subtracted = torch.tensor(mean, dtype=torch.float64)
        self.register_buffer("scale", (255 * _DEVIATION.flip(0)).float()[:, None, None], persistent=False)
        self.register_buffer("shift", (255 * _MEAN.flip(0) - subtracted).float()[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB -> (B, 3, H, W) BGR."""
        return images.flip(1) * self.scale + self.shift


Stages = list[tuple[str, nn.Module]]


class Inception(nn.Module):
    """Branches side by side, whose outputs are concatenated: (B, C, H, W) -> (B, D, H', W').

    Args:
        branches: of each, its modules with their names, in execution order; all names are children of the block.
    """

    def __init__(self, branches: Sequence[Stages]) -> None:
        super().__init__()
        self._branches = [[name for name, _ in branch] for branch in branches]
        for branch in branches:
            for name, module in branch:
                self.add_module(name, module)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, H', W')."""
        outputs = []
        for branch in self._branches:
            output = maps
            for name in branch:
                output = self.get_submodule(name)(output)
            outputs.append(output)
        return torch.cat(outputs, 1)


def convolution(
    name: str, channels: tuple[int, int], size: int, *, stride: int = 1, batch_norm: bool = False
) -> Stages:
    """A convolution with a bias, padded so that its stride alone changes the size; `name_bn` if requested; a ReLU."""
    stages: Stages = [(name, nn.Conv2d(*channels, size, stride, size // 2))]
    if batch_norm:
        stages.append((f"{name}_bn", nn.BatchNorm2d(channels[1])))
    return [*stages, (f"{name}_relu", nn.ReLU(inplace=True))]


def from_caffe(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Caffe's names, as converters write them, -> ours.

    `inception_3a/1x1.weight` or `inception_3a_1x1.weight` becomes `inception3a.1x1.weight`, `conv1/7x7_s2.weight`
    `conv1_7x7_s2.weight`; names of ours stay. A BatchNorm's (1, C), which Caffe has, becomes (C,).
    """
    renamed = {}
    for name, tensor in weights.items():
        name = re.sub(r"^inception_(\d[a-e])[_/]", r"inception\1.", name).replace("/", "_")
        renamed[name] = tensor.squeeze(0) if "_bn." in name and tensor.dim() == 2 else tensor
    return renamed
