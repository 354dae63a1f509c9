"""Intervals from the mean without each unit: over new classes, queries and gallery included.

A bootstrap would hold a class twice in the gallery, where its items find each other's copies. Leaving out does not.

With v_u the mean without unit u, Tukey's jackknife (1958) has the variance J = (U - 1) / U sum_u (v_u - mean v)^2. In a
search it is too large: where a class takes a hit from another one, that is seen twice, in the hits of the one and in
what leaving out the other gives back (Efron & Stein 1981: what k units do together counts k times). For Recall@1 J is
1.1 to 1.5 times the variance, and for a difference of two layers, which share what single classes do, 1.3 to 2 times.

So that part is taken off. v_ui is what the queries of unit i add to the mean without u. What is left of these numbers
(u != i) after their row and column means are taken out is what pairs of units do; the sum of its squares is Q, and

    variance = J - max(0, 1 - 8 / U) Q, at least J / 3.

J - Q alone is the variance on average, but it varies so much between draws of few units that Student's t with U - 1
degrees of freedom is too short for it. The 8, and the J / 3, are chosen by simulation; benchmarks/README.md has the
coverage (benchmarks/redraw_coverage.py).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.statistics.seeds import statements
from layerprobe.values.arrays import FloatArray
from layerprobe.values.intervals import FEWEST_UNITS, Difference, Interval, OverSeeds

_HELD_BACK = 8
_LEAST = 1 / 3
_ROUNDING = 1e-12  # a spread that equal means have by the order of their sums


def jackknife_intervals(values: ArrayLike, left_out: ArrayLike) -> list[Interval | None]:
    """95 % intervals of means of values in [0, 1], for another draw of units.

    On the scale of the logit, so that an interval near 0 or 1 is as lopsided as the draws are and stays inside:
    logit(v) +- t sqrt(variance) / (v (1 - v)), t of Student's distribution with U - 1 degrees of freedom.

    Args:
        values: (C,) of all units, in [0, 1].
        left_out: (C, U, U) as for `jackknife`.

    Returns:
        C; None with fewer than 10 units, where a mean without a unit is NaN, at 0 and 1, and where the mean is the same
        without any unit: an interval of no width would claim certainty.

    Raises:
        ValueError: see `jackknife`, or a value outside [0, 1].
    """
    from scipy.special import expit, logit, stdtrit

    means, variances, units = _checked(values, left_out)
    if ((means < 0) | (means > 1)).any():
        raise ValueError("a value outside [0, 1]")
    found: list[Interval | None] = []
    for value, variance in zip(means.tolist(), variances.tolist(), strict=True):
        if not (variance > 0 and 0 < value < 1):
            found.append(None)
            continue
        reach = float(stdtrit(units - 1, 0.975)) * math.sqrt(variance) / (value * (1 - value))
        found.append(Interval(float(expit(logit(value) - reach)), float(expit(logit(value) + reach))))
    return found


def jackknife(values: ArrayLike, left_out: ArrayLike) -> list[Difference]:
    """95 % intervals of differences of two means of the same units, for another draw of units.

    Args:
        values: (C,) of all units.
        left_out: (C, U, U): [c, u, i] is the contribution of the queries of unit i to the value without unit u; the sum
            over i is that value. Units may be groups of units of about one size. For a difference: that of the two
            tables.

    Returns:
        C values with the interval value +- t sqrt(variance), t of Student's distribution with U - 1 degrees of freedom,
        and with p of the hypothesis that the value is 0. Without both with fewer than 10 units, where a value without a
        unit is NaN, and where it is the same without any unit.

    Raises:
        ValueError: no table of U x U for each value.
    """
    means, variances, units = _checked(values, left_out)
    return [_difference(*pair, units) for pair in zip(means.tolist(), variances.tolist(), strict=True)]


def jackknife_over_seeds(values: ArrayLike, left_out: ArrayLike) -> OverSeeds:
    """The mean over S trainings, with the statements of `seeds.py` for another draw of units.

    Args:
        values: (S,) a value, or a difference, in each training.
        left_out: (S, U, U) as for `jackknife`; the same units in all.

    Raises:
        ValueError: see `jackknife`.
    """
    each, tables = np.asarray(values, np.float64), np.asarray(left_out, np.float64)
    _require(each, tables)
    means, variances, units = _checked(each.mean(keepdims=True), tables.mean(0, keepdims=True))
    classes = _difference(float(means[0]), float(variances[0]), units)
    return statements(classes, float(variances[0]), units, each)


def _checked(values: ArrayLike, left_out: ArrayLike) -> tuple[FloatArray, FloatArray, int]:
    """Values (C,), their variances (C,), 0 or NaN where there is none, and the number of units."""
    means, tables = np.asarray(values, np.float64), np.asarray(left_out, np.float64)
    _require(means, tables)
    units = tables.shape[1]
    if units < FEWEST_UNITS:
        return means, np.zeros(len(means)), units
    variances = np.array([_variance(table) for table in tables]).reshape(len(means))
    return means, variances, units


def _require(values: FloatArray, tables: FloatArray) -> None:
    shape = tables.shape
    if values.ndim != 1 or not len(values) or len(shape) != 3 or shape[0] != len(values) or shape[1] != shape[2]:
        raise ValueError(f"expected (C,) values and (C, U, U) left out, got {values.shape} and {shape}")


def _variance(table: FloatArray) -> float:
    """Variance of a mean from its parts without each unit (U, U); 0 where there is no more than rounding."""
    units = len(table)
    without = table.sum(1)
    spread = float(np.square(without - without.mean()).sum()) * (units - 1) / units
    if not spread > _ROUNDING**2:
        return 0.0 if spread == spread else math.nan
    together = max(0.0, 1 - _HELD_BACK / units) * _pairs(table)
    return max(spread - together, _LEAST * spread)


def _pairs(table: FloatArray) -> float:
    """Q: the residual sum of squares off the diagonal of (U, U), after row and column effects."""
    units = len(table)
    others = ~np.eye(units, dtype=bool)
    left = np.where(others, table, 0.0)
    rows, columns, total = left.sum(1), left.sum(0), left.sum()
    # Least squares of a row and a column effect where the diagonal is missing.
    row = ((units - 1) * rows + columns - total) / (units * (units - 2))
    column = ((units - 1) * columns + rows - total) / (units * (units - 2))
    fitted = row[:, None] + column
    left -= np.where(others, fitted - (fitted[others].mean() - total / (units * (units - 1))), 0.0)
    freedom = ((units - 1) ** 2 - units) / (units * (units - 1))
    return float(np.square(left).sum() / freedom)


def _difference(value: float, variance: float, units: int) -> Difference:
    """A value with Student's interval; without one where the variance is 0 or unknown."""
    from scipy.special import stdtr, stdtrit

    if not (math.isfinite(value) and variance > 0):
        return Difference(value)
    error = math.sqrt(variance)
    reach = error * float(stdtrit(units - 1, 0.975))
    # Beyond what a float can tell from 0, p is the least that it can.
    p = max(2 * float(stdtr(units - 1, -abs(value) / error)), float(np.finfo(np.float64).tiny))
    return Difference(value, value - reach, value + reach, p)
