"""Linear CKA written out, for the tests of what computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def hsic_1(x: Array, y: Array) -> float:
    """Song et al.'s unbiased estimator, over (N, N) matrices."""
    n = len(x)
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    one = np.ones(n)
    trace = np.vdot(k, m)  # of k @ m: both are symmetric
    sums = trace + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * one @ k @ m @ one
    return float(sums / (n * (n - 3)))


def units(x: Array) -> NDArray[np.float64]:
    """Each row divided by its length, in float64."""
    return np.array([row / np.sqrt(row @ row) for row in x.astype(np.float64)])


def direct_cka(x: Array, y: Array) -> float:
    """Of the unit vectors of all rows at once, in float64."""
    x, y = units(x), units(y)
    return float(hsic_1(x, y) / np.sqrt(hsic_1(x, x) * hsic_1(y, y)))
