"""Difference of two layers on the same queries, with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# Draws of a class held at once: 64 MiB of indices.
_BLOCK = 8 * 2**20


@dataclass(frozen=True)
class Difference:
    """A mean difference and its 95 % interval, in the unit of what was compared."""

    value: float
    low: float
    high: float


def paired_difference(
    a: ArrayLike, b: ArrayLike, labels: ArrayLike, *, resamples: int = 10_000, seed: int = 0
) -> Difference:
    """Mean of a - b over the queries, with the interval that another draw of classes would give.

    Percentile bootstrap (2.5 % to 97.5 %) over the query *classes*: they, not their images, were sampled from the
    world that a layer should generalise to, and the images of a class hit or miss together, so that resampling images
    would give intervals much too narrow. A class drawn twice counts twice, with all its queries. With few classes
    (below about 20) the interval is somewhat too narrow; it covers 0 in all but 5 % of the cases only as the number
    of classes grows.

    Args:
        a: (Q,) hit probabilities of one layer, from `Ranks.hits`.
        b: (Q,) those of the other, of the same queries in the same order.
        labels: (Q,) the queries' classes, at least two different.
        resamples: bootstrap samples, at least 1.
        seed: of the resampling.

    Returns:
        mean(a) - mean(b) with its interval; fractions where a and b are.

    Raises:
        ValueError: vectors of different lengths or not finite, fewer than two classes, or no resamples.
    """
    differences = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    classes = np.asarray(labels)
    if differences.ndim != 1 or np.shape(a) != np.shape(b) or classes.shape != differences.shape:
        raise ValueError(f"expected three vectors of one length, got {np.shape(a)}, {np.shape(b)}, {classes.shape}")
    if not np.isfinite(differences).all():
        raise ValueError("a and b must be finite")
    if resamples < 1:
        raise ValueError(f"resamples = {resamples}: must be at least 1")
    _, members = np.unique(classes, return_inverse=True)
    counts = np.bincount(members)
    if len(counts) < 2:
        raise ValueError("an interval over classes needs two classes")
    sums = np.bincount(members, differences)
    rng = np.random.default_rng(seed)
    rows = max(1, _BLOCK // len(counts))
    means = []
    for start in range(0, resamples, rows):
        drawn = rng.integers(len(counts), size=(min(rows, resamples - start), len(counts)))
        means.append(sums[drawn].sum(1) / counts[drawn].sum(1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Difference(float(differences.mean()), float(low), float(high))
