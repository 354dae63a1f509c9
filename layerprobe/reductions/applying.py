"""Features through a reduction, block by block, so that only the result is held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from layerprobe.errors import NotFiniteError
from layerprobe.reductions.reduction import Reduce

_ROWS = 4096  # of a block: 64 MiB at 2,048 dimensions in float64


class Rows(Protocol):
    """Features that are read in slices: a tensor, an array, or a table on disk."""

    @property
    def shape(self) -> Any:
        """(N, D)."""

    def __getitem__(self, rows: slice) -> Any:
        """Some rows."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Features as float64 blocks on a device, which may be gone through several times.

    Args:
        rows: (N, D) features.
        device: of the blocks.
    """

    rows: Rows
    device: torch.device

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, self.rows.shape[0], _ROWS):
            yield torch.as_tensor(self.rows[start : start + _ROWS]).to(self.device, torch.float64)


def reduced(blocks: Iterable[Tensor], reduce: Reduce, count: int) -> Tensor:
    """Features through a reduction.

    Args:
        blocks: (B, D) float64, N rows in all.
        reduce: gives (B, D'), of float64 or, for packed bits, uint8.
        count: N.

    Returns:
        (N, D') float32 or uint8.

    Raises:
        NotFiniteError: rows hold NaN or Inf, and the result is bits, which would hide it.
    """
    found: Tensor | None = None
    start = bad = 0
    for block in blocks:
        part = reduce(block)
        if found is None:
            kind = torch.uint8 if part.dtype == torch.uint8 else torch.float32
            found = torch.empty((count, part.shape[1]), dtype=kind, device=part.device)
        found[start : start + len(part)] = part
        start += len(part)
        if part.dtype == torch.uint8:
            bad += int((~block.isfinite()).any(1).sum())
    if bad:
        raise NotFiniteError(bad, count)
    if found is None:
        raise ValueError("no features to reduce")
    return found
