"""The nearest centroid of every row, in many sets of centroids at once, as float64 arithmetic would have it.

Scores come from a blocked product in float32. Where a rigorous bound of its rounding leaves more than one candidate,
those are compared by distances in float64. The answer therefore rests neither on the other sets of the product nor on
how a machine multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerprobe.ranking.items import BLOCK_ROWS
from layerprobe.ranking.products import Product, float32

if TYPE_CHECKING:
    from torch import Tensor

# Squared distances that differ by no more, relative to the smaller, are tied.
TIE_WINDOW = 1e-12
# Numbers of float64 gathered at once: 8 MiB.
_GATHERED = 2**20


@dataclass(frozen=True, eq=False)
class Points:
    """Rows, and what finds their nearest centroids.

    Args:
        rows: (N, D) as they came.
        low: (N, D + 1) float32 of (row - mean) * scale and a 1, which takes up a centroid's bias.
        lengths: (N,) float64 of (row - mean) * scale.
        mean: (D,) float64.
        scale: a power of two that brings the largest number to about 1, so that no square leaves float32.
        scatter: sum of the squared distances to the mean.
        product: multiplies `low`.
    """

    rows: Tensor
    low: Tensor
    lengths: Tensor
    mean: Tensor
    scale: float
    scatter: float
    product: Product

    @property
    def side(self) -> int:
        """Rows and columns of a block of scores that suits the caches."""
        return 1024 if self.rows.device.type == "cpu" else self.product.tile

    def nearest(self, centroids: Tensor) -> Tensor:
        """Nearest of k centroids in each of R sets, the first of those that tie.

        Args:
            centroids: (R, k, D) float64; one set only where k is above `side`.

        Returns:
            (N, R) int64.
        """
        import torch

        search = _Search(self, centroids, *self._factors(centroids))
        rows = self.side**2 // min(centroids.shape[0] * centroids.shape[1], self.side)
        return torch.cat([search.block(start, start + rows) for start in range(0, len(self.rows), rows)])

    def _factors(self, centroids: Tensor) -> tuple[Tensor, Tensor]:
        """(R, k, D + 1) float32 that `low` is multiplied by, and (N, R) by how much two scores may be wrong.

        A score is x . c - |c|^2 / 2: half of |x|^2 - |x - c|^2.
        """
        import torch

        moved = (centroids - self.mean) * self.scale
        squares = moved.square().sum(2)
        low = torch.cat([moved, -squares[..., None] / 2], 2).to(self.low.dtype)
        longest = squares.amax(1).sqrt()
        # Each of the D + 1 sums, the rounding of both factors, of the bias and of the threshold.
        error = 1.01 * (low.shape[2] + 4) * self.product.unit
        sizes = self.lengths[:, None] * longest + longest.square() / 2
        return low, (2 * error * sizes + 1e-30).to(self.low.dtype)


def points_of(rows: Tensor) -> Points:
    """Prepare finite rows (N, D) of any real type, where they lie."""
    import torch

    blocks = rows.split(BLOCK_ROWS)
    mean = torch.stack([block.double().sum(0) for block in blocks]).sum(0) / len(rows)
    peak = max(float((block.double() - mean).abs().max()) for block in blocks)
    scale = math.ldexp(1.0, -max(-1000, math.frexp(peak)[1]))
    product = float32(rows.device)
    low = rows.new_ones((len(rows), rows.shape[1] + 1), dtype=product.dtype)
    lengths = rows.new_empty(len(rows), dtype=torch.float64)
    for start, block in zip(range(0, len(rows), BLOCK_ROWS), blocks, strict=True):
        centred = (block.double() - mean) * scale
        low[start : start + BLOCK_ROWS, :-1] = centred
        lengths[start : start + BLOCK_ROWS] = centred.norm(dim=1)
    scatter = float(lengths.square().sum()) / scale / scale
    return Points(rows, low, lengths, mean, scale, scatter, product)


@dataclass(frozen=True, eq=False)
class _Search:
    """One search for the nearest of `centroids`; `low` and `windows` as `Points._factors` gives them."""

    points: Points
    centroids: Tensor
    low: Tensor
    windows: Tensor

    def block(self, start: int, stop: int) -> Tensor:
        """(B, R) nearest of some rows."""
        import torch

        rows, windows, (sets, k, _) = self.points.low[start:stop], self.windows[start:stop], self.low.shape
        best = torch.full_like(windows, -torch.inf)
        count, place = torch.zeros_like(best), torch.zeros_like(best)
        for tile, index in self._tiles():
            near = self.points.product.multiply(rows, tile.flatten(0, 1)).unflatten(1, (sets, -1))
            top = near.amax(2)
            # Earlier candidates that this tile's best rules out are forgotten.
            kept = best >= top - windows
            best = torch.maximum(best, top)
            near.ge_((best - windows)[..., None])
            count = count * kept + near.sum(2)
            # One candidate's place is the sum of all; faster than an argmax.
            place = place * kept + (near.flatten(0, 1) @ index).unflatten(0, (-1, sets))
        nearest = place.long()
        unclear = (count != 1).nonzero()
        if len(unclear):
            row, which = unclear.T
            if k > self.points.side:
                scores = self.points.product.multiply(rows[row], self.low[0])
                candidates = scores >= scores.amax(1, keepdim=True) - windows[row]
            else:
                candidates = near[row, which]
            nearest[row, which] = self._settle(start + row, which, candidates)
        return nearest

    def _tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(R, C, D + 1) factors of some centroids of each set, and (C,) their places."""
        import torch

        side, k = self.points.side, self.low.shape[1]
        index = torch.arange(k, dtype=self.low.dtype, device=self.low.device)
        for start in range(0, k, side):
            yield self.low[:, start : start + side], index[start : start + side]

    def _settle(self, rows: Tensor, sets: Tensor, candidates: Tensor) -> Tensor:
        """(P,) nearest of some candidates (P, k) of P rows in a set each, by distances in float64."""
        import torch

        pair, cluster = candidates.nonzero().T
        at_once = max(1, _GATHERED // self.centroids.shape[2])
        distances = torch.cat([
            (self.points.rows[rows[some]].double() - self.centroids[sets[some], there]).square_().sum(1)
            for some, there in zip(pair.split(at_once), cluster.split(at_once), strict=True)
        ])  # fmt: skip
        least = distances.new_full((len(rows),), torch.inf).scatter_reduce(0, pair, distances, "amin")
        tied = distances <= least[pair] * (1 + TIE_WINDOW)
        return torch.full_like(rows, candidates.shape[1]).scatter_reduce(0, pair[tied], cluster[tied], "amin")
