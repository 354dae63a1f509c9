"""k-means by Lloyd's algorithm: many restarts side by side, as float64 arithmetic would have it.

Scores of centroids come from a blocked product in float32. Where a rigorous bound of its rounding leaves more than one
candidate, those are compared by distances in float64. So the answer depends neither on the other sets in the product
nor on how a machine multiplies. Scores that take little memory are kept: centroids that did not move need no second
product.

Rows are assigned by one blocked product for all restarts; sums are float64, and changed only by the rows that moved. A
restart ends when an assignment changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from layerprobe.ranking.items import BLOCK_ROWS
from layerprobe.ranking.products import Product, float32
from layerprobe.ranking.vectors import tensor_of
from layerprobe.system.computing import full_precision
from layerprobe.system.errors import NotFiniteError

# Squared distances that differ by no more, relative to the smaller, are tied.
TIE_WINDOW = 1e-12
# Numbers of float64 gathered at once: 8 MiB.
_GATHERED = 2**20
# Scores kept from one search to the next: 64 MiB.
_KEPT = 2**24


@dataclass(frozen=True, eq=False)
class Points:
    """Rows, and what finds their nearest centroids.

    Args:
        rows: (N, D) as they came.
        low: (N, D + 1) float32 of (row - centre) * scale and a 1, which multiplies a centroid's bias.
        lengths: (N, 1) float32 of (row - centre) * scale.
        centre: (D,) float64, the middle of most rows.
        scale: a power of two that brings the largest number to about 1, so that no square leaves float32.
        scatter: sum of the squared distances to the centre.
        product: multiplies `low`.
    """

    rows: Tensor
    low: Tensor
    lengths: Tensor
    centre: Tensor
    scale: float
    scatter: float
    product: Product

    @property
    def side(self) -> int:
        """Rows and columns of a block of scores that suits the caches."""
        return 1024 if self.rows.device.type == "cpu" else self.product.tile

    def sets_at_once(self, k: int) -> int:
        """How many sets of k centroids to search together: enough for a product, few enough to keep their scores."""
        most = max(1, 2 * self.side // k)
        return min(most, _KEPT // (len(self.rows) * k) or most)

    def factors(self, centroids: Tensor) -> tuple[Tensor, Tensor]:
        """(R, k, D + 1) float32 that `low` is multiplied by, and (R,) the length of each set's longest centroid.

        A score is x . c - |c|^2 / 2: half of |x|^2 - |x - c|^2.
        """
        moved = (centroids - self.centre) * self.scale
        squares = moved.square().sum(2)
        low = torch.cat([moved, -squares[..., None] / 2], 2).to(self.low.dtype)
        return low, squares.amax(1).sqrt().to(low.dtype)

    def windows(self, lengths: Tensor, best: Tensor, longest: Tensor) -> Tensor:
        """How far below the best score that of the nearest centroid may lie.

        The error of a score grows with the length of its centroid. A centroid nearer than the one with the best score
        is no longer than the row and its distance from that one together: a few far centroids blur nothing near.

        Args:
            lengths: (B, 1) of the rows.
            best: (B, R) score.
            longest: (R,) of the centroids.

        Returns:
            (B, R)
        """
        # D + 1 sums, and the rounding of both factors, of the bias and of the threshold.
        error = 1.01 * (self.low.shape[1] + 4) * self.product.unit
        squares = ((1 + 8 * error) * lengths.square() - 2 * best) / (1 - 8 * error)
        reach = torch.minimum(lengths + squares.clamp_(min=0).sqrt_(), longest)
        return 2 * error * (lengths + reach / 2) * reach + 1e-30


def points_of(rows: Tensor) -> Points:
    """Prepare finite rows (N, D) of any real type, where they lie."""
    blocks = rows.split(BLOCK_ROWS)
    mean = torch.stack([block.double().sum(0) for block in blocks]).sum(0) / len(rows)
    far = torch.cat([(block.double() - mean).norm(dim=1) for block in blocks])
    # Mean of the nearer half: a few rows far away would move the centre from the others and cost them digits.
    half = (far <= far.median()).split(BLOCK_ROWS)
    sums = torch.stack([block[near].double().sum(0) for block, near in zip(blocks, half, strict=True)]).sum(0)
    centre = sums / sum(int(near.sum()) for near in half)
    peak = max(float((block.double() - centre).abs().max()) for block in blocks)
    scale = math.ldexp(1.0, -max(-1000, math.frexp(peak)[1]))
    product = float32(rows.device)
    low = rows.new_ones((len(rows), rows.shape[1] + 1), dtype=product.dtype)
    lengths = rows.new_empty((len(rows), 1), dtype=torch.float64)
    for start, block in zip(range(0, len(rows), BLOCK_ROWS), blocks, strict=True):
        centred = (block.double() - centre) * scale
        low[start : start + BLOCK_ROWS, :-1] = centred
        lengths[start : start + BLOCK_ROWS, 0] = centred.norm(dim=1)
    scatter = float(lengths.square().sum()) / scale / scale
    return Points(rows, low, lengths.to(product.dtype), centre, scale, scatter, product)


class CentroidSearch:
    """Nearest centroids of points, again and again.

    Args:
        points: what is assigned.
        sets: R.
        k: centroids in a set, at most `Points.side` unless R is 1.
    """

    def __init__(self, points: Points, sets: int, k: int) -> None:
        self.points = points
        self.size = points.side**2 // min(sets * k, points.side)  # rows in a block
        self.centroids = points.centre.new_full((sets, k, len(points.centre)), torch.nan)  # equal to nothing
        self.keeps = k <= points.side and len(points.rows) * sets * k <= _KEPT
        self.scores: dict[int, Tensor] = {}  # first row -> (B, R, k)

    def keep(self, sets: list[int]) -> None:
        """Drop all but some sets."""
        self.centroids = self.centroids[sets]
        self.scores = {start: scores[:, sets] for start, scores in self.scores.items()}

    def nearest(self, centroids: Tensor) -> Tensor:
        """Nearest of k centroids in each of R sets, the first of those that tie.

        Args:
            centroids: (R, k, D) float64.

        Returns:
            (N, R) int64.
        """
        self.changed = (centroids != self.centroids).any(2).flatten().nonzero().flatten()
        self.centroids = centroids
        self.low, self.longest = self.points.factors(centroids)
        return torch.cat([self._block(start) for start in range(0, len(self.points.rows), self.size)])

    def _block(self, start: int) -> Tensor:
        """(B, R) nearest of some rows."""
        lengths = self.points.lengths[start : start + self.size]
        best = lengths.new_full((len(lengths), len(self.low)), -torch.inf)
        count, column_sum = torch.zeros_like(best), torch.zeros_like(best)
        index = torch.arange(self.low.shape[1], dtype=self.low.dtype, device=self.low.device)
        for offset, scores in self._tiles(start, len(lengths)):
            top = scores.amax(2)
            before, best = best, torch.maximum(best, top)
            windows = self.points.windows(lengths, best, self.longest)
            # Earlier candidates that this tile's best rules out are forgotten.
            still = before >= best - windows
            near = torch.ge(scores, (best - windows)[..., None], out=torch.empty_like(scores))
            count = count * still + near.sum(2)
            # With one candidate the sum of the candidates' places is its place; faster than an argmax.
            places = near.flatten(0, 1) @ index[offset : offset + scores.shape[2]]
            column_sum = column_sum * still + places.view_as(column_sum)
        nearest = column_sum.long()
        unclear = (count != 1).nonzero()
        if len(unclear):
            row, which = unclear.T
            if near.shape[2] < len(index):
                scores = self.points.product.multiply(self.points.low[start + row], self.low[0])
                candidates = scores >= scores.amax(1, keepdim=True) - windows[row]
            else:
                candidates = near[row, which]
            nearest[row, which] = self._settle(start + row, which, candidates)
        return nearest

    def _tiles(self, start: int, count: int) -> Iterator[tuple[int, Tensor]]:
        """Scores (B, R, C) of some rows, and which centroid of each set is their first."""
        rows, side = self.points.low[start : start + count], self.points.side
        sets, k, _ = self.low.shape
        if start in self.scores:
            scores = self.scores[start]
            new = self.points.product.multiply(rows, self.low.flatten(0, 1)[self.changed])
            scores.view(count, -1).scatter_(1, self.changed.expand(count, -1), new)
            yield 0, scores
            return
        for offset in range(0, k, side):
            tile = self.low[:, offset : offset + side].flatten(0, 1)
            scores = self.points.product.multiply(rows, tile).unflatten(1, (sets, -1))
            if self.keeps:
                self.scores[start] = scores
            yield offset, scores

    def _settle(self, rows: Tensor, sets: Tensor, candidates: Tensor) -> Tensor:
        """(P,) nearest of some candidates (P, k) of P rows in a set each, by distances in float64."""
        pair, cluster = candidates.nonzero().T
        at_once = max(1, _GATHERED // self.low.shape[2])
        distances = torch.cat([
            (self.points.rows[rows[some]].double() - self.centroids[sets[some], there]).square_().sum(1)
            for some, there in zip(pair.split(at_once), cluster.split(at_once), strict=True)
        ])  # fmt: skip
        least = distances.new_full((len(rows),), torch.inf).scatter_reduce(0, pair, distances, "amin")
        tied = distances <= least[pair] * (1 + TIE_WINDOW)
        return torch.full_like(rows, candidates.shape[1]).scatter_reduce(0, pair[tied], cluster[tied], "amin")


# Rows whose moves are summed at once. The order of a sum, and so its last bits, depends on nothing else.
_SUMMED_ROWS = 2**13


@dataclass(frozen=True, eq=False)
class Clustering:
    """One restart.

    Args:
        labels: (N,) cluster of each row, 0 ... k - 1.
        inertia: sum of the rows' squared distances to the means of their clusters, float64.
        iterations: how often the rows were assigned.
        converged: whether the last assignment changed nothing: a fixed point.
    """

    labels: NDArray[np.int64]
    inertia: float
    iterations: int
    converged: bool


def kmeans(
    features: ArrayLike | Tensor, k: int, *, seeds: Sequence[int], iterations: int = 100
) -> tuple[Clustering, ...]:
    """Cluster rows by Lloyd's algorithm, once for each seed.

    Lloyd, Least squares quantization in PCM, IEEE Transactions on Information Theory 28 (1982). The first centroids
    are k different rows (`initial_rows`). A row goes to the nearest centroid, the first of those that tie. A cluster
    without rows takes the row farthest from the mean of its own cluster, of those in clusters of at least two; several
    such clusters take the next farthest, in their order. With fewer than k different rows there are that many clusters.

    Args:
        features: (N, D), any real type; computed where it lies. float32 rows are exact; lengths between 1e-150 and
            1e150.
        k: number of clusters, from 1 to N.
        seeds: one restart each.
        iterations: assignments after which a restart ends where it is, at least 1.

    Returns:
        One clustering a seed, in their order; a seed's does not depend on the others.

    Raises:
        NotFiniteError: a row holds NaN or Inf; with the number of rows.
        ValueError: shapes, k, seeds or iterations out of range.
    """
    rows = _check_rows(features, k)
    if iterations < 1:
        raise ValueError(f"iterations = {iterations}: must be at least 1")
    with torch.no_grad(), full_precision(rows.device):
        points = points_of(rows)
        together = points.sets_at_once(k)
        clusterings: list[Clustering] = []
        for start in range(0, len(seeds), together):
            firsts = np.stack([initial_rows(rows, k, seed) for seed in seeds[start : start + together]])
            clusterings += _Restarts(points, torch.from_numpy(firsts).to(rows.device)).run(iterations)
    return tuple(clusterings)


def initial_rows(features: ArrayLike | Tensor, k: int, seed: int) -> NDArray[np.int64]:
    """Index of the rows that a restart starts from.

    Args:
        features: (N, D).
        k: from 1 to N.
        seed: of numpy's default generator.

    Returns:
        (k,) the first rows of a random permutation of all rows, without those equal to an earlier one; fewer than k
        where there are no more.
    """
    rows = tensor_of(features)
    order = np.random.default_rng(seed).permutation(len(rows))
    chosen: dict[bytes, int] = {}
    for start in range(0, len(rows), k):
        some = order[start : start + k]
        # -0 is 0, whose bits are others.
        values = (rows[some].double() + 0.0).cpu().numpy()
        for i, row in zip(some, values, strict=True):
            chosen.setdefault(row.tobytes(), int(i))
        if len(chosen) >= k:
            break
    return np.array(list(chosen.values())[:k], np.int64)


def _check_rows(features: ArrayLike | Tensor, k: int) -> Tensor:
    rows = tensor_of(features)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"features: expected (N, D), neither 0, got {tuple(rows.shape)}")
    if not 1 <= k <= len(rows):
        raise ValueError(f"k = {k}: must be at least 1 and at most the number of rows, {len(rows)}")
    bad = sum(int((~block.isfinite()).any(1).sum()) for block in rows.split(BLOCK_ROWS))
    if bad:
        raise NotFiniteError(bad, len(rows))
    return rows


class _Restarts:
    """Restarts in progress: R of them with k clusters each.

    `labels` is (N, R), -1 before the first assignment; `sums` (R, k, D) float64 and `counts` (R, k) belong to them.
    """

    def __init__(self, points: Points, firsts: Tensor) -> None:
        self.points = points
        self.search = CentroidSearch(points, *firsts.shape)
        self.centroids = points.rows[firsts].double()  # (R, k, D)
        self.sums = torch.zeros_like(self.centroids)
        self.counts = torch.zeros_like(firsts)
        self.labels = firsts.new_full((len(points.rows), len(firsts)), -1)

    def run(self, iterations: int) -> list[Clustering]:
        """Assign and average until nothing moves; each restart ends for itself."""
        ended: dict[int, Clustering] = {}
        running = list(range(len(self.counts)))
        for iteration in range(1, iterations + 1):
            moved = self.assign().tolist()
            for position, restart in enumerate(running):
                if restart not in ended and (not moved[position] or iteration == iterations):
                    labels = self.labels[:, position].cpu().numpy().copy()
                    ended[restart] = Clustering(labels, self.inertia(position), iteration, not moved[position])
            staying = [position for position, restart in enumerate(running) if restart not in ended]
            if not staying:
                break
            # Restarts that ended stay in the arrays, at little cost, until copying the others is worth it.
            if 2 * len(staying) <= len(running):
                self.search.keep(staying)
                running = [running[position] for position in staying]
                self.sums, self.counts = self.sums[staying], self.counts[staying]
                self.labels = self.labels[:, staying]
            for position in (self.counts == 0).any(1).nonzero().flatten().tolist():
                self.fill(position)
            self.centroids = self.sums / self.counts[..., None]
        return [ended[restart] for restart in sorted(ended)]

    def inertia(self, restart: int) -> float:
        """Sum of the squared distances to the clusters' means: the whole scatter less that of the means."""
        counts = self.counts[restart]
        means = self.sums[restart] / counts.clamp(min=1)[:, None] - self.points.centre
        return max(0.0, self.points.scatter - float((means.square().sum(1) * counts).sum()))

    def assign(self) -> Tensor:
        """Move rows to their nearest centroids; (R,) how many moved."""
        nearest = self.search.nearest(self.centroids)
        changed = nearest != self.labels
        for start in range(0, len(changed), _SUMMED_ROWS):
            block = slice(start, start + _SUMMED_ROWS)
            self.move(block, changed[block], nearest[block])
        self.labels = nearest
        return changed.sum(0)

    def move(self, block: slice, changed: Tensor, nearest: Tensor) -> None:
        """Take a block's rows (B, R) out of the sums and counts of their old clusters and into their new ones."""
        row, restart = changed.nonzero().T
        if not len(row):
            return
        offset = restart * self.counts.shape[1]
        old, new = self.labels[block][row, restart], nearest[row, restart]
        leaving = old >= 0
        clusters = torch.cat([offset[leaving] + old[leaving], offset + new])
        signs = torch.cat([-torch.ones_like(old[leaving]), torch.ones_like(new)])
        rows, bag_rows = torch.cat([row[leaving], row]).unique(return_inverse=True)
        clusters, order = clusters.sort(stable=True)
        touched, sizes = clusters.unique_consecutive(return_counts=True)
        # A bag of rows for each cluster: unlike index_add, in a fixed order on every device.
        bags = torch.nn.functional.embedding_bag(
            bag_rows[order],
            self.points.rows[block][rows].double(),
            sizes.cumsum(0) - sizes,
            mode="sum",
            per_sample_weights=signs[order].double(),
        )
        self.sums.view(-1, self.sums.shape[2])[touched] += bags
        self.counts.view(-1).index_add_(0, clusters, signs[order])

    def fill(self, restart: int) -> None:
        """Give each empty cluster of a restart the row farthest from its mean."""
        rows, labels = self.points.rows, self.labels[:, restart]
        sums, counts = self.sums[restart], self.counts[restart]
        means = sums / counts.clamp(min=1)[:, None]
        distances = torch.cat([
            (block.double() - means[there]).square_().sum(1)
            for block, there in zip(rows.split(BLOCK_ROWS), labels.split(BLOCK_ROWS), strict=True)
        ])  # fmt: skip
        farthest = iter(distances.sort(descending=True, stable=True).indices.tolist())
        for cluster in (counts == 0).nonzero().flatten().tolist():
            # There are at least k different rows, so that some cluster has two.
            row = next(row for row in farthest if counts[labels[row]] > 1)
            sums[labels[row]] -= rows[row].double()
            counts[labels[row]] -= 1
            sums[cluster], counts[cluster], labels[row] = rows[row].double(), 1, cluster
