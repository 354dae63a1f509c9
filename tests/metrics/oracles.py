"""Linear CKA written out, for the tests of what computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def hsic_1(x: Array, y: Array) -> float:
    """Song et al.'s unbiased estimator, over (N, N) matrices.

    The terms of rows that are not centred cancel: with 4 rows float64 keeps 9 digits, whose last depend on the CPU.
    """
    n = len(x)
    x, y = x.astype(np.longdouble), y.astype(np.longdouble)
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    one = np.ones(n, np.longdouble)
    trace = np.vdot(k, m)  # of k @ m: both are symmetric
    sums = trace + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * one @ k @ m @ one
    return float(sums / (n * (n - 3)))


def units(x: Array) -> NDArray[np.longdouble]:
    """Each row divided by its length, in long double."""
    return np.array([row / np.sqrt(row @ row) for row in x.astype(np.longdouble)])


def direct_cka(x: Array, y: Array) -> float:
    """Of the unit vectors of all rows at once, in long double."""
    x, y = units(x), units(y)
    return float(hsic_1(x, y) / np.sqrt(hsic_1(x, x) * hsic_1(y, y)))
