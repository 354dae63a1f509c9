"""k-means by Lloyd's algorithm: many restarts side by side, each as float64 arithmetic would have it.

Rows are assigned by one blocked product for all restarts (`centroids.py`); sums are float64, and changed only by the
rows that moved. A restart ends when an assignment changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.metrics.centroids import Points, Search, points_of
from layerprobe.ranking.items import BLOCK_ROWS
from layerprobe.ranking.vectors import tensor_of
from layerprobe.system.errors import NotFiniteError
from layerprobe.system.numerics import full_precision

if TYPE_CHECKING:
    from torch import Tensor

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
    import torch

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
        import torch

        self.points = points
        self.search = Search(points, *firsts.shape)
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
        import torch

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
        import torch

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
