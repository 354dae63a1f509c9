"""Intervals of rates of pairs of images of different classes, for another draw of units: classes, or clusters of them.

A pair depends on both of its units, and all pairs of a unit on that unit. With A_uv the accepted ones of the N_uv pairs
of two units, p = A / N, e_uv = A_uv - p N_uv, N_u and e_u the sums over all pairs that unit u is in, the jackknife's
variance of p is to first order

    J = sum_u (e_u l_u)^2 / N^2,    l_u = (1 - 2 / U) / (1 - N_u / N),

where l_u, which is 1 for units of equal size, makes up for p being the nearer to a unit's own rate the larger the unit
is. Pairs of classes of one cluster, N_uu, depend on that cluster alone. Their rate is not that of the others, so that
e_uu is taken from their own mean, of 10 clusters or more, and e_uv from that of the others. Then

    J - Q,    Q = sum_{u < v} e_uv^2 / N^2,

counts each pair of units once (Aronow, Samii & Assenova, Cluster-robust variance estimation for dyadic data, 2015). It
is taken as J / 3 at least. The interval is Student's on the scale of the logarithm with K - 1 degrees of freedom, where
K is Kish's effective number of units by N_u: a few large units count as few.

A few units whose images are like those of many others make up much of a rate, and a sample without one is too low and
too sure. So the skewness g = sum_u (e_u l_u)^3 / (sum_u (e_u l_u)^2)^(3/2), in 0 to 1, makes the upper half
1 + 2 g U / K times as long and the lower one 1 - g / 4 times. Rare pairs of units may be missing altogether. So a
quarter of one of M pairs of units, with M their effective number by N_uv, is added to the accepted pairs for the upper
end, with its own variance, and the higher of the two ends is taken. Of clusters it is a quarter of a pair of a cluster
and a class.

The third, the factors of g and the quarter are chosen by simulation; benchmarks/thresholds.py measures the coverage, on
other draws. Where classes lie in groups of look-alikes, intervals over classes are too short: the groups must be the
units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.units import effective_number
from layerprobe.values.intervals import FEWEST_UNITS, Interval
from layerprobe.values.retrieval import FloatArray

_ADDED = 1 / 4  # of a pair of units
_LEAST = 1 / 3  # of J
_LONGER, _SHORTER = 2.0, 1 / 4  # the upper and the lower half, for a skewness of 1


def rate_intervals(
    accepted: NDArray[np.int64], pairs: NDArray[np.int64], *, classes: int | None = None
) -> list[Interval | None]:
    """95 % intervals of rates of accepted pairs.

    Args:
        accepted: (T, U, U) the accepted pairs of an image of unit u and one of unit v, for T rates; a pair may stand at
            u, v or at v, u.
        pairs: (U, U) all pairs, likewise.
        classes: number of classes, where units are clusters of them; None: units are classes.

    Returns:
        T; the lower end is 0 where no pair is accepted. None with fewer than 10 units that have a pair.

    Raises:
        ValueError: tables that do not fit together, or more accepted pairs than there are.
    """
    if pairs.ndim != 2 or accepted.shape[1:] != pairs.shape or pairs.shape[0] != pairs.shape[1]:
        raise ValueError(f"expected (T, U, U) and (U, U), got {accepted.shape} and {pairs.shape}")
    if (accepted > pairs).any():
        raise ValueError("more accepted pairs than pairs")
    there = np.flatnonzero(pairs_of_units(pairs) > 0)
    if len(there) < FEWEST_UNITS:
        return [None] * len(accepted)
    design = _Design.of(pairs[np.ix_(there, there)], classes)
    return [_interval(table[np.ix_(there, there)], design) for table in accepted]


def pairs_of_units(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """(U,) the pairs that each unit is in.

    Args:
        pairs: (U, U); a pair may stand at u, v or at v, u.
    """
    counts: NDArray[np.int64] = pairs.sum(0) + pairs.sum(1) - np.diag(pairs)
    return counts


@dataclass(frozen=True, eq=False)
class _Design:
    """The pairs of U units, and what follows from their numbers alone.

    Args:
        pairs: (U, U).
        within: whether pairs of classes of one unit have a mean of their own.
        leverage: (U,) l_u.
        reach: Student's, for 97.5 %.
        uneven: number of units, of the effective number of them.
        added: to the rate, for the upper end.
    """

    pairs: NDArray[np.int64]
    within: bool
    leverage: FloatArray
    reach: float
    uneven: float
    added: float

    @classmethod
    def of(cls, pairs: NDArray[np.int64], classes: int | None) -> _Design:
        from scipy.special import stdtrit  # most plots make no interval

        units, within_units = len(pairs), np.diag(pairs)
        of_unit = pairs_of_units(pairs)
        between = pairs + pairs.T - 2 * np.diag(within_units)
        shares = (of_unit - within_units) / max(between.sum() / 2, 1)
        # Nothing is known of a unit that is in all pairs.
        leverage_divisor = np.where(shares < 1, 1 - shares, 1 - 2 / units)
        # Divided by the largest, so that the numbers of equal units and pairs are exact.
        effective = float(effective_number(of_unit / of_unit.max()))
        cells = float(effective_number(np.triu(between).ravel() / max(between.max(), 1))) if between.any() else 1.0
        return cls(
            pairs,
            int((within_units > 0).sum()) >= FEWEST_UNITS,
            (1 - 2 / units) / leverage_divisor,
            float(stdtrit(max(effective - 1, 1.0), 0.975)),
            units / effective,
            _ADDED / (cells * (1 if classes is None else classes / units)),
        )

    def residuals(self, accepted: NDArray[np.int64]) -> FloatArray:
        """(U, U) e_uv, of each pair of units at both places."""
        residuals: FloatArray = accepted - accepted.sum() / float(self.pairs.sum()) * self.pairs
        if self.within:
            within_units, self_pairs = np.diag(accepted), np.diag(self.pairs)
            rate_between = (accepted.sum() - within_units.sum()) / max(float(self.pairs.sum() - self_pairs.sum()), 1.0)
            residuals = accepted - rate_between * self.pairs
            np.fill_diagonal(residuals, within_units - within_units.sum() / float(self_pairs.sum()) * self_pairs)
        residuals += residuals.T - np.diag(np.diag(residuals))
        return residuals


def _interval(accepted: NDArray[np.int64], design: _Design) -> Interval:
    total = float(design.pairs.sum())
    rate = float(accepted.sum()) / total
    residuals = design.residuals(accepted)
    of_unit = residuals.sum(1) * design.leverage
    squares = float(np.square(of_unit).sum())
    first_order = squares / total**2
    twice = float(np.square(residuals).sum() - np.square(np.diag(residuals)).sum()) / 2 / total**2
    variance = max(first_order - twice, _LEAST * first_order)
    skewness = min(max(float((of_unit**3).sum()) / squares**1.5, 0.0), 1.0) if squares else 0.0
    added, longer = design.added, design.reach * (1 + _LONGER * design.uneven * skewness)
    high = _moved(rate + added, variance + added**2, longer)
    if not rate:
        return Interval(0.0, min(high, 1.0))
    low = _moved(rate, variance, -design.reach * (1 - _SHORTER * skewness))
    return Interval(low, min(max(high, _moved(rate, variance, longer)), 1.0))


def _moved(rate: float, variance: float, reach: float) -> float:
    """The rate so many standard errors away, on the scale of the logarithm."""
    exponent = reach * math.sqrt(variance) / rate
    return rate * math.exp(min(exponent, -math.log(rate))) if exponent > 0 else rate * math.exp(exponent)
