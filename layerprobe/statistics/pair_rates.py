"""Intervals of rates of pairs of images of different units, for another draw of units.

A pair depends on both of its units, and all pairs of a unit on that unit. With A_uv the accepted ones of the N_uv pairs
of two units, p = A / N, e_uv = A_uv - p N_uv and e_u the sum over all pairs that unit u is in, the jackknife's variance
of p is to first order J = sum_u e_u^2 / N^2, and

    J - Q,    Q = sum_{u < v} e_uv^2 / N^2,

counts each pair of units once (Aronow, Samii & Assenova, Cluster-robust variance estimation for dyadic data, 2015).
J - Q is the variance on average; J is up to twice as large where single units do not matter. The interval is Student's
with U - 1 degrees of freedom on the scale of the logarithm: its lower end has the variance J - Q, at least J / 3, its
upper end J. For the upper end also a third of an average pair of units is added to the accepted pairs, with its own
variance, and the higher of the two ends taken: rare pairs of units whose images are all alike make up much of a small
rate, and a sample without one would be too low and too sure.

The two variances and the third are chosen by simulation; benchmarks/README.md has the coverage.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from layerprobe.values.arrays import FloatArray
from layerprobe.values.intervals import FEWEST_UNITS, Interval

_ADDED = 1 / 3  # of an average pair of units
_LEAST = 1 / 3  # of J


def rate_intervals(accepted: NDArray[np.int64], pairs: NDArray[np.int64]) -> list[Interval | None]:
    """95 % intervals of rates of accepted pairs.

    Args:
        accepted: (T, U, U) the accepted pairs of an image of unit u and one of unit v, for T rates; a pair may stand at
            u, v or at v, u.
        pairs: (U, U) all pairs, likewise.

    Returns:
        T; the lower end is 0 where no pair is accepted. None with fewer than 10 units that have a pair.

    Raises:
        ValueError: tables that do not fit together, or more accepted pairs than there are.
    """
    if pairs.ndim != 2 or accepted.shape[1:] != pairs.shape or pairs.shape[0] != pairs.shape[1]:
        raise ValueError(f"expected (T, U, U) and (U, U), got {accepted.shape} and {pairs.shape}")
    if (accepted > pairs).any():
        raise ValueError("more accepted pairs than pairs")
    units = int(((pairs.sum(0) + pairs.sum(1)) > 0).sum())
    if units < FEWEST_UNITS:
        return [None] * len(accepted)
    return [_interval(table, pairs, units) for table in accepted]


def _interval(accepted: NDArray[np.int64], pairs: NDArray[np.int64], units: int) -> Interval:
    from scipy.special import stdtrit  # most plots make no interval

    reach = float(stdtrit(units - 1, 0.975))
    total = float(pairs.sum())
    rate = float(accepted.sum()) / total
    residuals: FloatArray = accepted - rate * pairs
    residuals += residuals.T - np.diag(np.diag(residuals))  # of each pair of units, at both places
    first = float(np.square(residuals.sum(1)).sum()) / total**2
    twice = float(np.square(residuals).sum() - np.square(np.diag(residuals)).sum()) / 2 / total**2
    added = _ADDED / (units * (units - 1) / 2)
    high = _moved(rate + added, first + added**2, reach)
    if not rate:
        return Interval(0.0, min(high, 1.0))
    low = _moved(rate, max(first - twice, _LEAST * first), -reach)
    return Interval(low, min(max(high, _moved(rate, first, reach)), 1.0))


def _moved(rate: float, variance: float, reach: float) -> float:
    """The rate so many standard errors away, on the scale of the logarithm."""
    exponent = reach * math.sqrt(variance) / rate
    return rate * math.exp(min(exponent, -math.log(rate))) if exponent > 0 else rate * math.exp(exponent)
