"""Small networks, and their layers as an explanation takes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from layerprobe.attribution.explaining import explain
from layerprobe.attribution.maps import ScoredLayer
from layerprobe.hooks import Measured, find_layers
from layerprobe.values.explanations import Explanation
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer
from layerprobe.workflow.python.user_model import measure_network, net_of

SIZE = 16


def image(seed: int, size: int = SIZE) -> Tensor:
    """(1, 3, size, size)"""
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(seed))


def measured_of(module: nn.Module, size: int = SIZE) -> Measured:
    return measure_network(net_of(module), (3, size, size))


def scored(name: str, network: Measured, similarity: str = "cosine") -> ScoredLayer:
    (layer,) = find_layers([name], network)
    return ScoredLayer(layer, RankedLayer(layer.key, NO_POST_PROCESSING, similarity))


def explained(
    module: nn.Module, name: str, similarity: str = "cosine", random: nn.Module | None = None, size: int = SIZE
) -> Explanation:
    """Why images 0 and 1 are similar at a layer."""
    network = measured_of(module, size)
    return explain(network, scored(name, network, similarity), (image(0, size), image(1, size)), random=random)


def convolutional(seed: int = 0) -> nn.Sequential:
    """Two convolutions with a maximum over 2 x 2 places, biases, and ReLUs in place."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3),
        nn.ReLU(inplace=True),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 6),
    )
