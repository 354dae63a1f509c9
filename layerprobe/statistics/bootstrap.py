"""Intervals by resampling units, comparison with the best of many, and Holm's correction.

What they speak of is the gallery that was searched: other queries of classes like these, not another draw of classes to
search among (for that see `jackknife.py`). `units.py` has the interval of a single mean.

The interval is a bootstrap-t (Efron & Tibshirani, 1993, chapter 12). A draw of U units, with replacement, gives a mean
m* = sum of drawn sums / sum of drawn counts. Its standard error s* is that of the ratio, linearised: with
e = sum - m* count for each drawn unit, s*^2 = sum(e^2) / sum(count)^2. The 2.5 and 97.5 % points of t* = (m* - m) / s*
give the band m - t*_{97.5} s to m - t*_{2.5} s. So t* holds what few units cost, and the skewness of a recall near
100 %; percentiles of m* account for neither.

The interval of a difference is symmetric, m -+ |t*|_{95} s. Where few classes differ, the skewness seen is chance: with
two points of t*, layers of equal recall near 95 % differed significantly in 7 to 10 % of simulated comparisons.

s* is at least a share of s. Without that, draws whose units happen to have nearly equal means make ends that say
nothing. For differences the share is 1 - 2.2 / sqrt(2 U): of normal units, where s* has a relative spread of about
1 / sqrt(2 U), it raises 1 draw in 70. With 0.3, layers of equal recall near 95 % differed significantly in less than 3
%.

benchmarks/coverage.py measures how often the intervals contain the true value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.units import UnitSums
from layerprobe.values.intervals import FEWEST_UNITS, Difference, Interval
from layerprobe.values.retrieval import FloatArray

RESAMPLES = 2000
RESAMPLES_OF_DIFFERENCES = 10_000  # whose p value is corrected for many
FEWEST_RESAMPLES = 100  # fewer have no 2.5 % point to speak of
_BLOCK = 2**22  # numbers of a table held at once: 32 MiB
_FLOOR = 0.3  # of s; at 0.5, means near 97 % were held by 84 % of the intervals over 20 small classes


def bands(
    cells: UnitSums,
    *,
    symmetric: bool = False,
    bounds: tuple[float, float] = (0.0, 1.0),
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Interval | None]:
    """Intervals for C means of which, in 95 % of the cases, all hold at once: also the best of many, whichever it is.

    The largest t* and the smallest of all cells in each draw take the place of a cell's own t*.

    Args:
        cells: of the means.
        symmetric: for differences: the largest |t*| counts, as in `differences`, so that of a single one both say the
            same.
        bounds: range of the means; the ends are clipped to it. (-1, 1) for differences of shares.
        resamples: draws of units, at least 100.
        seed: of the draws.

    Returns:
        C; None with fewer than 10 units, and for a mean that is the same in every unit: these cells take no part.

    Raises:
        ValueError: fewer than 100 resamples.
    """
    parts = []
    largest, smallest = np.full(resamples, -np.inf), np.full(resamples, np.inf)
    for draws in _resample(cells, resamples, np.random.SeedSequence(seed)):
        errors = draws.errors
        drawn = draws.studentised(draws.floor if symmetric else _FLOOR)[:, errors > 0]
        parts.append((draws.means, errors))
        largest = np.maximum(largest, (np.abs(drawn) if symmetric else drawn).max(1, initial=-np.inf))
        smallest = np.minimum(smallest, drawn.min(1, initial=np.inf))
    highest = _reach(largest) if symmetric else _points(largest)[1]
    lowest = -highest if symmetric else _points(smallest)[0]
    intervals: list[Interval | None] = []
    for means, errors in parts:
        if (errors > 0).any():
            intervals += _intervals(means - errors * highest, means - errors * lowest, errors, bounds)
        else:
            intervals += [None] * len(means)
    return intervals


def upper_ends(cells: UnitSums, *, resamples: int = RESAMPLES, seed: int = 0) -> FloatArray:
    """Upper ends of one-sided intervals for C differences of which, in 95 % of the cases, all hold at once.

    The smallest t* of all cells in each draw takes the place of a cell's own t*.

    Args:
        cells: of the differences: `a.minus(b)`.
        resamples: draws of units, at least 100.
        seed: of the draws.

    Returns:
        (C,) inf with fewer than 10 units; the difference itself where it is the same in every unit.

    Raises:
        ValueError: fewer than 100 resamples.
    """
    if cells.units < FEWEST_UNITS:
        return np.full(len(cells.sums), np.inf)
    parts, smallest = [], np.full(resamples, np.inf)
    for draws in _resample(cells, resamples, np.random.SeedSequence(seed)):
        drawn = draws.studentised(draws.floor)[:, draws.errors > 0]
        smallest = np.minimum(smallest, drawn.min(1, initial=np.inf))
        parts.append((draws.means, draws.errors))
    outside = math.floor(0.05 * (resamples + 1)) - 1
    lowest = np.partition(smallest, outside)[outside]
    reach = -lowest if np.isfinite(lowest) else 0.0
    return np.concatenate([means + errors * reach for means, errors in parts])


def differences(cells: UnitSums, *, resamples: int = RESAMPLES_OF_DIFFERENCES, seed: int = 0) -> list[Difference]:
    """C differences of means of the same queries, each with its 95 % interval and p.

    p inverts the interval: it is below 0.05 exactly where the interval leaves out 0. It is (1 + number of |t*| that
    reach the one observed) / (1 + resamples), and so never 0.

    Args:
        cells: of the differences: `a.minus(b)`.
        resamples: draws of units, at least 100; p is at least 1 / (1 + resamples).
        seed: of the draws.

    Returns:
        C; without interval and p with fewer than 10 units, and for a difference that is the same in every unit, as
        where two layers hit the same queries.

    Raises:
        ValueError: fewer than 100 resamples.
    """
    return [
        difference
        for draws in _resample(cells, resamples, np.random.SeedSequence(seed))
        for difference in _differences(draws)
    ]


def between(
    minuends: UnitSums, subtrahends: UnitSums, *, resamples: int = RESAMPLES_OF_DIFFERENCES, seed: int = 0
) -> list[Difference]:
    """Minuend - subtrahend for C pairs of means whose units are different and independent: train and test classes.

    The units of the two are drawn separately; t* = ((m1* - m1) - (m2* - m2)) / sqrt(s1*^2 + s2*^2), so that the degrees
    of freedom of either side are in t*. A side that is the same in all its units, as training classes at 100 %, adds no
    variance: then the interval is only as wide as the other side's.

    Args:
        minuends: C means.
        subtrahends: C means over other units.
        resamples: draws of units, at least 100.
        seed: of the draws.

    Returns:
        C; without interval and p where a side has fewer than 10 units, or both are the same in all theirs.

    Raises:
        ValueError: different numbers of means, or fewer than 100 resamples.
    """
    if len(minuends.sums) != len(subtrahends.sums):
        raise ValueError(f"{len(minuends.sums)} means cannot be paired with {len(subtrahends.sums)}")
    seeds = np.random.SeedSequence(seed).spawn(2)
    pair_differences: list[Difference] = []
    pairs = zip(
        *(
            _resample(side, resamples, side_seed)
            for side, side_seed in zip((minuends, subtrahends), seeds, strict=True)
        ),
        strict=True,
    )
    for minuend, subtrahend in pairs:
        joint = _Draws(
            minuend.means - subtrahend.means,
            minuend.variances + subtrahend.variances,
            np.minimum(minuend.units, subtrahend.units),
            minuend.shifts - subtrahend.shifts,
            minuend.drawn_variances + subtrahend.drawn_variances,
        )
        pair_differences += _differences(joint)
    return pair_differences


@dataclass(frozen=True, eq=False)
class _Draws:
    """Draws of some means: how far each moved, and its variance."""

    means: FloatArray  # (C,)
    variances: FloatArray  # (C,) of the means; 0 where all units have the same
    units: NDArray[np.int64]  # (C,) with queries
    shifts: FloatArray  # (R, C) drawn mean - mean
    drawn_variances: FloatArray  # (R, C) of the drawn means

    @property
    def errors(self) -> FloatArray:
        """(C,) the standard errors; 0 where there is no interval."""
        errors: FloatArray = np.sqrt(np.where(self.units >= FEWEST_UNITS, self.variances, 0.0))
        return errors

    @property
    def floor(self) -> FloatArray:
        """(C,) the share of s that s* of a difference has at least."""
        floor: FloatArray = np.maximum(_FLOOR, 1 - 2.2 / np.sqrt(2 * self.units))
        return floor

    def studentised(self, floor: float | FloatArray) -> FloatArray:
        """(R, C) t* of each draw; 0 where there is no interval."""
        errors = self.errors
        scale = np.sqrt(np.maximum(self.drawn_variances, (floor * errors) ** 2))
        studentised_shifts: FloatArray = np.divide(self.shifts, scale, out=np.zeros_like(self.shifts), where=errors > 0)
        return studentised_shifts


def _resample(cells: UnitSums, resamples: int, seed: np.random.SeedSequence) -> Iterator[_Draws]:
    """Some cells at a time, all from the same draws."""
    if resamples < FEWEST_RESAMPLES:
        raise ValueError(f"resamples = {resamples}: must be at least {FEWEST_RESAMPLES}")
    used = (cells.counts > 0).any(0)
    size = max(1, _BLOCK // max(resamples, used.sum()))
    for start in range(0, len(cells.sums), size):
        rows = slice(start, start + size)
        yield _draw_means(cells[rows][:, used], resamples, seed)


def _draw_means(cells: UnitSums, resamples: int, seed: np.random.SeedSequence) -> _Draws:
    """Draws of means that are all held at once."""
    sums, counts = cells.sums, cells.counts
    means, totals = cells.means, counts.sum(1)
    residuals = sums - means[:, None] * counts
    residuals[~cells.differ] = 0.0
    # Counts are mostly those of the first mean: then a single column of them is drawn.
    weighed = counts[:1] if (counts == counts[:1]).all() else counts
    columns = [residuals.T, (residuals**2).T, (residuals * counts).T, weighed.T, (weighed**2).T]
    shifts, variances = np.empty((resamples, len(means))), np.empty((resamples, len(means)))
    row = 0
    for drawn in _draws(sums.shape[1], resamples, seed):
        moved, squares, products, number, square = (drawn @ column for column in columns)
        number = np.where(number > 0, number, np.inf)  # a draw without any query of a mean moves nothing
        rows = slice(row, row + len(drawn))
        shifts[rows] = moved / number
        # Never negative but for rounding: it is the sum of squares of what the drawn units leave of the drawn mean.
        variances[rows] = (squares - 2 * shifts[rows] * products + shifts[rows] ** 2 * square) / number**2
        row += len(drawn)
    return _Draws(means, (residuals**2).sum(1) / totals**2, (counts > 0).sum(1), shifts, variances)


def _draws(units: int, resamples: int, seed: np.random.SeedSequence) -> Iterator[FloatArray]:
    """(R', U) how often each unit was drawn, some draws at a time."""
    rng, rows = np.random.default_rng(seed), max(1, _BLOCK // units)
    for start in range(0, resamples, rows):
        number = min(rows, resamples - start)
        drawn = rng.integers(units, size=(number, units))
        drawn += units * np.arange(number)[:, None]
        yield np.bincount(drawn.ravel(), minlength=number * units).reshape(number, units).astype(np.float64)


def _points(drawn: FloatArray) -> FloatArray:
    """(2, ...) the draws at which an interval begins and ends, along the first axis of `drawn`."""
    outside = math.ceil(0.025 * (len(drawn) + 1)) - 1
    places = (outside - 1, len(drawn) - outside)
    points: FloatArray = np.partition(drawn, places, axis=0)[list(places)]
    return points


def _reach(drawn: FloatArray) -> FloatArray:
    """(...) the |t*| at which a symmetric interval ends, along the first axis of `drawn`."""
    rank = len(drawn) + 1 - math.ceil(0.05 * (len(drawn) + 1))
    reach: FloatArray = np.partition(drawn, rank, axis=0)[rank]
    return reach


def _intervals(
    low: FloatArray, high: FloatArray, errors: FloatArray, bounds: tuple[float, float]
) -> list[Interval | None]:
    ends = zip(low.clip(*bounds).tolist(), high.clip(*bounds).tolist(), (errors > 0).tolist(), strict=True)
    return [Interval(lower, upper) if there else None for lower, upper, there in ends]


def _differences(draws: _Draws) -> list[Difference]:
    """The symmetric intervals; p is below 0.05 exactly where |t| is beyond the |t*| at which the interval ends."""
    means, errors = draws.means, draws.errors
    drawn = np.abs(draws.studentised(draws.floor))
    end = _reach(drawn)
    observed = np.divide(means, errors, out=np.zeros_like(means), where=errors > 0)
    # Not means - errors x end, which rounding could bring to the other side of 0.
    low, high = errors * (observed - end), errors * (observed + end)
    p = (1 + (drawn >= np.abs(observed)).sum(0)) / (1 + len(drawn))
    rows = zip(means.tolist(), low.tolist(), high.tolist(), p.tolist(), (errors > 0).tolist(), strict=True)
    return [Difference(mean, *ends_and_p) if there else Difference(mean) for mean, *ends_and_p, there in rows]


_MOST = 2**25  # numbers of a table of all pairs: 256 MiB


def bands_from_best(
    cells: UnitSums, best: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> list[Interval | None] | None:
    """Simultaneous 95 % bands of the differences: the best mean minus each other one.

    The bands are those of the differences of all pairs of means (`bootstrap.bands`), not only of the differences to the
    best, which was selected for its high value. In simulation, of 14 equal means over 60 classes, bands of the
    differences to the best alone find a false difference in 23 % of the sets, bands of all pairs in 4 %. For two means
    they agree with `bootstrap.differences`.

    Args:
        cells: of C means over the same queries.
        best: index of the best one.
        resamples: draws of units, as for `bands`.
        seed: of the draws.

    Returns:
        C, in the order of the means; None for the best itself and where a mean is the same as the best in every unit.
        None in all for a single mean, for fewer than 10 units, and where the table of all pairs would exceed 256 MiB.
    """
    count, units = cells.sums.shape
    pairs = list(combinations(range(count), 2))
    if not pairs or cells.units < FEWEST_UNITS or len(pairs) * units > _MOST:
        return None
    minuends, subtrahends = (list(places) for places in zip(*pairs, strict=True))
    apart = cells[minuends].minus(cells[subtrahends])
    pair_bands = bands(apart, symmetric=True, bounds=(-np.inf, np.inf), resamples=resamples, seed=seed)
    from_best: list[Interval | None] = [None] * count
    for (minuend, subtrahend), band in zip(pairs, pair_bands, strict=True):
        if best == minuend:
            from_best[subtrahend] = band
        elif best == subtrahend and band is not None:
            from_best[minuend] = Interval(-band.high, -band.low)
    return from_best


def indistinguishable_from_best(
    cells: UnitSums, best: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[int, ...] | None:
    """The means that are not significantly different from the best one, by the bands of `bands_from_best`.

    Returns:
        Indices, ascending; None where there are no bands.
    """
    from_best = bands_from_best(cells, best, resamples=resamples, seed=seed)
    if from_best is None:
        return None
    return tuple(place for place, band in enumerate(from_best) if place != best and not is_significant_band(band))


def is_significant_band(band: Interval | None) -> bool:
    """Whether a band excludes 0; without a band the two means are the same in every unit."""
    return band is not None and not band.low <= 0 <= band.high


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Correct p of several comparisons, so that any is falsely below 0.05 in at most 5 % of the cases.

    Holm (1979): the i-th smallest of m is multiplied by m - i + 1, and is at least the one before it. It needs no
    independence.

    Args:
        p: each in [0, 1]; None for a comparison without p, which does not count as one.

    Returns:
        In the order of `p`, at most 1; None where `p` has it.

    Raises:
        ValueError: a p that is not in [0, 1].
    """
    if not all(value is None or 0 <= value <= 1 for value in p):
        raise ValueError(f"p must lie in [0, 1], got {list(p)}")
    ordered = sorted((value, index) for index, value in enumerate(p) if value is not None)
    corrected: list[float | None] = [None] * len(p)
    least = 0.0
    for rank, (value, index) in enumerate(ordered):
        least = max(least, min(1.0, (len(ordered) - rank) * value))
        corrected[index] = least
    return corrected
