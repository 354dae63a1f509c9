"""The decision rule among many candidates, and the selection bias of the best on test.

With m the mean of a candidate, sum of its sums / sum of its counts over U units, b the best candidate and c another,
the error of d = m_b - m_c is that of the two linearised ratios, paired by units: with
e = (s_b - m_b n_b) / N_b - (s_c - m_c n_c) / N_c of each unit, s^2 = U / (U - 1) sum(e^2). What the candidates have in
common in a unit is not in it.

A candidate qualifies if the upper end of the one-sided 95 % interval of d is at most what it may be worse. Where few
units lose much, Student's t ends too low: in simulation up to 8 % of such candidates qualified that should not have. So
its skewness is taken away by the cubic of Hall (1992), g(t) = t + k t^2 / 3 + k^2 t^3 / 27 + k / 6, where k is the
skewness of the units by sqrt(U), k = U^2 / ((U - 1) (U - 2)) sum(e^3) / s^3. The end is d - s g^-1(-t), with the 95 %
point t of Student's distribution of U - 1 degrees of freedom. benchmarks/README.md, "Choosing", has how often a worse
candidate qualifies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from layerprobe.statistics.units import UnitSums
from layerprobe.system.errors import NumericError
from layerprobe.values.arrays import FloatArray
from layerprobe.values.choice import FOLDS
from layerprobe.values.intervals import FEWEST_UNITS

Cost = tuple[int, ...]

RESAMPLES = 1000
_EQUAL = 1e-9  # means that differ by less are equal up to rounding
_NOT_SKEWED = 1e-6  # below it the inverse of the cubic is lost to rounding, and is t


@dataclass(frozen=True)
class Picked:
    """One of C candidates.

    Args:
        place: of the one to take.
        best: of the one with the highest mean; of equals the cheapest.
        equivalent: the places of all that could be taken by the same rule, the cheapest first: `place` is the first.
    """

    place: int
    best: int
    equivalent: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """What choosing on the other folds gives on each fold.

    Args:
        places: of the candidate that was chosen for each fold, in ascending order of fold.
        cells: (1, U) the fold's own units by that candidate, the folds side by side.
    """

    places: tuple[int, ...]
    cells: UnitSums


def pick(cells: UnitSums, costs: Sequence[Cost], *, within: float) -> Picked:
    """The cheapest candidate that is at most `within` worse than the best one, with 95 % (one-sided, paired).

    Args:
        cells: of C candidates' means over the same queries. A candidate with NaN among its sums is never picked.
        costs: of the candidates; a lower one is cheaper, and of equals the first.
        within: how much worse a candidate may be, in the unit of the means; a share, not points.

    Returns:
        With fewer than 10 units nothing qualifies but the best mean.

    Raises:
        NumericError: every candidate has NaN.
        ValueError: a cost is missing.
    """
    order, valid = _cheapest_first(cells, costs)
    best, passed = _qualifying(valid, np.ones(valid.sums.shape[1]), within)
    equivalent = tuple(order[passed].tolist())
    return Picked(equivalent[0], int(order[best]), equivalent)


def shares(
    cells: UnitSums, costs: Sequence[Cost], *, within: float, resamples: int = RESAMPLES, seed: int = 0
) -> FloatArray:
    """How often each candidate is picked where the units are drawn again, with replacement.

    Args:
        cells: see `pick`.
        costs: see `pick`.
        within: see `pick`.
        resamples: draws of units.
        seed: of the draws.

    Returns:
        (C,) shares with the sum 1.

    Raises:
        NumericError: every candidate has NaN.
        ValueError: a cost is missing.
    """
    order, valid = _cheapest_first(cells, costs)
    units = valid.sums.shape[1]
    rng, picked = np.random.default_rng(seed), np.zeros(len(order))
    for _ in range(resamples):
        drawn = np.bincount(rng.integers(units, size=units), minlength=units).astype(np.float64)
        picked[_qualifying(valid, drawn, within)[1][0]] += 1
    found = np.zeros(len(costs))
    found[order] = picked / resamples
    return found


def folds_of(units: ArrayLike, *, count: int = FOLDS, seed: int = 0) -> NDArray[np.int64]:
    """Divide units into folds at random, of equal sizes up to one.

    Args:
        units: (Q,) the unit of each query, any integers.
        count: of folds. With fewer units some folds have none.
        seed: of the division.

    Returns:
        (U,) the fold of each unit, in ascending order of unit, as `unit_sums` has them.
    """
    number = len(np.unique(np.asarray(units)))
    return np.random.default_rng(seed).permutation(np.arange(number) % count)


def cross_fitted(
    cells_of: Callable[[int], UnitSums] | UnitSums, folds: ArrayLike, choose: Callable[[UnitSums], int]
) -> CrossFitted:
    """For each fold, choose on the other folds and take the fold's units of the chosen candidate.

    Args:
        cells_of: fold -> the cells of C candidates, fitted without that fold, on all U units; or the cells themselves,
            where no candidate is fitted.
        folds: (U,) the fold of each unit.
        choose: cells of C candidates on the units of the other folds -> the place of one.

    Raises:
        ValueError: folds of another number of units, or fewer than two folds.
    """
    members = np.asarray(folds)
    names = np.unique(members)
    if len(names) < 2:
        raise ValueError(f"{len(names)} folds: at least 2 are needed")
    sums, counts, places = np.zeros((1, len(members))), np.zeros((1, len(members))), []
    for fold in names.tolist():
        cells = cells_of if isinstance(cells_of, UnitSums) else cells_of(fold)
        if cells.sums.shape[1] != len(members):
            raise ValueError(f"{len(members)} units have folds, {cells.sums.shape[1]} have sums")
        own = members == fold
        place = choose(UnitSums(cells.sums[:, ~own], cells.counts[:, ~own]))
        sums[0, own], counts[0, own] = cells.sums[place, own], cells.counts[place, own]
        places.append(place)
    return CrossFitted(tuple(places), UnitSums(sums, counts))


def optimism(cells: UnitSums, folds: ArrayLike) -> float | None:
    """By how much the highest of C means is too high, as it was chosen on the same units.

    It is the highest mean less what taking the best on the other folds gives on each fold. Where candidates are nearly
    equal this is a noisy number, and on average a little high: a fold's choice is made on fewer units.

    Args:
        cells: of C means over the same queries. Those with NaN among their sums are excluded.
        folds: (U,) the fold of each unit.

    Returns:
        In the unit of the means; None with fewer than 10 units, or where every mean is NaN.
    """
    valid = np.isfinite(cells.sums).all(1)
    if cells.units < FEWEST_UNITS or not valid.any():
        return None
    cells = UnitSums(cells.sums[valid], cells.counts[valid])
    crossed = cross_fitted(cells, folds, lambda others: int(others.means.argmax()))
    return float(cells.means.max() - crossed.cells.means[0])


def greedy(
    start: tuple[int, ...], others: Sequence[int], value_of: Callable[[tuple[int, ...]], float], most: int = 3
) -> list[tuple[int, ...]]:
    """Add to a set of members, one after the other, the one that raises its value most.

    Args:
        start: the members to begin with.
        others: the members that may be added.
        value_of: members, in the order in which they were added -> their value; NaN for a set that has none.
        most: members a set may have.

    Returns:
        The sets on the way, each with one member and a higher value more than the one before; `start` is not among
        them. It ends where no further member raises the value.
    """
    found: list[tuple[int, ...]] = []
    members, value = start, value_of(start)
    while len(members) < most:
        tried = [(*members, other) for other in others if other not in members]
        values = [value_of(longer) for longer in tried]
        better = [place for place, new in enumerate(values) if new > value]
        if not better:
            break
        best = max(better, key=values.__getitem__)
        members, value = tried[best], values[best]
        found.append(members)
    return found


def _cheapest_first(cells: UnitSums, costs: Sequence[Cost]) -> tuple[NDArray[np.int64], UnitSums]:
    """The places of the candidates without NaN, the cheapest first, and their cells on the units with queries."""
    if len(costs) != len(cells.sums):
        raise ValueError(f"{len(cells.sums)} candidates have {len(costs)} costs")
    valid = np.flatnonzero(np.isfinite(cells.sums).all(1)).tolist()
    if not valid:
        raise NumericError("no candidate has a valid number", fix="Probe layers and epochs whose features are finite")
    order = np.array(sorted(valid, key=lambda place: costs[place]), np.int64)
    used = (cells.counts > 0).any(0)
    return order, UnitSums(cells.sums[order][:, used], cells.counts[order][:, used])


def _qualifying(cells: UnitSums, drawn: FloatArray, within: float) -> tuple[int, NDArray[np.int64]]:
    """The best candidate, and the eligible ones, the cheapest first.

    Args:
        cells: of C candidates without NaN, the cheapest first.
        drawn: (U,) how often each unit was drawn.
        within: how much worse than the best a candidate may be.
    """
    number = cells.counts @ drawn
    means = np.divide(cells.sums @ drawn, number, out=np.full(len(number), -np.inf), where=number > 0)
    best = int((means >= means.max() - _EQUAL).argmax())
    units = cells.sums.shape[1]
    if units < FEWEST_UNITS:
        return best, np.array([best])
    # The upper end is never below the difference itself.
    near = np.flatnonzero(means >= means[best] - within - _EQUAL)
    parts = (cells.sums[near] - means[near, None] * cells.counts[near]) / number[near, None]
    errors = (cells.sums[best] - means[best] * cells.counts[best]) / number[best] - parts
    highest = means[best] - means[near] + _reach(errors, drawn)
    return best, near[(near == best) | (highest <= within + _EQUAL)]


def _reach(errors: FloatArray, drawn: FloatArray) -> FloatArray:
    """(C,) by how much the upper end of the one-sided 95 % interval of differences is above them.

    Args:
        errors: (C, U) contribution of a unit to the error of a difference.
        drawn: (U,) how often each unit was drawn.
    """
    units = errors.shape[1]
    squares = errors**2
    error = np.sqrt(squares @ drawn * units / (units - 1))
    third = (squares * errors) @ drawn * units**2 / ((units - 1) * (units - 2))
    skewness = np.divide(third, error**3, out=np.zeros_like(error), where=error > _EQUAL)
    end = np.full_like(error, -stdtrit(units - 1, 0.95))
    skewed = np.abs(skewness) > _NOT_SKEWED
    k = skewness[skewed]
    end[skewed] = 3 / k * (np.cbrt(1 + k * (end[skewed] - k / 6)) - 1)
    found: FloatArray = -end * error
    return found
