"""Intervals of rates of pairs of images of different units, for another draw of units.

A pair depends on both of its units, and all pairs of a unit on that unit. With A_uv the accepted ones of the N_uv pairs
of two units, p = A / N, e_uv = A_uv - p N_uv and e_u the sum over all pairs that unit u is in, the jackknife's variance
of p is to first order J = sum_u e_u^2 / N^2, and

    J - Q,    Q = sum_{u < v} e_uv^2 / N^2,

counts each pair of units once (Aronow, Samii & Assenova, Cluster-robust variance estimation for dyadic data, 2015). It
is taken as J / 3 at least. The interval is Student's with U - 1 degrees of freedom on the scale of the logarithm. A few
units whose images are like those of many others make up much of a rate, and a sample without one is too low and too
sure. So the skewness g = sum_u e_u^3 / (sum_u e_u^2)^(3/2), in 0 to 1, makes the upper half 1 + 2 g times as long and
the lower one 1 - g / 4 times. For the upper end also a quarter of an average pair of units is added to the accepted
pairs, with its own variance, and the higher of the two ends taken: rare pairs of units may be missing altogether.

The third, the factors of g and the quarter are chosen by simulation; benchmarks/README.md has the coverage, on other
draws.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from layerprobe.values.arrays import FloatArray
from layerprobe.values.intervals import FEWEST_UNITS, Interval

_ADDED = 1 / 4  # of an average pair of units
_LEAST = 1 / 3  # of J
_LONGER, _SHORTER = 2.0, 1 / 4  # the upper and the lower half, for a skewness of 1


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
    of_unit = residuals.sum(1)
    squares = float(np.square(of_unit).sum())
    first = squares / total**2
    twice = float(np.square(residuals).sum() - np.square(np.diag(residuals)).sum()) / 2 / total**2
    variance = max(first - twice, _LEAST * first)
    skewness = min(max(float((of_unit**3).sum()) / squares**1.5, 0.0), 1.0) if squares else 0.0
    added, longer = _ADDED / (units * (units - 1) / 2), reach * (1 + _LONGER * skewness)
    high = _moved(rate + added, variance + added**2, longer)
    if not rate:
        return Interval(0.0, min(high, 1.0))
    low = _moved(rate, variance, -reach * (1 - _SHORTER * skewness))
    return Interval(low, min(max(high, _moved(rate, variance, longer)), 1.0))


def _moved(rate: float, variance: float, reach: float) -> float:
    """The rate so many standard errors away, on the scale of the logarithm."""
    exponent = reach * math.sqrt(variance) / rate
    return rate * math.exp(min(exponent, -math.log(rate))) if exponent > 0 else rate * math.exp(exponent)
