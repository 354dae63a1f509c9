"""The candidate to select among many, and the optimism of the best on test.

The rule: among the candidates whose means are at most half of a paired standard error below the best one, the highest
mean of a finer measure. Where few classes are chosen on, Recall@1 is saturated and many candidates are that near;
MAP@R of the same queries still tells them apart. docs/understand/selection.md has the rule. How sure the choice is:
`verdict.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.statistics.units import UnitSums
from layerprobe.system.errors import NumericError
from layerprobe.values.choice import FOLDS
from layerprobe.values.intervals import FEWEST_UNITS
from layerprobe.values.retrieval import FloatArray

Cost = tuple[int, ...]
Finer = Callable[[Sequence[int]], UnitSums | None]  # indices of candidates -> their means by a finer measure

RESAMPLES = 200
EQUAL = 1e-9  # means that differ by less are equal up to rounding
_NEAR = 0.5  # paired standard errors below the best mean, within which a finer measure decides


def pick(cells: UnitSums, costs: Sequence[Cost], raw: Sequence[bool], finer: Finer | None = None) -> int:
    """The best by a finer measure of the candidates at most half of a paired standard error below the best mean.

    Args:
        cells: of C candidates' means over the same queries. A candidate with NaN among its sums is never picked.
        costs: of the candidates. Of equal means a raw one is picked, then the cheapest, then the first.
        raw: whether each candidate is a layer without post-processing.
        finer: over the same units; None, or where it gives None: the best mean. Not asked with fewer than 10 units.

    Returns:
        The index of the candidate.

    Raises:
        NumericError: every candidate has NaN.
        ValueError: a cost is missing.
    """
    order, valid = _order_by_preference(cells, costs, raw)
    best = int(_first_highest(valid.means[None])[0])
    near = np.flatnonzero(valid.means[best] - valid.means <= _NEAR * _paired_errors(valid, best) + EQUAL)
    if finer is not None and len(near) > 1 and valid.units >= FEWEST_UNITS:
        measured = finer(order[near].tolist())
        if measured is not None and np.isfinite(measured.sums).all():
            return int(order[near[_first_highest(measured.means[None])[0]]])
    return int(order[best])


def resample_choice(
    cells: UnitSums,
    costs: Sequence[Cost],
    raw: Sequence[bool],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, FloatArray]:
    """Choose the best mean, as `pick` does without a finer measure, on resamples of the units, with replacement.

    Args:
        cells: see `pick`.
        costs: see `pick`.
        raw: see `pick`.
        resamples: draws of units.
        seed: of the draws.

    Returns:
        The expected loss: the mean over the resamples of the best mean on all units minus that of the candidate chosen;
        and (C,) the share of the resamples that choose each candidate, which sum to 1.

    Raises:
        NumericError: every candidate has NaN.
        ValueError: a cost is missing.
    """
    order, valid = _order_by_preference(cells, costs, raw)
    units = valid.sums.shape[1]
    # (R, U) how often each unit is drawn
    drawn = np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), resamples).astype(np.float64)
    number = drawn @ valid.counts.T
    means = np.divide(drawn @ valid.sums.T, number, out=np.full(number.shape, -np.inf), where=number > 0)
    places = _first_highest(means)
    shares = np.zeros(len(costs))
    shares[order] = np.bincount(places, minlength=len(order)) / resamples
    on_all = valid.means
    return float((on_all.max() - on_all[places]).mean()), shares


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


def folds_of_queries(units: ArrayLike, *, seed: int = 0) -> NDArray[np.int64]:
    """(Q,) the fold of each query's unit, as `folds_of` divides the units (Q,)."""
    return folds_of(units, seed=seed)[np.unique(units, return_inverse=True)[1]]


def cross_fit(
    cells: UnitSums, folds: ArrayLike, choose: Callable[[UnitSums, int], int]
) -> tuple[tuple[int, ...], UnitSums]:
    """For each fold, choose on the other folds, and take the fold's units of the chosen candidate.

    Args:
        cells: of C candidates' means.
        folds: (U,) the fold of each unit.
        choose: cells of C candidates on the units of the other folds, and the fold -> the index of one.

    Returns:
        The index of the candidate that was chosen for each fold, in ascending order of fold; and (1, U) the units of
        each fold by the candidate that was chosen for it.

    Raises:
        ValueError: folds of another number of units, or fewer than two folds.
    """
    members = np.asarray(folds)
    names = np.unique(members)
    if len(names) < 2:
        raise ValueError(f"{len(names)} folds: at least 2 are needed")
    if cells.sums.shape[1] != len(members):
        raise ValueError(f"{len(members)} units have folds, {cells.sums.shape[1]} have sums")
    sums, counts, places = np.zeros((1, len(members))), np.zeros((1, len(members))), []
    for fold in names.tolist():
        is_in_fold = members == fold
        candidate = choose(cells[:, ~is_in_fold], fold)
        sums[0, is_in_fold] = cells.sums[candidate, is_in_fold]
        counts[0, is_in_fold] = cells.counts[candidate, is_in_fold]
        places.append(candidate)
    return tuple(places), UnitSums(sums, counts)


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
    cells = cells[valid]
    _, crossed = cross_fit(cells, folds, lambda others, _: int(others.means.argmax()))
    return float(cells.means.max() - crossed.means[0])


def _order_by_preference(
    cells: UnitSums, costs: Sequence[Cost], raw: Sequence[bool]
) -> tuple[NDArray[np.int64], UnitSums]:
    """The places of the candidates without NaN, raw ones first, then by cost, and their cells on units with queries."""
    if not len(cells.sums) == len(costs) == len(raw):
        raise ValueError(f"{len(cells.sums)} candidates have {len(costs)} costs, and {len(raw)} are said to be raw")
    valid = np.flatnonzero(np.isfinite(cells.sums).all(1)).tolist()
    if not valid:
        raise NumericError("no candidate has a valid number", fix="Probe layers and epochs whose features are finite")
    order = np.array(sorted(valid, key=lambda index: (not raw[index], costs[index])), np.int64)
    return order, cells[order][:, (cells.counts > 0).any(0)]


def _first_highest(means: FloatArray) -> NDArray[np.int64]:
    """The first of the highest means (R, C), up to rounding."""
    with np.errstate(invalid="ignore"):  # -inf - -inf, where a draw has no candidate
        places: NDArray[np.int64] = (means >= means.max(1, keepdims=True) - EQUAL).argmax(1)
    return places


def _paired_errors(cells: UnitSums, reference: int) -> FloatArray:
    """(C,) the standard error of each mean's difference to one of them, linearised as in `bootstrap.py`."""
    totals, means = cells.counts.sum(1, keepdims=True), cells.means[:, None]
    residuals = (cells.sums - means * cells.counts) / totals
    units = cells.units
    if units < 2:
        return np.zeros(len(cells.sums))
    errors: FloatArray = np.sqrt(np.square(residuals - residuals[reference]).sum(1) * units / (units - 1))
    return errors
