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
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.all_pairs import AllPairs, Tile
from layerprobe.ranking.items import Items
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.facts import PAIRS_WITHIN_FOLDS
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.scores import Subject
from layerprobe.values.thresholds import FALSE_ACCEPT_RATES
from layerprobe.values.views import ErrorRates, SetThreshold

if TYPE_CHECKING:
    pass

Counts = NDArray[np.int64]
Units = NDArray[np.int64]
# A similarity is a whole number of steps. A bin has so many; of bits that differ, one.
_BIN = 2**20
# More classes are put together into so many units: a table of all pairs of classes would not fit.
_MOST_UNITS = 2048
_PER_DEVIATE = 100
# Products that fit into a CPU's caches.
_AT_ONCE = 2**16
# Bins of a sample; numbers that wait to be counted; runs of numbers that are counted, more than a grid has bins.
_WIDE_BINS, _MOST_WAITING, _MOST_RUNS = 2**14, 2**22, 2**22
# Queries of a sample at least, and one of how many; in runs of so many; groups of runs that tell its standard error, of
# which a threshold is believed to be within so many.
_SAMPLED, _SHARE, _RUN, _GROUPS, _ERRORS = 1024, 24, 4, 16, 6
# How many times longer the next range is where a threshold is not in one.
_LONGER = 8


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
    """Count all pairs by their similarity, each in float64."""
    grid = _Grid.of(pairs)
    counts = np.zeros((2, grid.bins), np.int64)

    def count(tile: Tile) -> None:
        impostor = np.flatnonzero(tile.products.view(-1).cpu().numpy() > -np.inf)
        for row, places in enumerate((tile.genuine, impostor)):
            if len(places):
                counts[row] += np.bincount(grid.steps(tile.exact(places)) // grid.width, minlength=grid.bins)

    pairs.sweep(count)
    return PairCounts(counts[0], counts[1])


@dataclass(frozen=True, eq=False)
class Located:
    """What sweeps find of all pairs.

    Args:
        counts: exact; away from the equal error rate all bins are one.
        thresholds: at false accept rates, in the similarities of `Tile.exact`.
    """

    counts: PairCounts
    thresholds: list[float]


def locate(pairs: AllPairs, rates: Sequence[float] = (), *counts: Callable[[Tile], None]) -> Located:
    """Find where false accept and false reject rate are equal, and the thresholds at false accept rates, exactly.

    The genuine pairs are computed in float64, and those of a sample of the queries say between which similarities each
    threshold lies, but for a chance that is negligible. A sweep in float32 then counts the impostor pairs above, and
    computes those between, or as near to it as rounding reaches, in float64. Where a threshold does not lie there, or
    where so many pairs do that memory cannot tell them apart, further sweeps follow.

    Args:
        rates: in [0, 1); the threshold of each is the lowest one with at most that rate.
        counts: what else the sweep counts.

    Raises:
        DataError: no impostor pair, where there are rates.
    """
    grid = _Grid.of(pairs)
    genuine, total = _genuine_counts(pairs, grid)
    if rates:
        require_pairs(1, total)
    ranks = [_allowed_count(rate, total) for rate in rates]  # of the most similar rejected pair, from 0
    sample = _Sample(pairs, grid)
    equal = _Range(pairs, grid, *sample.where_rates_meet(genuine), grid.width)
    thresholds = [_Range(pairs, grid, *sample.where_ranked((rank + 0.5) / total), 1) for rank in ranks]
    waiting = [(equal, functools.partial(equal.moves_to_equal_rates, genuine, total))]
    waiting += [
        (at_rate, functools.partial(at_rate.moves_to_rank, rank))
        for at_rate, rank in zip(thresholds, ranks, strict=True)
    ]
    while waiting:
        pairs.sweep(functools.partial(_count_ranges, [counted for counted, _ in waiting]), *counts)
        waiting, counts = [(counted, moves) for counted, moves in waiting if moves()], ()
    similarities = [(at_rate.low + grid.lowest + 0.5) * pairs.step for at_rate in thresholds]
    return Located(equal.pair_counts(genuine, total), similarities)


def _genuine_counts(pairs: AllPairs, grid: _Grid) -> tuple[Counts, int]:
    """(S,) the genuine pairs in each bin of the grid, and how many impostor pairs there are."""
    sparse, total = _SparseCounts(grid.width), 0

    def count(tile: Tile) -> None:
        nonlocal total
        total += tile.impostors
        if len(tile.genuine):
            sparse.add(grid.steps(tile.exact(tile.genuine)))

    pairs.sweep(count)
    sparse.settle()
    counts = np.zeros(grid.bins, np.int64)
    counts[sparse.runs << sparse.shift >> grid.width.bit_length() - 1] = sparse.counts
    return counts, total


class _SparseCounts:
    """How often whole numbers occur, by runs of 2^shift of them, so long that the runs fit into memory."""

    def __init__(self, width: int) -> None:
        self.shift = width.bit_length() - 1
        self.runs, self.counts = np.zeros((2, 0), np.int64)
        self.waiting: list[Counts] = []
        self.number = 0  # of numbers that wait

    def add(self, numbers: Counts) -> None:
        """Count numbers, of at least 0."""
        self.waiting.append(numbers)
        self.number += len(numbers)
        if self.number > _MOST_WAITING:
            self.settle()

    def settle(self) -> None:
        """Count what waits."""
        numbers = np.concatenate([*self.waiting, np.zeros(0, np.int64)]) >> self.shift
        self.waiting, self.number = [], 0
        self._merge(np.r_[self.runs, numbers], np.r_[self.counts, np.ones_like(numbers)])
        while len(self.runs) > _MOST_RUNS:
            self.shift += 1
            self._merge(self.runs >> 1, self.counts)

    def _merge(self, runs: Counts, counts: Counts) -> None:
        order = np.argsort(runs, kind="stable")
        runs = runs[order]
        starts = np.flatnonzero(np.r_[True, runs[1:] != runs[:-1]][: len(runs)])
        self.runs = runs[starts]
        self.counts = np.add.reduceat(counts[order], starts) if len(starts) else counts


class _Sample:
    """How large a share of the impostor pairs of some queries is above each wide bin of their products.

    Wide bin 0 holds all below the first edge, the last one all above the last edge.
    """

    def __init__(self, pairs: AllPairs, grid: _Grid) -> None:
        together = -(-grid.bins // _WIDE_BINS)  # bins of the grid in a wide one
        self.size = -(-grid.bins // together) + 2
        self.edges = np.r_[0, np.arange(self.size - 1) * together, grid.bins].clip(max=grid.bins)
        # A wide bin, from 1 on, as a linear function of the product.
        self.factor = float(1 / (pairs.step * grid.width * together * pairs.unit))
        self.offset = float(1 - grid.lowest / (grid.width * together) - self.factor * pairs.product_of(0))
        self.tolerance = 0.0
        self.counts = np.zeros((_GROUPS, self.size), np.int64)
        sample = _sample_of(pairs)
        self.is_part = sample is not pairs
        sample.sweep(self._count)
        above = np.c_[np.cumsum(self.counts[:, ::-1], 1)[:, ::-1], np.zeros(_GROUPS, np.int64)]
        total = max(int(above[:, 0].sum()), 1)
        self.shares = above.sum(0) / total  # (size + 1,)
        self.margins = np.zeros_like(self.shares)
        if self.is_part:
            of_groups = above / above[:, :1].clip(min=1)
            error = of_groups.std(0, ddof=1) / _GROUPS**0.5
            self.margins = _ERRORS * np.maximum(error, np.sqrt(above.sum(0) + 1) / total)

    def _count(self, tile: Tile) -> None:
        import torch

        self.tolerance = max(self.tolerance, float(tile.tolerance.max()))
        groups = tile.rows // _RUN % _GROUPS if self.is_part else np.zeros_like(tile.rows)
        for group in np.unique(groups):
            products = tile.products[torch.from_numpy(np.flatnonzero(groups == group)).to(tile.products.device)]
            numbers = products.view(-1).mul_(self.factor).add_(self.offset).clamp_(0, self.size - 1)
            self.counts[group] += torch.bincount(numbers.int(), minlength=self.size).cpu().numpy()
        # At -inf.
        if self.is_part:
            self.counts[:, 0] -= np.bincount(groups[tile.others // len(tile.columns)], minlength=_GROUPS)
        else:
            self.counts[0, 0] -= tile.products.numel() - tile.impostors

    def where_ranked(self, share: float) -> tuple[int, int]:
        """Between which bins of the grid is the impostor pair that such a share is above."""
        return self._between(self.shares - share)

    def where_rates_meet(self, genuine: Counts) -> tuple[int, int]:
        """Between which bins of the grid false accept and false reject rate are equal.

        Args:
            genuine: (S,) genuine pairs in each bin of the grid.
        """
        rejected = np.r_[0, np.cumsum(genuine)][self.edges]
        return self._between(self.shares - rejected / max(int(rejected[-1]), 1))

    def _between(self, differences: NDArray[np.float64]) -> tuple[int, int]:
        """Between which bins of the grid differences (size + 1,), which fall, are 0, and as far as rounding reaches."""
        reach = math.ceil(self.tolerance * self.factor + 0.25) + 1
        above = np.flatnonzero(differences > self.margins)
        below = np.flatnonzero(differences < -self.margins)
        low, high = int(above.max(initial=0)), int(below.min(initial=self.size))
        low, high = max(min(low, high) - reach, 0), min(max(low, high) + reach, self.size)
        return int(self.edges[low]), int(self.edges[high])


def _sample_of(pairs: AllPairs) -> AllPairs:
    """The pairs of some queries, evenly spread, in runs, as those on a disk are read in slices; or all pairs."""
    import torch

    count = len(pairs.queries)
    runs = max(_SAMPLED, count // _SHARE) // _RUN
    if count <= 2 * runs * _RUN or pairs.folds is not None:
        return pairs
    starts = np.linspace(0, count - _RUN, runs).astype(np.int64)
    rows = (starts[:, None] + np.arange(_RUN)).ravel()
    vectors = torch.cat([pairs.queries.take(slice(start, start + _RUN)) for start in starts.tolist()])
    queries = Items(vectors, pairs.queries.labels[rows])
    return replace(pairs, queries=queries, relevance=pairs.relevance[rows])


class _Range:
    """The impostor pairs of a range of similarities.

    Args:
        pairs: all of them.
        grid: of similarities.
        first: bin of the grid.
        end: the first bin beyond.
        width: of the runs that are counted, in steps.
    """

    def __init__(self, pairs: AllPairs, grid: _Grid, first: int, end: int, width: int) -> None:
        self.pairs, self.grid, self.width = pairs, grid, width
        self._set(first * grid.width, max(end, first + 1) * grid.width)

    def _set(self, low: int, high: int) -> None:
        """Start to count from a step to another one."""
        self.low, self.high = max(low, 0), min(high, self.grid.bins * self.grid.width)
        self.beyond, self.within = 0, _SparseCounts(self.width)

    def bounds(self, tolerance: float) -> tuple[float, float]:
        """The products of what is in the range, and the first of what is surely above it."""
        import torch

        low, high = (
            _bounds(self.pairs.product_of((step + self.grid.lowest - 0.5) * self.pairs.step), tolerance)
            for step in (self.low, self.high)
        )
        # What is no impostor pair is at -inf.
        lowest = float(low[0]) if self.low else torch.finfo(torch.float32).min
        return lowest, float(high[1]) if self.high < self.grid.bins * self.grid.width else math.inf

    def add(self, steps: Counts, beyond: int) -> None:
        """Count pairs (P,) by their similarity in steps, and so many that are above the range."""
        self.beyond += beyond + int((steps >= self.high).sum())
        self.within.add(steps[(steps >= self.low) & (steps < self.high)] - self.low)

    def moves_to_rank(self, rank: int) -> bool:
        """Narrow the range to the impostor pair of a rank, from 0, or move it towards it; whether to count again."""
        self.within.settle()
        length, above = max(self.high - self.low, 1), self.beyond + np.cumsum(self.within.counts[::-1])[::-1]
        if rank < self.beyond:
            self._set(self.high, self.high + _LONGER * length)
            return True
        if rank >= above.max(initial=0):
            self._set(self.low - _LONGER * length, self.low)
            return True
        run, shift = int(self.within.runs[np.flatnonzero(above > rank)[-1]]), self.within.shift
        self._set(self.low + (run << shift), min(self.low + ((run + 1) << shift), self.high))
        return shift > 0

    def moves_to_equal_rates(self, genuine: Counts, total: int) -> bool:
        """Move the range towards where false accept and reject rate are equal; whether to count again.

        Args:
            genuine: (S,) genuine pairs in each bin of the grid.
            total: impostor pairs.
        """
        self.within.settle()
        rejected, length = np.r_[0, np.cumsum(genuine)], self.high - self.low
        if not total or not rejected[-1]:
            return False
        below = total - self.beyond - int(self.within.counts.sum())
        at_low, at_high = (rejected[step // self.grid.width] / rejected[-1] for step in (self.low, self.high))
        if self.low and at_low >= 1 - below / total:  # as `PairCounts.rates` has them
            self._set(self.low - _LONGER * length, self.low)
            return True
        if self.high < self.grid.bins * self.grid.width and at_high < 1 - (total - self.beyond) / total:
            self._set(self.high, self.high + _LONGER * length)
            return True
        return False

    def pair_counts(self, genuine: Counts, total: int) -> PairCounts:
        """All pairs, those in the range in bins of the grid; arguments of `moves_to_equal_rates`."""
        self.within.settle()
        first, end = self.low // self.width, self.high // self.width
        inside = np.zeros(end - first, np.int64)
        inside[self.within.runs] = self.within.counts
        below = total - int(inside.sum()) - self.beyond
        return PairCounts(
            np.r_[genuine[:first].sum(), genuine[first:end], genuine[end:].sum()], np.r_[below, inside, self.beyond]
        )


def _count_ranges(ranges: Sequence[_Range], tile: Tile) -> None:
    """Count the impostor pairs of a tile that are in some ranges, or above."""
    flat, tolerance = tile.products.view(-1), float(tile.tolerance.max())
    on_cpu = flat.device.type == "cpu"
    for wanted in ranges:
        low, high = wanted.bounds(tolerance)
        marks, beyond = [], 0
        for part in flat.split(_AT_ONCE) if on_cpu else [flat]:
            # NumPy compares, and finds few, in a fraction of torch's time.
            values: Any = part.numpy() if on_cpu else part
            reached = values >= low
            inside = reached & (values < high)
            if not on_cpu:
                reached, inside = reached.cpu().numpy(), inside.cpu().numpy()
            beyond += int(np.count_nonzero(reached)) - int(np.count_nonzero(inside))
            marks.append(inside)
        places = np.flatnonzero(np.concatenate(marks))
        wanted.add(wanted.grid.steps(tile.exact(places)) if len(places) else places, beyond)


def count_accepted(
    pairs: AllPairs, thresholds: Sequence[float], *, units: tuple[Units, Units] | None = None
) -> Accepted:
    """Count the pairs that thresholds accept.

    Args:
        units: (Q,) and (G,) the unit of each query and of each item; None: their classes.
    """
    counts = AcceptedCounts(pairs, thresholds, units)
    pairs.sweep(counts.count)
    return counts.accepted()


class AcceptedCounts:
    """Counts the pairs of a sweep that thresholds accept; arguments of `count_accepted`."""

    def __init__(self, pairs: AllPairs, thresholds: Sequence[float], units: tuple[Units, Units] | None = None) -> None:
        self.pairs, of_images = pairs, units or (pairs.queries.labels, pairs.gallery.labels)
        numbers = np.unique(np.concatenate(of_images))
        self.size = min(len(numbers), _MOST_UNITS)
        self.rows, self.columns = (np.searchsorted(numbers, of_side) % self.size for of_side in of_images)
        self.thresholds = [(threshold, pairs.product_of(threshold)) for threshold in thresholds]
        self.genuine = np.zeros((len(thresholds) + 1, self.size), np.int64)
        self.impostor = np.zeros((len(thresholds) + 1, self.size**2), np.int64)

    def count(self, tile: Tile) -> None:
        """Count a tile."""
        rows, columns = self.rows[tile.rows], self.columns[tile.columns]

        def cells(places: Counts) -> Counts:
            lines = places.astype(np.int32) // len(columns)  # half as long as of 64 bits
            numbers: Counts = rows[lines] * self.size + columns[places - lines * len(columns)]
            return numbers

        np.subtract.at(self.impostor[-1], cells(tile.others), 1)
        self.genuine[-1] += np.bincount(rows[tile.genuine // len(columns)], minlength=self.size)
        if not self.thresholds:
            return
        products, tolerance = tile.products.view(-1).cpu().numpy(), float(tile.tolerance.max())
        bounds = [_bounds(product, tolerance) for _, product in self.thresholds]
        impostor = np.flatnonzero(products >= min(low for low, _ in bounds))
        places = np.concatenate([impostor, tile.genuine])
        of_places = np.concatenate([products[impostor], tile.genuine_products.cpu().numpy()])
        impostor_cells = cells(impostor)
        for row, is_accepted in enumerate(self._accepted(tile, bounds, places, of_places)):
            np.add.at(self.impostor[row], impostor_cells[is_accepted[: len(impostor)]], 1)
            genuine = tile.genuine[is_accepted[len(impostor) :]]
            self.genuine[row] += np.bincount(rows[genuine // len(columns)], minlength=self.size)

    def _accepted(
        self,
        tile: Tile,
        bounds: Sequence[tuple[np.float32, np.float32]],
        places: Counts,
        products: NDArray[np.float32],
    ) -> list[NDArray[np.bool_]]:
        """For each threshold whether it accepts pairs at places (P,) of a tile, by their products (P,)."""
        accepted = [products >= high for _, high in bounds]
        is_unclear = [(products >= low) & ~surely for (low, _), surely in zip(bounds, accepted, strict=True)]
        unclear = np.flatnonzero(np.logical_or.reduce(is_unclear))
        if len(unclear):
            exact = tile.exact(places[unclear])
            for some, of_threshold, (threshold, _) in zip(accepted, is_unclear, self.thresholds, strict=True):
                here = of_threshold[unclear]
                some[unclear[here]] = exact[here] >= threshold
        return accepted

    def _all_pairs(self) -> Counts:
        """(U, U) the pairs of any kind, by unit."""
        if not self.pairs.itself:
            rows, columns = (np.bincount(side, minlength=self.size) for side in (self.rows, self.columns))
            return rows[:, None] * columns
        counts, folds = np.zeros((self.size, self.size), np.int64), self.pairs.folds
        for fold in [slice(None)] if folds is None else [folds == fold for fold in np.unique(folds)]:
            earlier = np.zeros(self.size, np.int64)
            for unit in self.rows[fold].tolist():
                counts[unit] += earlier
                earlier[unit] += 1
        return counts.T

    def accepted(self) -> Accepted:
        """What has been counted."""
        self.impostor[-1] += self._all_pairs().ravel()
        tables = self.impostor.reshape(-1, self.size, self.size)
        return Accepted(self.genuine[:-1], self.genuine[-1], tables[:-1], tables[-1])


def _bounds(product: float, tolerance: float) -> tuple[np.float32, np.float32]:
    """Products below the first are surely less than a product, and those from the second on surely no less."""
    infinity = np.float32(np.inf)
    low, high = np.float32(product - tolerance), np.float32(product + tolerance)
    return np.nextafter(low, -infinity), np.nextafter(high, infinity)


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
        step: of a similarity.
    """

    lowest: int
    width: int
    bins: int
    step: float

    @classmethod
    def of(cls, pairs: AllPairs) -> _Grid:
        if pairs.form.similarity == "hamming":
            return cls(-pairs.form.dim, 1, pairs.form.dim + 1, pairs.step)
        return cls(-(_BIN**2), _BIN, 2 * _BIN + 1, pairs.step)

    def steps(self, similarities: FloatArray) -> Counts:
        """(P,) int64 similarities in steps above the lowest one."""
        steps: Counts = np.round(similarities / self.step).astype(np.int64) - self.lowest
        return steps.clip(0, self.bins * self.width - 1)


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
        thresholds = locate(setting, FALSE_ACCEPT_RATES).thresholds
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
