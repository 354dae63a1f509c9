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
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.all_pairs import AllPairs, Tile
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.facts import PAIRS_WITHIN_FOLDS
from layerprobe.values.retrieval import FloatArray
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
# Products that fit into a CPU's caches, with their bins.
_AT_ONCE = 2**18
# Bins of a first sweep; numbers that wait to be counted; runs of numbers that are counted, more than a grid has bins.
_WIDE_BINS, _MOST_WAITING, _MOST_RUNS = 2**15, 2**22, 2**22


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

    A first sweep counts the impostor pairs by their products in float32. Rounding moves no product by more than a few
    bins, so that what is searched for lies in few of these, whose pairs a second sweep computes in float64. Where it
    cannot tell so many apart in memory, further sweeps narrow them down.

    Args:
        rates: in [0, 1); the threshold of each is the lowest one with at most that rate.
        counts: what else the first sweep counts.

    Raises:
        DataError: no impostor pair, where there are rates.
    """
    coarse = _Coarse(pairs)
    pairs.sweep(coarse.count, *counts)
    total, grid = int(coarse.impostor.sum()), coarse.grid
    if rates:
        require_pairs(1, total)
    equal = _Range(coarse, *coarse.where_rates_meet(), grid.width)
    ranks = [_allowed_count(rate, total) for rate in rates]  # of the most similar rejected pair, from 0
    ranges = [_Range(coarse, *coarse.where_ranked(rank), 1) for rank in ranks]
    pairs.sweep(functools.partial(coarse.refine, [equal, *ranges]))
    waiting = [(some, rank) for some, rank in zip(ranges, ranks, strict=True) if some.narrow(rank)]
    while waiting:
        pairs.sweep(functools.partial(coarse.refine, [some for some, _ in waiting]))
        waiting = [(some, rank) for some, rank in waiting if some.narrow(rank)]
    thresholds = [(some.low + grid.lowest + 0.5) * pairs.step for some in ranges]
    return Located(equal.pair_counts(), thresholds)


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


class _Coarse:
    """Counts of a first sweep: impostor pairs in wide bins of their products, genuine ones by exact similarity.

    Wide bin 0 holds all below the first edge, the last one all above the last edge.
    """

    def __init__(self, pairs: AllPairs) -> None:
        self.grid = _Grid.of(pairs)
        self.bins = -(-self.grid.bins // _WIDE_BINS)  # of the grid, in a wide one
        self.size = -(-self.grid.bins // self.bins) + 2
        self.edges = np.r_[0, np.arange(self.size - 1) * self.bins, self.grid.bins].clip(max=self.grid.bins)
        self.impostor = np.zeros(self.size, np.int64)
        self._genuine = _SparseCounts(self.grid.width)
        # A wide bin, from 1 on, as a linear function of the product.
        per_similarity = 1 / (pairs.step * self.grid.width * self.bins)
        self.factor = per_similarity / pairs.unit
        self.offset = 1 - self.grid.lowest / (self.grid.width * self.bins) - self.factor * pairs.product_of(0)
        self.tolerance = 0.0
        self._memory: Tensor | None = None  # new memory is slow at first

    @property
    def reach(self) -> int:
        """By how many bins rounding moves a product at most."""
        return math.ceil(self.tolerance * self.factor + 0.25)

    def bins_of(self, products: Tensor) -> Tensor:
        """(P,) the wide bin of each product; in memory that the next ones take."""
        import torch

        if self._memory is None or len(self._memory) < len(products):
            self._memory = torch.empty(len(products), dtype=torch.int32, device=products.device)
        bins = self._memory[: len(products)]
        numbers = bins.view(torch.float32)  # in the same memory
        torch.mul(products, self.factor, out=numbers).add_(self.offset)
        return bins.copy_(numbers.clamp_(0, self.size - 1))

    def count(self, tile: Tile) -> None:
        """Count a tile."""
        import torch

        for products in tile.products.view(-1).split(_AT_ONCE if tile.products.device.type == "cpu" else 2**31):
            self.impostor += torch.bincount(self.bins_of(products), minlength=self.size).cpu().numpy()
        self.impostor[0] -= tile.products.numel() - tile.impostors  # at -inf
        self.tolerance = max(self.tolerance, float(tile.tolerance.max()))
        if len(tile.genuine):
            self._genuine.add(self.grid.steps(tile.exact(tile.genuine)))

    def refine(self, ranges: Sequence[_Range], tile: Tile) -> None:
        """Count the pairs of a tile that are in ranges of similarities, by exact similarity."""
        import torch

        bounds = []
        for wanted in ranges:  # a quarter of a bin more at either end, as bins are computed in float32
            ends = wanted.bins.start - 0.25, wanted.bins.stop + 0.25
            low, high = (float((end - self.offset) / self.factor) for end in ends)
            # What is no impostor pair is at -inf.
            low = low if wanted.bins.start else torch.finfo(torch.float32).min
            bounds.append((low, high if wanted.bins.stop < self.size else math.inf))
        flat = tile.products.view(-1)
        on_cpu = flat.device.type == "cpu"
        marks = []
        for some in flat.split(_AT_ONCE) if on_cpu else [flat]:
            # NumPy compares, and finds few, in a fraction of torch's time.
            values: Any = some.numpy() if on_cpu else some
            inside = functools.reduce(operator.or_, ((values >= low) & (values <= high) for low, high in bounds))
            marks.append(inside if on_cpu else inside.cpu().numpy())
        places = np.flatnonzero(np.concatenate(marks))
        if len(places):
            bins = self.bins_of(flat[torch.from_numpy(places).to(flat.device)]).cpu().numpy()
            steps = self.grid.steps(tile.exact(places))
            for wanted in ranges:
                wanted.add(steps[(bins >= wanted.bins.start) & (bins < wanted.bins.stop)])

    @functools.cached_property
    def genuine(self) -> Counts:
        """(S,) genuine pairs in each bin of the grid."""
        self._genuine.settle()
        counts = np.zeros(self.grid.bins, np.int64)
        counts[self._genuine.runs] = self._genuine.counts
        return counts

    @functools.cached_property
    def above(self) -> Counts:
        """Impostor pairs whose product is in a bin or a higher one; 0 at the end."""
        above: Counts = np.append(np.cumsum(self.impostor[::-1])[::-1], 0)
        return above

    def _most_and_fewest(self) -> tuple[Counts, Counts]:
        """The most and the fewest impostor pairs that may be above the lower edge of each bin."""
        places = np.arange(self.size + 1)
        return self.above[(places - self.reach).clip(min=0)], self.above[(places + self.reach).clip(max=self.size)]

    def where_ranked(self, rank: int) -> tuple[int, int]:
        """The first and the last bin that may hold the impostor pair of a rank, the most similar one being 0."""
        most, fewest = self._most_and_fewest()
        low, high = (np.flatnonzero(np.r_[True, counts[1:-1] > rank])[-1] for counts in (fewest, most))
        return int(low), int(high)

    def where_rates_meet(self) -> tuple[int, int]:
        """The first and the last bin where false accept and false reject rate may be equal."""
        most, fewest = self._most_and_fewest()
        rejected = np.r_[0, np.cumsum(self.genuine)][self.edges]
        if not most[0] or not rejected[-1]:
            return 0, 0
        rejects = rejected / rejected[-1]
        low = np.flatnonzero(rejects < fewest / most[0])
        high = np.flatnonzero(rejects >= most / most[0])
        # One further on either side, as quotients are rounded.
        return max(int(low.max(initial=0)) - 1, 0), min(int(high[0]), self.size - 1)


class _Range:
    """The impostor pairs of a range of similarities.

    Args:
        coarse: of all pairs.
        first: wide bin.
        last: wide bin.
        width: of the runs that are counted, in steps.
    """

    def __init__(self, coarse: _Coarse, first: int, last: int, width: int) -> None:
        self.coarse, self.width = coarse, width
        self._set(int(coarse.edges[first]) * coarse.grid.width, int(coarse.edges[last + 1]) * coarse.grid.width)

    def _set(self, low: int, high: int) -> None:
        """Start to count from a step to another one."""
        edges, width, reach = self.coarse.edges, self.coarse.grid.width, self.coarse.reach
        self.low, self.high = low, high
        # The products of what is in the range; those beyond are surely above it.
        first = int(np.searchsorted(edges[1:], low // width, "right"))
        end = int(np.searchsorted(edges[1:], -(-high // width)))
        self.bins = slice(max(first - reach, 0), min(end + 1 + reach, self.coarse.size))
        self.beyond = int(self.coarse.above[self.bins.stop])
        self.within = _SparseCounts(self.width)

    def add(self, steps: Counts) -> None:
        """Count pairs by their similarity in steps."""
        self.beyond += int((steps >= self.high).sum())
        self.within.add(steps[(steps >= self.low) & (steps < self.high)] - self.low)

    def narrow(self, rank: int) -> bool:
        """Narrow the range to the impostor pair of a rank, the most similar one being 0; whether to count again."""
        self.within.settle()
        beyond = self.beyond + np.cumsum(self.within.counts[::-1])[::-1]
        run, shift = int(self.within.runs[np.flatnonzero(beyond > rank)[-1]]), self.within.shift
        self._set(self.low + (run << shift), min(self.low + ((run + 1) << shift), self.high))
        return shift > 0

    def pair_counts(self) -> PairCounts:
        """All pairs, those in the range in bins of the grid."""
        self.within.settle()
        first, end = self.low // self.width, self.high // self.width
        inside = np.zeros(end - first, np.int64)
        inside[self.within.runs] = self.within.counts
        below = int(self.coarse.impostor.sum()) - int(inside.sum()) - self.beyond
        genuine = self.coarse.genuine
        return PairCounts(
            np.r_[genuine[:first].sum(), genuine[first:end], genuine[end:].sum()], np.r_[below, inside, self.beyond]
        )


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
