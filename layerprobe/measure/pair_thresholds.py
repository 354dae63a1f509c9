"""Similarity thresholds at false accept rates, and the error rates of a layer over all of them.

Two images are accepted as of one class if their similarity is at least the threshold. A pair is genuine if both images
are of one class, else impostor; which pairs count says `AllPairs`. The false accept rate is the share of the impostor
pairs that are accepted, the true accept rate that of the genuine ones.

The threshold at a false accept rate is the lowest one with at most that rate. It lies half a step (about 1e-12) above
the most similar impostor pair that must not be accepted, so that equal similarities are accepted or rejected together
whatever their rounding; where the rate is less than one impostor pair, above all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.all_pairs import AllPairs, Tile
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.facts import PAIRS_WITHIN_FOLDS
from layerprobe.values.scores import Subject
from layerprobe.values.thresholds import FALSE_ACCEPT_RATES
from layerprobe.values.views import ErrorRates, SetThreshold

if TYPE_CHECKING:
    from torch import Tensor

Counts = NDArray[np.int64]
Units = NDArray[np.int64]
# A similarity is a whole number of steps. A bin has so many; of bits that differ, one.
_BIN = 2**20
# More classes are put together into so many units: a table of all pairs of classes would not fit.
_MOST_UNITS = 2048
_PER_DEVIATE = 100


@dataclass(frozen=True, eq=False)
class PairCounts:
    """How many pairs have a similarity in each bin, about 1e-6 of the largest possible one wide, ascending.

    Args:
        genuine: (S,)
        impostor: (S,)
    """

    genuine: Counts
    impostor: Counts

    @property
    def collapsed(self) -> bool:
        """Whether all pairs are in one bin."""
        return int(((self.genuine + self.impostor) > 0).sum()) == 1

    def rates(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """False accept and false reject rates at every threshold between bins that hold pairs, lowest threshold first.

        Raises:
            DataError: no genuine or no impostor pair.
        """
        require_pairs(int(self.genuine.sum()), int(self.impostor.sum()))
        held = np.flatnonzero(self.genuine + self.impostor)
        accepted, rejected = (np.r_[0, np.cumsum(kind[held])] for kind in (self.impostor, self.genuine))
        return 1 - accepted / accepted[-1], rejected / rejected[-1]

    def thinned(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The rates at which one of them is neither 0 nor 1, some 100 for each unit of a normal deviate of either."""
        from scipy.special import ndtri

        accepts, rejects = self.rates()
        selected = np.zeros(len(accepts), bool)
        for rates in (accepts, rejects):
            _, first_of_step = np.unique(
                np.round(_PER_DEVIATE * ndtri(np.clip(rates, 1e-300, 1 - 1e-16))), return_index=True
            )
            selected[first_of_step] = True
        selected &= (accepts > 0) & (accepts < 1) | (rejects > 0) & (rejects < 1)
        return accepts[selected], rejects[selected]

    def equal_error_rate(self) -> float:
        """The rate at which false accepts and false rejects are equally many, linear between thresholds.

        Raises:
            DataError: no genuine or no impostor pair.
        """
        accepts, rejects = self.rates()
        after = int(np.argmax(rejects >= accepts))  # at least 1: at the lowest threshold all are accepted
        gaps = accepts[after - 1 : after + 1] - rejects[after - 1 : after + 1]
        share = gaps[0] / (gaps[0] - gaps[1])
        return float(accepts[after - 1] + share * (accepts[after] - accepts[after - 1]))


@dataclass(frozen=True, eq=False)
class Accepted:
    """The pairs that T thresholds accept, by U units: classes or clusters, or with more than 2,048 these put together.

    Args:
        genuine: (T, U) accepted genuine pairs, by the query's unit.
        genuine_pairs: (U,) all of them.
        impostor: (T, U, U) accepted impostor pairs, by the units of query and item.
        impostor_pairs: (U, U) all of them.
    """

    genuine: Counts
    genuine_pairs: Counts
    impostor: Counts
    impostor_pairs: Counts


