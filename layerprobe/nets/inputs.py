"""Convert the input that every network gets into the one that a network's weights were trained on.

The conversion is part of the network, so that a reloaded network never sees another input. Its constants are not in the
network's state, since weights files have no such names.
"""

from __future__ import annotations

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
