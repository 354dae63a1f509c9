"""What networks that were first defined for Caffe share: the inception block, and the names in their weights files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

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
