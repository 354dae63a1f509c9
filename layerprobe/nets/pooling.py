"""The pool between the last map and the head."""

from __future__ import annotations

from torch import Tensor, nn

from layerprobe.system.errors import UnknownNameError
from layerprobe.values.layers import POOLS, gem


class GlobalPool(nn.Module):
    """(B, C, H, W) -> (B, C): one number a channel, whatever the map's size.

    Args:
        kind: `max`, `avg`, or `gem` (see `layerprobe.values.layers.gem`).
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind not in POOLS:
            raise UnknownNameError("pool", kind, POOLS)
        self.kind = kind

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C)."""
        if self.kind == "max":
            return maps.amax((2, 3))
        if self.kind == "avg":
            return maps.mean((2, 3))
        return gem(maps)

    def extra_repr(self) -> str:
        """The kind, for print(module)."""
        return self.kind
