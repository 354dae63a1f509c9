"""Tiles of similarities: mask the pairs of one class, and count those above thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.ranking.products import Product

# bfloat16 is exact for whole numbers up to this.
_EXACT_IN_BFLOAT16 = 256
# If fewer than 1 / _FEW of a tile's pairs are of one class, they are masked one by one.
_FEW = 8
# Of no more classes the pairs are masked class by class.
_CLASSES = 256


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Bounds of each query's nearest positive among rounded similarities.

    Args:
        low: (Q,) an item below it is surely further away.
        high: (Q,) an item above it is surely closer.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, nearest: Tensor, margin: Tensor, product: Product) -> Thresholds:
        """Thresholds of the type of a product's results.

        The product's sums are rounded to that type as these thresholds are, and rounding keeps the order: a sum that is
        not above `nearest + margin` does not come out above `high`, and one that is not below `nearest - margin` does
        not come out below `low`. A lone query, whose nearest positive is at -inf, gets thresholds that nothing reaches.

        Args:
            nearest: (Q,) float64 similarity to the nearest positive, less the query's constant.
            margin: (Q,) float64 tie window and tolerance.
            product: how the similarities are computed.
        """
        paired = nearest.isfinite()
        low, high = (
            (nearest + sign * margin).where(paired, nearest.new_tensor(float("inf"))).to(product.result)
            for sign in (-1, 1)
        )
        return cls(low, high)

    def __getitem__(self, rows: slice | Tensor) -> Thresholds:
        return Thresholds(self.low[rows], self.high[rows])


def of_one_class(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> bool:
    """Whether all pairs of a tile are of one class, so that nothing is to be counted; the labels are sorted."""
    return bool(rows[0] == rows[-1] == columns[0] == columns[-1])


def mask_classes(similarities: Tensor, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
    """Put the pairs of one class at -inf; the labels are sorted."""
    if rows[-1] < columns[0] or columns[-1] < rows[0]:
        return
    starts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
    first_columns, end_columns = (np.searchsorted(columns, rows[starts], side) for side in ("left", "right"))
    heights, widths = np.diff(starts, append=len(rows)), end_columns - first_columns
    total, shared = int(heights @ widths), np.flatnonzero(widths)
    if similarities.device.type == "cpu" and len(shared) <= _CLASSES:
        # NumPy, which has no bfloat16, writes a small part in a fraction of torch's time.
        values: Any = similarities.numpy() if similarities.dtype == torch.float32 else similarities
        for some in shared:
            values[starts[some] : starts[some] + heights[some], first_columns[some] : end_columns[some]] = -np.inf
        return
    if total * _FEW > similarities.numel():
        query_labels, gallery_labels = (torch.from_numpy(labels).to(similarities.device) for labels in (rows, columns))
        similarities.masked_fill_(query_labels[:, None] == gallery_labels, -torch.inf)
    elif total:
        first_columns, lengths = np.repeat(first_columns, heights), np.repeat(widths, heights)
        # Column indices of all runs, one run after the other.
        places = np.arange(total) + np.repeat(first_columns - (np.cumsum(lengths) - lengths), lengths)
        index = np.stack([np.repeat(np.arange(len(rows)), lengths), places])
        similarities[tuple(torch.from_numpy(index).to(similarities.device))] = -torch.inf


def count_rows(similarities: Tensor, thresholds: Thresholds) -> Tensor:
    """int64 (2, A): how many of each row's similarities (A, B) are at least `low` (A,), and above `high`."""
    # Marks of the similarities' own type: Booleans take several times as long to make and to sum.
    marks, counts = torch.empty_like(similarities), []
    for compare, bound in ((torch.ge, thresholds.low), (torch.gt, thresholds.high)):
        compare(similarities, bound[:, None], out=marks)
        if marks.dtype != torch.bfloat16 or marks.shape[1] % _EXACT_IN_BFLOAT16:
            counts.append(marks.sum(1, dtype=torch.float32))
        else:
            runs = marks.view(-1, _EXACT_IN_BFLOAT16)
            counts.append(torch.mv(runs, runs.new_ones(runs.shape[1])).view(len(marks), -1).float().sum(1))
    return torch.stack(counts).long()


def count_columns(similarities: Tensor, thresholds: Thresholds) -> Tensor:
    """int64 (2, B): how many of each column's similarities (A, B) are at least `low` (B,), and above `high`."""
    marks, counts = torch.empty_like(similarities), []
    for compare, bound in ((torch.ge, thresholds.low), (torch.gt, thresholds.high)):
        compare(similarities, bound, out=marks)
        if marks.dtype != torch.bfloat16:
            counts.append(torch.mv(marks.T, marks.new_ones(len(marks))))
        elif len(marks) % _EXACT_IN_BFLOAT16:
            counts.append(marks.sum(0, dtype=torch.float32))
        else:
            runs = marks.view(-1, _EXACT_IN_BFLOAT16, marks.shape[1])
            counts.append(torch.bmm(runs.new_ones(len(runs), 1, runs.shape[1]), runs)[:, 0].float().sum(0))
    return torch.stack(counts).long()


def places_between(similarities: Tensor, thresholds: Thresholds) -> tuple[Tensor, Tensor]:
    """Rows and columns of the similarities (A, B) that are neither below `low` (A,) nor above `high`."""
    # New memory, row by row: a transposed tile of one column might lie otherwise.
    inside, under = similarities.new_empty((2, *similarities.shape))
    torch.ge(similarities, thresholds.low[:, None], out=inside)
    torch.le(similarities, thresholds.high[:, None], out=under)
    inside.mul_(under)
    together = 8 // inside.element_size()
    if inside.shape[1] % together:
        rows, columns = inside.nonzero().unbind(1)
        return rows, columns
    # Few pairs are: search them eight bytes at a time.
    words = inside.view(torch.int64).nonzero()
    which, offset = inside.view(len(inside), -1, together)[words[:, 0], words[:, 1]].nonzero().unbind(1)
    return words[which, 0], words[which, 1] * together + offset