def require_pairs(genuine: int, impostor: int) -> None:
    """Check that there are pairs of both kinds."""
    if not impostor:
        raise DataError("no impostor pair: all images are of one class", fix="Give images of several classes")
    if not genuine:
        raise DataError("no genuine pair: every class has one image", fix="Give classes of at least two images")


def count_pairs(pairs: AllPairs) -> PairCounts:
    """Count all pairs by their similarity."""
    grid = _Grid.of(pairs)
    counts = np.zeros((2, grid.bins), np.int64)
    for tile, steps in grid.steps(pairs):
        for row, kind in enumerate((tile.genuine, tile.impostor)):
            counts[row] += np.bincount(steps[kind].cpu().numpy() // grid.width, minlength=grid.bins)
    return PairCounts(counts[0], counts[1])


def thresholds_at(pairs: AllPairs, counts: PairCounts, rates: Sequence[float]) -> list[float]:
    """The lowest threshold with at most each of some false accept rates, exactly.

    Args:
        counts: of these pairs.
        rates: in [0, 1).

    Returns:
        In the similarities of `AllPairs.tiles`.

    Raises:
        DataError: no impostor pair.
    """
    grid, total = _Grid.of(pairs), int(counts.impostor.sum())
    require_pairs(1, total)
    above = np.r_[np.cumsum(counts.impostor[::-1])[::-1], 0]  # in a bin or a higher one
    ranks = [_allowed_count(rate, total) for rate in rates]  # of the most similar pair that is rejected, from 0
    bins = [int(np.flatnonzero(above > rank)[-1]) for rank in ranks]
    within = {bin_index: np.zeros(grid.width, np.int64) for bin_index in bins}
    for tile, steps in grid.steps(pairs):
        upper = steps.div(grid.width, rounding_mode="floor")
        for bin_index, counts_in_bin in within.items():
            some = steps[tile.impostor & (upper == bin_index)] % grid.width
            counts_in_bin += np.bincount(some.cpu().numpy(), minlength=grid.width)
    thresholds = []
    for rank, bin_index in zip(ranks, bins, strict=True):
        beyond = above[bin_index + 1] + np.cumsum(within[bin_index][::-1])[::-1]
        step = bin_index * grid.width + int(np.flatnonzero(beyond > rank)[-1])
        thresholds.append((step + grid.lowest + 0.5) * pairs.step)
    return thresholds


def count_accepted(
    pairs: AllPairs, thresholds: Sequence[float], *, units: tuple[Units, Units] | None = None
) -> Accepted:
    """Count the pairs that thresholds accept.

    Args:
        units: (Q,) and (G,) the unit of each query and of each item; None: their classes.
    """
    of_images = units or (pairs.queries.labels, pairs.gallery.labels)
    numbers = np.unique(np.concatenate(of_images))
    size = min(len(numbers), _MOST_UNITS)
    rows, columns = (np.searchsorted(numbers, units_of_images) % size for units_of_images in of_images)
    genuine, impostor = (np.zeros((len(thresholds) + 1, cells), np.int64) for cells in (size, size * size))
    for tile in pairs.tiles():
        for row, threshold in enumerate([*thresholds, -np.inf]):
            above = tile.similarities >= threshold
            where, _ = _places(tile.genuine & above)
            genuine[row] += np.bincount(rows[tile.rows][where], minlength=size)
            where, which = _places(tile.impostor & above)
            cells = rows[tile.rows][where] * size + columns[tile.columns][which]
            impostor[row] += np.bincount(cells, minlength=size * size)
    tables = impostor.reshape(-1, size, size)
    return Accepted(genuine[:-1], genuine[-1], tables[:-1], tables[-1])


def _allowed_count(rate: float, total: int) -> int:
    """How many of the impostor pairs may be accepted: the most whose share, as a float, is at most the rate."""
    count = min(int(rate * total) + 1, total)
    while count / total > rate:
        count -= 1
    return count


@dataclass(frozen=True)
class _Grid:
    """The bins of similarities.

    Args:
        lowest: the lowest possible similarity, in steps.
        width: of a bin, in steps.
    """

    lowest: int
    width: int
    bins: int

    @classmethod
    def of(cls, pairs: AllPairs) -> _Grid:
        if pairs.form.similarity == "hamming":
            return cls(-pairs.form.dim, 1, pairs.form.dim + 1)
        return cls(-(_BIN**2), _BIN, 2 * _BIN + 1)

    def steps(self, pairs: AllPairs) -> Iterator[tuple[Tile, Tensor]]:
        """All tiles, with the similarities in steps above the lowest one, int64 (A, B)."""
        for tile in pairs.tiles():
            steps = tile.similarities.div(pairs.step).round_().long().sub_(self.lowest)
            yield tile, steps.clamp_(0, self.bins * self.width - 1)


def _places(kind: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    where, which = kind.nonzero(as_tuple=True)
    return where.cpu().numpy(), which.cpu().numpy()


def error_rates(subject: Subject, pairs_of: Callable[[str], AllPairs], set_on: str | None) -> ErrorRates:
    """The error rates of a split's pairs, and of thresholds that were set at false accept rates of 0.1 and 1 %.

    Args:
        subject: the layer and split, with its notes.
        pairs_of: split -> its pairs.
        set_on: the split that thresholds are set on; None for no thresholds.

    Returns:
        Without rates, and with the reason as a note, where there is no genuine or no impostor pair, or NaN or Inf.
    """
    pairs_of = functools.cache(pairs_of)
    split_rates, measured = _rates(subject, lambda: [pairs_of(subject.split)])
    if set_on is None or not measured:
        return split_rates
    pairs = pairs_of(subject.split)
    try:
        setting = pairs_of(set_on)
        thresholds = thresholds_at(setting, count_pairs(setting), FALSE_ACCEPT_RATES)
    except (DataError, NumericError) as error:
        return replace(split_rates, notes=(*split_rates.notes, f"no thresholds set on {set_on}: {error.message}"))
    counts = count_accepted(pairs, thresholds)
    placed = [
        SetThreshold(rate, impostor.sum() / counts.impostor_pairs.sum(), 1 - genuine.sum() / counts.genuine_pairs.sum())
        for rate, impostor, genuine in zip(FALSE_ACCEPT_RATES, counts.impostor, counts.genuine, strict=True)
    ]
    notes = () if setting.folds is None else (f"thresholds are set on {PAIRS_WITHIN_FOLDS}",)
    return replace(split_rates, set_on=set_on, thresholds=tuple(placed), notes=(*split_rates.notes, *notes))


def error_rates_within_folds(subject: Subject, folds: Callable[[], Sequence[AllPairs]]) -> ErrorRates:
    """The error rates of the pairs within folds, of all folds together; as `error_rates` without thresholds.

    Args:
        folds: gives the pairs of each fold, all by the same similarity.
    """
    return _rates(subject, folds)[0]


def _rates(subject: Subject, parts: Callable[[], Sequence[AllPairs]]) -> tuple[ErrorRates, bool]:
    """The rates of all parts together, or the reason why there are none; and whether there are any."""
    split_rates = ErrorRates(
        subject.run, subject.epoch, subject.split, subject.ranked, (), (), None, 0, notes=subject.notes
    )
    try:
        pairs = parts()
        split_rates = replace(split_rates, n=sum(len(part_pairs.queries) for part_pairs in pairs))
        counted = [count_pairs(part_pairs) for part_pairs in pairs]
        counts = PairCounts(
            np.sum([counts_of_part.genuine for counts_of_part in counted], axis=0),
            np.sum([counts_of_part.impostor for counts_of_part in counted], axis=0),
        )
        accepts, rejects = counts.thinned()
    except (DataError, NumericError) as error:
        return replace(split_rates, notes=(*split_rates.notes, error.message)), False
    equal = counts.equal_error_rate()
    if counts.collapsed:
        return replace(
            split_rates, equal_error_rate=equal, notes=(*split_rates.notes, "all similarities are equal to 1e-6")
        ), False
    rates = tuple(accepts.tolist()), tuple(rejects.tolist())
    return replace(split_rates, false_accepts=rates[0], false_rejects=rates[1], equal_error_rate=equal), True
