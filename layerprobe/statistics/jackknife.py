"""Intervals from the mean without each unit: over new classes, queries and gallery included.

A bootstrap would hold a class twice in the gallery, where its items find each other's copies. Leaving out does not.

With v_u the mean without unit u, Tukey's jackknife (1958) has the variance J = (U - 1) / U sum_u (v_u - mean v)^2. In a
search it is too large: where a class takes a hit from another one, that is seen twice, in the hits of the one and in
what leaving out the other gives back (Efron & Stein 1981: what k units do together counts k times). For Recall@1 J is
1.1 to 1.5 times the variance, and for a difference of two layers, which share what single classes do, 1.3 to 2 times.

So that part is taken off. v_ui is what the queries of unit i add to the mean without u, and N_i their number; their own
mean without u is r_ui = v_ui (N - N_u) / N_i. What is left of r_ui (u != i) after row and column means are taken out is
what pairs of units do; e_ui is that times N_i / (N - N_u), Q the sum of its squares, and

    variance = J - max(0, 1 - 8 / K) Q, at least J / 3,

where K is Kish's effective number of units, (sum N_i)^2 / sum N_i^2: U for units of equal size. Student's t has K - 1
degrees of freedom, so that a few large units count as few. Row and column means of v_ui itself would take the different
sizes of units for what pairs of them do.

J - Q alone is the variance on average, but it varies so much between draws of few units that Student's t is too short
for it. The 8, and the J / 3, are chosen by simulation; benchmarks/redraw_coverage.py measures the coverage.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.statistics.seeds import statements
from layerprobe.statistics.units import effective_number
from layerprobe.values.intervals import FEWEST_UNITS, Difference, OverSeeds
from layerprobe.values.retrieval import FloatArray

_HELD_BACK = 8
_LEAST = 1 / 3
_ROUNDING = 1e-12  # a spread that equal means have by the order of their sums


def jackknife(values: ArrayLike, left_out: ArrayLike, queries: ArrayLike) -> list[Difference]:
    """95 % intervals of differences of two means of the same units, for another draw of units.

    Args:
        values: (C,) of all units.
        left_out: (C, U, U): [c, u, i] is the contribution of the queries of unit i to the value without unit u; the sum
            over i is that value. For a difference: that of the two tables.
        queries: (C, U) the number of queries of each unit; a unit without any counts in the gallery alone.

    Returns:
        C values with the interval value +- t sqrt(variance), and with p of the hypothesis that the value is 0. Without
        both with fewer than 10 units, where a value without a unit is NaN, and where it is the same without any unit.

    Raises:
        ValueError: no table of U x U and no U numbers of queries for each value.
    """
    means, tables, sizes = _checked(values, left_out, queries)
    return [_difference(*cell) for cell in zip(means.tolist(), *_variances(tables, sizes), strict=True)]


def jackknife_over_seeds(values: ArrayLike, left_out: ArrayLike, queries: ArrayLike) -> OverSeeds:
    """The mean over S trainings, with the statements of `seeds.py` for another draw of units.

    Args:
        values: (S,) a value, or a difference, in each training.
        left_out: (S, U, U) as for `jackknife`; the same units in all.
        queries: (U,) of each unit, in all trainings.

    Raises:
        ValueError: see `jackknife`.
    """
    of_trainings, tables, _ = _checked(values, left_out, np.broadcast_to(queries, np.shape(left_out)[:2]))
    (variance,), (effective,) = _variances(tables.mean(0, keepdims=True), np.asarray(queries, np.float64)[None])
    classes = _difference(float(of_trainings.mean()), variance, effective)
    return statements(classes, variance, effective, of_trainings)


def _checked(values: ArrayLike, left_out: ArrayLike, queries: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    means, tables, sizes = (np.asarray(array, np.float64) for array in (values, left_out, queries))
    if (
        means.ndim != 1
        or not len(means)
        or tables.shape != (*sizes.shape, sizes.shape[-1])
        or len(tables) != len(means)
    ):
        shapes = f"{means.shape}, {tables.shape} and {sizes.shape}"
        raise ValueError(f"expected (C,) values, (C, U, U) left out and (C, U) queries, got {shapes}")
    return means, tables, sizes


def _variances(tables: FloatArray, sizes: FloatArray) -> tuple[list[float], list[float]]:
    """C variances, 0 or NaN where there is none, and C effective numbers of units."""
    if tables.shape[1] < FEWEST_UNITS:
        return [0.0] * len(tables), [float(tables.shape[1])] * len(tables)
    # Divided by the largest, so that the number of equal units is exact.
    effective = effective_number(sizes / sizes.max(1, keepdims=True)).tolist()
    return [_variance(*cell) for cell in zip(tables, sizes, effective, strict=True)], effective


def _variance(table: FloatArray, sizes: FloatArray, effective: float) -> float:
    """Variance of a mean from its parts without each unit (U, U); 0 where there is no more than rounding."""
    units = len(table)
    without = table.sum(1)
    spread = float(np.square(without - without.mean()).sum()) * (units - 1) / units
    if not spread > _ROUNDING**2:
        return 0.0 if spread == spread else math.nan
    queried = sizes > 0
    together = max(0.0, 1 - _HELD_BACK / effective) * _pairs(table[np.ix_(queried, queried)], sizes[queried])
    return max(spread - together, _LEAST * spread)


def _pairs(table: FloatArray, sizes: FloatArray) -> float:
    """Q of (U, U), after row and column effects on the means of the units' queries."""
    units, total_queries = len(table), sizes.sum()
    off_diagonal = ~np.eye(units, dtype=bool)
    # From parts to means of the units, so scaled that it is 1 for units of equal size.
    scale = ((total_queries - sizes)[:, None] / sizes) / ((total_queries - sizes.mean()) / sizes.mean())
    residuals = np.where(off_diagonal, table * scale, 0.0)
    rows, columns, total = residuals.sum(1), residuals.sum(0), residuals.sum()
    # Least squares of a row and a column effect where the diagonal is missing.
    row = ((units - 1) * rows + columns - total) / (units * (units - 2))
    column = ((units - 1) * columns + rows - total) / (units * (units - 2))
    fitted = row[:, None] + column
    residuals -= np.where(off_diagonal, fitted - (fitted[off_diagonal].mean() - total / (units * (units - 1))), 0.0)
    freedom = ((units - 1) ** 2 - units) / (units * (units - 1))
    return float(np.square(residuals / scale).sum() / freedom)


def _difference(value: float, variance: float, effective: float) -> Difference:
    """A value with Student's interval; without one where the variance is 0 or unknown."""
    from scipy.special import stdtr, stdtrit

    if not (math.isfinite(value) and variance > 0):
        return Difference(value)
    error = math.sqrt(variance)
    degrees = max(effective - 1, 1.0)
    reach = error * float(stdtrit(degrees, 0.975))
    # Beyond what a float can tell from 0, p is the least that it can.
    p = max(2 * float(stdtr(degrees, -abs(value) / error)), float(np.finfo(np.float64).tiny))
    return Difference(value, value - reach, value + reach, p)
