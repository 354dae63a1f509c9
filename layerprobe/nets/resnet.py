"""Residual networks: torchvision's trunks, a global pool (`avg`), fully connected layers.

ResNet18 has the layers layer1.0 ... layer4.1, pool5, fc6 ... Fehervari et al. 2019 use it for their ensembles on CUB200
(table 2).

ResNet50 has the layers layer1.0 ... layer4.2, pool5, fc6 ... Vo & Hays 2019 define NetA to NetF for VGG16 alone; here
the same heads sit on the pooled `layer4.2`, and NetB starts that block from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn
from torchvision import models

from layerprobe.nets.assembly import Backbone

_REPLACED = ("avgpool", "fc")


def resnet(name: str, network: Callable[..., nn.Module], blocks: tuple[int, ...], channels: int) -> Backbone:
    """A residual network without its classifier; layers `layerX.Y` are a block's output, after the sum and its ReLU."""

    def trunk() -> Mapping[str, nn.Module]:
        return {name: child for name, child in network(weights=None).named_children() if name not in _REPLACED}

    names = [f"layer{stage}.{block}" for stage, count in enumerate(blocks, start=1) for block in range(count)]
    return Backbone(
        name=name,
        trunk=trunk,
        layers={block: block for block in names},
        units={block: (block,) for block in names},
        channels=channels,
    )


build_resnet18 = resnet("resnet18", models.resnet18, (2, 2, 2, 2), 512).build

build_resnet50 = resnet("resnet50", models.resnet50, (3, 4, 6, 3), 2048).build
