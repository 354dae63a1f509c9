"""Intervals of means over units: classes, or clusters of classes, against the gallery that was searched.

Student's t on the scale of the logit. With S the sums and N the counts of U units, p = sum S / sum N, and

    variance = sum_u ((S_u - p N_u) / (sum N - N_u))^2,    degrees of freedom = (sum N)^2 / sum N^2 - 1,

the interval is expit(logit p +- t sqrt(variance) / (p (1 - p))). Each term of the variance is what leaving out a unit
moves p: its residual, divided by 1 - its share of the queries. The degrees of freedom are Kish's effective number of
units less 1, so that a few large units count as few.

A quarter of an average unit with a mean of 50 % is added to the U. Units of low recall among many of high recall are
rare, and a sample without one is both too high and too sure; the addition makes up for them. It moves p towards 50 %,
near 100 % by more than the interval is wide: so each end is the farther one of those with and without the addition.

The quarter is chosen by simulation; benchmarks/README.md, "Coverage", has the table, beside the bootstrap-t's.
"""

from __future__ import annotations

import numpy as np

from layerprobe.statistics.units import UnitSums, effective_number
from layerprobe.values.intervals import FEWEST_UNITS, Interval
from layerprobe.values.retrieval import FloatArray

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
    cells_with_interval = UnitSums(cells.sums[there], cells.counts[there])
    lows, highs = zip(_ends(cells_with_interval, _ADDED), _ends(cells_with_interval, 0.0), strict=True)
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
