"""Several trainings of one experiment, measured on the same queries: three statements, of which none is another.

With m the mean of S trainings, sd the standard deviation between them, and Vc the variance of m over the choice of
classes (units), whose effective number is K (Kish: U for U units of equal size),

- the mean over trainings: m +- t sqrt(sd^2 / S + Vc);
- a new run on these classes: m +- t_{S-1} sd sqrt(1 + 1/S);
- a new run on as many other classes: m +- t sqrt((1 + 1/S) sd^2 + 2 Vc).

t has the degrees of freedom of Satterthwaite (1946) for a sum A + B, of which A has S - 1 and B has K - 1, at least 1:
(A + B)^2 / (A^2 / (S - 1) + B^2 / (K - 1)). The last two are prediction intervals, and need three trainings. Classes
that gain in one training and not in another are in sd and in Vc: where these dominate, the intervals are too wide.
`benchmarks/coverage.py --only seeds` measures how often they hold.
"""

from __future__ import annotations

import math

import numpy as np

from layerprobe.statistics.bootstrap import RESAMPLES_OF_DIFFERENCES, differences
from layerprobe.statistics.units import UnitSums, effective_number
from layerprobe.values.intervals import Difference, Interval, OverSeeds
from layerprobe.values.retrieval import FloatArray

FEWEST_TRAININGS = 3  # that a further one is predicted from
_ROUNDING = 1e-12  # a spread that equal values have by the order of their sums


def over_seeds(cells: UnitSums, *, resamples: int = RESAMPLES_OF_DIFFERENCES, seed: int = 0) -> OverSeeds:
    """The mean over S trainings, with the three statements of this module and its interval for these networks.

    Every training is measured on every unit. `classes` resamples the units of the mean over the trainings.

    Args:
        cells: (S, U) of a value, or of a difference, in each training.
        resamples: draws of units, at least 100.
        seed: of the draws.

    Raises:
        ValueError: trainings that were measured on different numbers of queries, or fewer than 100 resamples.
    """
    totals = cells.counts.sum(1)
    if (totals != totals[0]).any():
        raise ValueError("the trainings were measured on different queries")
    mean = UnitSums(cells.sums.mean(0, keepdims=True), cells.counts.mean(0, keepdims=True))
    classes = differences(mean, resamples=resamples, seed=seed)[0]
    counts, units = mean.counts[0], mean.units
    # What leaving out a unit moves the mean; 1 times its residual for units of equal size.
    leverage = (1 - 1 / units) / (1 - counts / counts.sum()) if units > 1 else 1.0
    residuals = (mean.sums[0] - classes.value * counts) * leverage
    variance = float((residuals**2).sum() / counts.sum() ** 2 * units / max(1, units - 1))
    # Divided by the largest, so that the number of equal units is exact.
    return statements(classes, variance, float(effective_number(counts / counts.max())), cells.means)


def statements(classes: Difference, variance: float, effective: float, values: FloatArray) -> OverSeeds:
    """The three statements of this module.

    Args:
        classes: the mean of the trainings, with its interval for these networks.
        variance: Vc, of the mean over the choice of units.
        effective: K, the effective number of units from which it was estimated.
        values: (S,) the value in each training.
    """
    mean, has_interval, count = classes.value, classes.low is not None, len(values)
    sd = float(values.std(ddof=1)) if count > 1 else None
    trainings, same, other = Difference(mean), None, None
    if sd is not None and has_interval:
        trainings = _mean_over_trainings(mean, sd**2 / count, count, variance, effective)
    if sd is not None and count >= FEWEST_TRAININGS:
        same = further_interval(values)
        if has_interval:
            further = (1 + 1 / count) * sd**2
            other = _interval(mean, further + 2 * variance, _degrees(further, count, 2 * variance, effective))
    return OverSeeds(mean, sd, count, classes, trainings, same, other)


def mean_interval(values: FloatArray) -> Interval | None:
    """The 95 % interval of the mean of S trainings, m +- t_{S-1} sd / sqrt(S): on the classes that they share.

    Where every training has classes of its own, sd has the choice of classes in it, and so has the interval.

    Args:
        values: (S,) the value in each training.

    Returns:
        None for a single training and for equal values: an interval of no width would claim certainty.
    """
    count = len(values)
    if count < 2 or np.ptp(values) <= _ROUNDING * np.abs(values).max():
        return None
    return _interval(float(values.mean()), float(values.var(ddof=1)) / count, count - 1)


def further_interval(values: FloatArray) -> Interval | None:
    """The 95 % prediction interval of a new run, m +- t_{S-1} sd sqrt(1 + 1/S), as `mean_interval` has m.

    Args:
        values: (S,) the value in each training.

    Returns:
        None for fewer than three trainings and for equal values.
    """
    count = len(values)
    if count < FEWEST_TRAININGS or np.ptp(values) <= _ROUNDING * np.abs(values).max():
        return None
    return _interval(float(values.mean()), (1 + 1 / count) * float(values.var(ddof=1)), count - 1)


def _mean_over_trainings(mean: float, between: float, count: int, variance: float, effective: float) -> Difference:
    from scipy.special import stdtr

    total, degrees = between + variance, _degrees(between, count, variance, effective)
    interval = _interval(mean, total, degrees)
    # Beyond what a float can tell from 0, p is the least that it can.
    p = max(2 * float(stdtr(degrees, -abs(mean) / math.sqrt(total))), float(np.finfo(np.float64).tiny))
    return Difference(mean, interval.low, interval.high, p)


def _interval(mean: float, variance: float, degrees: float) -> Interval:
    from scipy.special import stdtrit

    half = float(stdtrit(degrees, 0.975)) * math.sqrt(variance)
    return Interval(mean - half, mean + half)


def _degrees(between: float, count: int, variance: float, effective: float) -> float:
    """Satterthwaite's degrees of freedom of the sum of a variance of trainings and one of units."""
    total = between + variance
    return total**2 / (between**2 / (count - 1) + variance**2 / max(effective - 1, 1.0))
