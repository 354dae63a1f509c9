"""Several trainings of one experiment, measured on the same queries."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import stdtr, stdtrit

from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.units import UnitSums
from layerprobe.values.intervals import Difference, OverSeeds


def over_seeds(cells: UnitSums, *, resamples: int = 10_000, seed: int = 0) -> OverSeeds:
    """The mean over S trainings, with an interval for these networks and one for another training.

    Every training is measured on every unit; on equal terms by images that its own seed draws, of which there are as
    many. `classes` resamples the units of the mean over the trainings. `training` adds the variance between these,
    V = V_classes + sd^2 / S, and takes Student's t with the degrees of freedom of Satterthwaite (1946),
    V^2 / (V_classes^2 / (U - 1) + (sd^2 / S)^2 / (S - 1)). Units that gain in one training and not in another are in
    both terms, so that the interval is rather too wide than too narrow: benchmarks/README.md has its coverage.

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
    trainings = len(cells.sums)
    mean = UnitSums(cells.sums.mean(0, keepdims=True), cells.counts.mean(0, keepdims=True))
    classes = differences(mean, resamples=resamples, seed=seed)[0]
    sd = float(cells.means.std(ddof=1)) if trainings > 1 else None
    training = Difference(classes.value)
    if sd is not None and classes.low is not None:
        units, left = mean.units, mean.sums - classes.value * mean.counts
        variance = float((left**2).sum() / mean.counts.sum() ** 2 * units / (units - 1))
        training = add_trainings(classes.value, variance, units, sd, trainings)
    return OverSeeds(classes.value, sd, trainings, classes, training)


def add_trainings(value: float, variance: float, units: int, sd: float, trainings: int) -> Difference:
    """The interval and p of a mean over trainings, for another training on other classes.

    Args:
        value: the mean.
        variance: of the mean over the choice of units, above 0.
        units: from which the variance was estimated, at least 2.
        sd: between the trainings.
        trainings: at least 2.
    """
    between = sd**2 / trainings
    total = variance + between
    degrees = total**2 / (variance**2 / (units - 1) + between**2 / (trainings - 1))
    t, half = abs(value) / math.sqrt(total), float(stdtrit(degrees, 0.975)) * math.sqrt(total)
    # Beyond what a float can tell from 0, p is the least that it can.
    p = max(2 * float(stdtr(degrees, -t)), float(np.finfo(np.float64).tiny))
    return Difference(value, value - half, value + half, p)
