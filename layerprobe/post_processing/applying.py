"""Features through post-processing, block by block, so that only the result is held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from layerprobe.post_processing.post_processing import FittedStep, NotApplicableError
from layerprobe.system.errors import NotFiniteError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ROWS = 4096  # of a block: 64 MiB at 2,048 dimensions in float64


class SlicedRows(Protocol):
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

    rows: SlicedRows
    device: torch.device

    def __iter__(self) -> Iterator[Tensor]:
        import torch

        for start in range(0, self.rows.shape[0], _ROWS):
            yield torch.as_tensor(self.rows[start : start + _ROWS]).to(self.device, torch.float64)


@dataclass(frozen=True, eq=False)
class PostProcessedRows:
    """Features that are post-processed as they are read in slices, so that they need not be held in memory.

    Args:
        rows: (N, D) features, N at least 1.
        post_process: see `process_blocks`.
        device: where they are post-processed.
    """

    rows: SlicedRows
    post_process: FittedStep
    device: torch.device

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(N, D')."""
        return self.rows.shape[0], self[:1].shape[1]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """float32, which holds float16 and int8 exactly, or uint8 of packed bits."""
        return self[:1].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Some rows, in the process's memory.

        Raises:
            NotApplicableError: see `process_blocks`.
            NotFiniteError: as there.
        """
        import torch

        block = torch.as_tensor(self.rows[rows]).to(self.device, torch.float64)
        values: NDArray[Any] = process_blocks([block], self.post_process, len(block)).cpu().numpy()
        return values


@dataclass(frozen=True, eq=False)
class Marked:
    """Some rows of blocks; blocks without any are passed over.

    Args:
        blocks: of N rows.
        marked: (N,) which of them.
    """

    blocks: Blocks
    marked: NDArray[np.bool_]

    def __iter__(self) -> Iterator[Tensor]:
        import torch

        start = 0
        for block in self.blocks:
            here = np.flatnonzero(self.marked[start : start + len(block)])
            start += len(block)
            if len(here):
                yield block[torch.from_numpy(here).to(block.device)]


@dataclass(frozen=True, eq=False)
class MappedBatches:
    """Batches through a map, each time they are gone through."""

    batches: Iterable[Tensor]
    through: FittedStep

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.through, self.batches)


def process_blocks(blocks: Iterable[Tensor], post_process: FittedStep, count: int) -> Tensor:
    """Features through post-processing.

    Args:
        blocks: (B, D) float64, N rows in all.
        post_process: gives (B, D'), of float64, float16 or int8 or, for packed bits, uint8.
        count: N.

    Returns:
        (N, D') float32, which holds float16 and int8 exactly, or uint8.

    Raises:
        NotApplicableError: numbers are beyond the range of float16.
        NotFiniteError: rows hold NaN or Inf, and the result is int8 or bits, which would hide it.
    """
    import torch

    values: Tensor | None = None
    start = bad = 0
    for block in blocks:
        block_values = post_process(block)
        if values is None:
            kind = torch.uint8 if block_values.dtype == torch.uint8 else torch.float32
            values = torch.empty((count, block_values.shape[1]), dtype=kind, device=block_values.device)
        values[start : start + len(block_values)] = block_values
        start += len(block_values)
        finite = block.isfinite().all(1)
        if block_values.dtype == torch.float16 and bool(block_values[finite].isinf().any()):
            problem = "float16: numbers are beyond its range, which ends at 65,504"
            raise NotApplicableError(problem, fix="Put l2 before float16")
        if not block_values.is_floating_point():
            bad += int((~finite).sum())
    if bad:
        raise NotFiniteError(bad, count)
    if values is None:
        raise ValueError("no features to post-process")
    return values
