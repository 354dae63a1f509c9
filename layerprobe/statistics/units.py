"""Values of queries summed over units (classes or clusters), and intervals of their means.

The interval of a mean is Student's t on the scale of the logit. With S the sums and N the counts of U units, p = sum S
/ sum N, and

    variance = sum_u ((S_u - p N_u) / (sum N - N_u))^2,    degrees of freedom = (sum N)^2 / sum N^2 - 1,

the interval is expit(logit p +- t sqrt(variance) / (p (1 - p))). Each term of the variance is what leaving out a unit
moves p: its residual, divided by 1 - its share of the queries. The degrees of freedom are Kish's effective number of
units less 1, so that a few large units count as few.

A quarter of an average unit with a mean of 50 % is added to the U. Units of low recall among many of high recall are
rare, and a sample without one is both too high and too sure; the addition makes up for them. It moves p towards 50 %,
near 100 % by more than the interval is wide: so each end is the farther one of those with and without the addition.

The quarter is chosen by simulation; benchmarks/coverage.py compares the coverage with the bootstrap-t's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.values.intervals import FEWEST_UNITS, Interval
from layerprobe.values.retrieval import FloatArray

_NO_SPREAD = 1e-12  # units whose means differ by less, relative to them, are equal up to rounding


@dataclass(frozen=True, eq=False)
class UnitSums:
    """What is known of C means over the same queries, by U units: all that resampling units needs.

    Args:
        sums: (C, U) sum of the values of a unit's queries.
        counts: (C, U) how many queries that is; 0 where a unit has none.

    Raises:
        ValueError: the two are not tables of one shape, or a mean has no query at all.
    """

    sums: FloatArray
    counts: FloatArray

    def __post_init__(self) -> None:
        if self.sums.ndim != 2 or self.sums.shape != self.counts.shape:
            raise ValueError(f"expected two tables of one shape, got {self.sums.shape} and {self.counts.shape}")
        if not (self.counts.sum(1) > 0).all():
            raise ValueError("a mean of no query at all")

    @property
    def means(self) -> FloatArray:
        """(C,) the means."""
        means: FloatArray = self.sums.sum(1) / self.counts.sum(1)
        return means

    @property
    def units(self) -> int:
        """How many units have a query."""
        return int((self.counts > 0).any(0).sum())

    @property
    def differ(self) -> NDArray[np.bool_]:
        """(C,) whether the units have different means, beyond rounding."""
        there = self.counts > 0
        units = np.divide(self.sums, self.counts, out=np.zeros_like(self.sums), where=there)
        highest, lowest = units.max(1, initial=-np.inf, where=there), units.min(1, initial=np.inf, where=there)
        spread: NDArray[np.bool_] = highest - lowest > _NO_SPREAD * np.maximum(np.abs(highest), np.abs(lowest))
        return spread

    def __getitem__(self, rows: Any) -> UnitSums:
        """Some of the means, `cells[[0, 2]]`, or their values over some of the units, `cells[:, units]`."""
        return UnitSums(self.sums[rows], self.counts[rows])

    def minus(self, other: UnitSums) -> UnitSums:
        """The differences of these means and others of the same queries.

        Raises:
            ValueError: other units, or other numbers of queries.
        """
        if self.counts.shape != other.counts.shape or not np.array_equal(self.counts, other.counts):
            raise ValueError("means of other queries cannot be subtracted")
        return UnitSums(self.sums - other.sums, self.counts)


def effective_number(weights: FloatArray) -> FloatArray:
    """(...) Kish's effective number of units, (sum w)^2 / sum w^2: U units of equal weight have as much information.

    Args:
        weights: (..., U), such as the queries of each unit; not all 0.
    """
    number: FloatArray = weights.sum(-1) ** 2 / (weights**2).sum(-1)
    return number


def mean_of(parts: Sequence[UnitSums]) -> UnitSums:
    """The mean of C means over several trainings, which were measured on the same queries.

    Args:
        parts: (C, U) of each training.

    Raises:
        ValueError: other numbers of queries.
    """
    counts = parts[0].counts
    if any(training.counts.shape != counts.shape or not np.array_equal(training.counts, counts) for training in parts):
        raise ValueError("means of other queries have no mean of units")
    return UnitSums(np.mean([training.sums for training in parts], axis=0), counts)


def side_by_side(parts: Sequence[UnitSums]) -> UnitSums:
    """C means over the queries of several sets of units together, which share none.

    Args:
        parts: (C, U) of each set.
    """
    return UnitSums(np.hstack([cells.sums for cells in parts]), np.hstack([cells.counts for cells in parts]))


def stack_means(parts: Sequence[UnitSums]) -> UnitSums:
    """The means of several tables over the same units in one, (C + C' + ..., U).

    Args:
        parts: (C, U), (C', U) ...
    """
    return UnitSums(np.vstack([cells.sums for cells in parts]), np.vstack([cells.counts for cells in parts]))


def unit_sums(values: ArrayLike, units: ArrayLike) -> UnitSums:
    """Sum the values of queries over their units.

    Args:
        values: (C, Q), or (Q,) for a single mean; NaN where a query does not take part in a mean.
        units: (Q,) the unit of each query, any integers.

    Raises:
        ValueError: values and units of different lengths, infinite values, or a mean of no query at all.
    """
    table, names = np.atleast_2d(np.asarray(values, np.float64)), np.asarray(units)
    if table.ndim != 2 or names.ndim != 1 or table.shape[1] != len(names):
        raise ValueError(f"expected a value and unit for each query, got {table.shape}, {names.shape}")
    if np.isinf(table).any():
        raise ValueError("values must not be infinite")
    _, members = np.unique(names, return_inverse=True)
    size = int(members.max(initial=-1)) + 1
    takes_part = ~np.isnan(table)
    sums = [np.bincount(members, np.where(there, row, 0.0), size) for row, there in zip(table, takes_part, strict=True)]
    counts = [np.bincount(members, there.astype(np.float64), size) for there in takes_part]
    return UnitSums(np.array(sums), np.array(counts))


_ADDED = 0.25  # of an average unit
_ROUNDING = 1e-9  # of expected values of hits


def intervals(cells: UnitSums) -> list[Interval | None]:
    """A 95 % interval for each of C means of values in [0, 1].

    Returns:
        C; None for a mean of fewer than 10 units, and for one that is the same in every unit, as at 100 % everywhere:
        an interval without width would claim certainty.

    Raises:
        ValueError: a mean outside [0, 1].
    """
    means = cells.means
    if ((means < -_ROUNDING) | (means > 1 + _ROUNDING)).any():
        raise ValueError("a mean outside [0, 1]")
    there = ((cells.counts > 0).sum(1) >= FEWEST_UNITS) & cells.differ & (means > 0) & (means < 1)
    ends_of_means: list[Interval | None] = [None] * len(means)
    lows, highs = zip(_ends(cells[there], _ADDED), _ends(cells[there], 0.0), strict=True)
    ends = zip(np.minimum(*lows).tolist(), np.maximum(*highs).tolist(), strict=True)
    for index, (low, high) in zip(np.flatnonzero(there).tolist(), ends, strict=True):
        ends_of_means[index] = Interval(low, high)
    return ends_of_means


def _ends(cells: UnitSums, added: float) -> tuple[FloatArray, FloatArray]:
    """The ends (C,) with so much of an average unit added."""
    from scipy.special import expit, logit, stdtrit  # most plots make no interval

    totals = cells.counts.sum(1)
    extra = added * totals / (cells.counts > 0).sum(1)
    together = totals + extra
    p = (cells.sums.sum(1) + extra / 2) / together
    moved = (cells.sums - p[:, None] * cells.counts) / (together[:, None] - cells.counts)
    variance = (moved**2).sum(1) + (extra * (0.5 - p) / totals) ** 2
    degrees = effective_number(cells.counts) - 1
    reach = stdtrit(degrees, 0.975) * np.sqrt(variance) / (p * (1 - p))
    return expit(logit(p) - reach), expit(logit(p) + reach)
