"""Residual networks: torchvision's trunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

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
