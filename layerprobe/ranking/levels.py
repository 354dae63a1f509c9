"""Count the negatives between the positives of each query: the sweep of Recall@K, with as many levels as positives.

The similarities to all positives are computed in float64; each has two thresholds, a tie window above and below it. A
negative is placed among a query's thresholds by a table of equally wide bins of float32 similarities. In a bin that a
threshold is in, or as near as rounding reaches, negatives are placed by their similarity in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.products import float32
from layerprobe.ranking.rounded import Rounded
from layerprobe.ranking.sweep import FEW, Way, similarities_of
from layerprobe.ranking.tiles import mask_classes, of_one_class
from layerprobe.ranking.vectors import Form

# Bins of a query: at least, at most, for each level, and for each item that is searched.
_FEWEST_BINS, _MOST_BINS, _BINS_PER_LEVEL, _BINS_PER_ITEM = 64, 2**14, 32, 1 / 4
# Queries of a strip, and cells of their tables, that fit into a CPU's caches with its similarities.
_HEIGHT, _CELLS_OF_A_STRIP = 128, 2**18
# Pairs that wait to be computed in float64.
_PAIRS_AT_ONCE = 2**15
# A bin is at least this share of the largest similarity wide, so that rounding in float32 moves none by a quarter.
_LEAST_WIDTH = 2.0**-19
_UNDERFLOW = 1e-30


@dataclass(frozen=True, eq=False)
class Levels:
    """The positives of queries, and the negatives around each.

    Args:
        starts: (Q + 1,) where the positives of each query start.
        similarities: (P,) float64, of each query the closest first.
        above: (P,) int64 negatives that are closer by more than the query's tie window.
        through: (P,) int64 negatives that are closer, tied, or beyond by no more than that.
        windows: (Q,) float64.
    """

    starts: Tensor
    similarities: Tensor
    above: Tensor
    through: Tensor
    windows: Tensor

    def __getitem__(self, rows: Tensor) -> Levels:
        """Those of some queries (B,)."""
        counts = self.starts.diff()[rows]
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        shifts = (self.starts[rows] - starts[:-1]).repeat_interleave(counts)
        places = torch.arange(len(shifts), device=shifts.device) + shifts
        return Levels(starts, self.similarities[places], self.above[places], self.through[places], self.windows[rows])

    def padded(self) -> tuple[Tensor, Tensor, Tensor]:
        """(Q, R) similarities, `above` and `through`; padding at -inf and 0."""
        counts = self.starts.diff()
        inside = torch.arange(max(1, int(counts.max())), device=counts.device) < counts[:, None]
        padded = []
        for values, padding in ((self.similarities, -torch.inf), (self.above, 0), (self.through, 0)):
            padded.append(torch.full(inside.shape, padding, dtype=values.dtype, device=values.device))
            padded[-1][inside] = values
        return padded[0], padded[1], padded[2]


def bins_of(levels: int, gallery: int) -> int:
    """Bins of a query with so many levels in a gallery of so many items."""
    return max(_FEWEST_BINS, min(levels * _BINS_PER_LEVEL, int(gallery * _BINS_PER_ITEM), _MOST_BINS))


def count_levels(  # noqa: PLR0913 - what is compared, and how
    places: Tensor, similarities: Tensor, queries: Chosen, windows: Tensor, form: Form, gallery: int
) -> LevelCounts:
    """Prepare the count of the negatives around positives.

    Args:
        places: (P,) of a query among the queries.
        similarities: (P,) float64 of it and a positive; in any order.
        queries: sorted by class.
        windows: (Q,) float64 tie windows.
        form: of the vectors.
        gallery: how many items are searched.
    """
    order = _order(places, -similarities)
    counts = torch.bincount(places, minlength=len(windows))
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return LevelCounts(queries, form, windows, places[order], similarities[order], starts, gallery)


def _order(places: Tensor, values: Tensor) -> Tensor:
    """(P,) what sorts values (P,) by query, and of each query ascending."""
    queries = places.cpu().numpy()
    order = np.argsort(values.cpu().numpy())
    if len(queries) and queries.max() < 2**16:  # numbers of 16 bits are sorted several times as fast
        queries = queries.astype(np.uint16)
    return torch.from_numpy(order[np.argsort(queries[order], kind="stable")]).to(places.device)


class LevelCounts:
    """The counter of a sweep that places negatives among the levels of each query.

    Args:
        queries, form, windows, gallery: see `count_levels`.
        places: (P,) the query of each level, ascending.
        levels: (P,) float64, of each query the closest first.
        starts: (Q + 1,) where the levels of each query start.
    """

    def __init__(  # noqa: PLR0913 - as count_levels
        self,
        queries: Chosen,
        form: Form,
        windows: Tensor,
        places: Tensor,
        levels: Tensor,
        starts: Tensor,
        gallery: int,
    ) -> None:
        self.queries, self.form, self.windows, self.levels, self.starts = queries, form, windows, levels, starts
        self.way = Way(float32(levels.device))
        # A similarity above the first is strictly closer; a threshold is passed by one that is no less.
        upper = torch.nextafter(levels + windows[places], levels.new_tensor(torch.inf))
        both, queries_of_both = torch.cat([upper, levels - windows[places]]), places.repeat(2)
        order = _order(queries_of_both, both)
        # The thresholds of each query, ascending, and one that nothing passes. Each counts what passes those before it.
        self.code_starts = 2 * starts + torch.arange(len(starts), device=levels.device)
        self.codes = torch.empty_like(order)
        self.codes[order] = torch.arange(len(order), device=order.device) + queries_of_both[order]
        self.thresholds = levels.new_full((int(self.code_starts[-1]),), torch.inf)
        self.thresholds[self.codes] = both
        self.passed = torch.zeros(len(self.thresholds), dtype=torch.int64, device=levels.device)
        self.bins = bins_of(int(starts.diff().max()), gallery)
        self.height = self.way.product.tile
        if levels.device.type == "cpu":
            self.height = max(1, min(_HEIGHT, _CELLS_OF_A_STRIP // self.bins))
        self.table: _Table | None = None
        self.waiting: list[Tensor] = []  # (2, P) places of queries and of items of the gallery
        self.number = 0  # of pairs that wait

    def search(self, queries: list[Rounded], gallery: list[Rounded], items: Chosen) -> None:  # noqa: ARG002 - for others
        """See `Counter`."""
        self.gallery = gallery[0]
        tolerance = torch.zeros_like(self.windows)
        if self.form.similarity != "hamming":  # sums of -1 and 1 are exact
            tolerance = queries[0].tolerance(self.gallery, self.form, self.way.product)
        if self.table is None or bool((tolerance > self.table.tolerance).any()):
            # An eighth more, as the blocks of a gallery have about equal bounds: a table is seldom made anew.
            constants = self.form.constants(queries[0].biases)  # which products lack
            self.table = _Table(
                self.thresholds - constants.repeat_interleave(self.code_starts.diff()),
                tolerance * 1.125,
                self.bins,
                self.height,
                self.code_starts,
                self.way.product.tile,
            )

    def add(
        self, rows: slice, columns: slice, row_factors: list[Tensor], gallery: Chosen, *, both: bool = False
    ) -> None:
        """See `Counter`."""
        labels = self.queries.labels[rows], gallery.labels[columns]
        if of_one_class(*labels):
            return
        similarities = self.way.product.multiply(row_factors[0], self.gallery.values[columns])
        mask_classes(similarities, *labels)
        self._place(rows, columns, similarities, gallery)
        if both:
            self._place(columns, rows, similarities.T.contiguous(), gallery)

    def _place(self, rows: slice, columns: slice, similarities: Tensor, gallery: Chosen) -> None:
        """Count a tile (A, B) for its rows, a strip that fits into the caches at a time."""
        if self.table is None:
            raise ValueError("no gallery to search")
        near = []
        for start in range(rows.start // self.height * self.height, rows.stop, self.height):
            strip = slice(max(start, rows.start), min(start + self.height, rows.stop))
            part = similarities[strip.start - rows.start : strip.stop - rows.start]
            near.append(self.table.count(strip, part, self.passed))
        places, values, codes = map(torch.cat, zip(*near, strict=True))
        first, end = self.code_starts[[rows.start, rows.stop]].tolist()
        codes = _pass(codes, values, self.table.surely)
        is_clear = self.table.possibly.index_select(0, codes) > values
        self.passed[first:end] += torch.bincount(codes[is_clear] - first, minlength=end - first)
        unclear = _places(~is_clear)
        places, codes = places.index_select(0, unclear), codes.index_select(0, unclear)
        width = columns.stop - columns.start
        if len(codes) * FEW > similarities.numel():  # one product of the tile is faster then
            exact = self.form.similarities(self.queries.vectors(rows), gallery.vectors(columns))
            self._count_exactly(codes, exact.view(-1).index_select(0, places - rows.start * width))
        elif len(codes):
            self.waiting.append(torch.stack([places // width, places % width + columns.start, codes]))
            self.number += len(codes)
            if self.number > _PAIRS_AT_ONCE:
                self.finish(gallery)

    def finish(self, gallery: Chosen) -> None:
        """See `Counter`."""
        if self.waiting:
            queries, items, codes = torch.cat(self.waiting, 1)
            self.waiting, self.number = [], 0
            order, exact = similarities_of(self.queries, gallery, self.form, torch.stack([queries, items]))
            self._count_exactly(codes.index_select(0, order), exact)

    def _count_exactly(self, codes: Tensor, similarities: Tensor, number: int = 1) -> None:
        """Count pairs (P,) by float64 similarities, which pass all thresholds before these codes."""
        codes = _pass(codes, similarities, self.thresholds)
        self.passed.index_add_(0, codes, torch.full_like(codes, number))

    def count(self, queries: Tensor, similarities: Tensor, number: int = 1) -> None:
        """Count negatives (P,) by their queries' places and float64 similarities.

        Args:
            number: -1 for what is no negative, and has been counted.
        """
        low, high = self.code_starts[queries], self.code_starts[queries + 1] - 1
        for _ in range(int(self.code_starts.diff().max()).bit_length()):
            middle = (low + high) // 2
            passes = self.thresholds[middle] <= similarities
            low, high = torch.where(passes, middle + 1, low), torch.where(passes, high, middle)
        self._count_exactly(low, similarities, number)

    def counts(self) -> Levels:
        """What has been counted."""
        until = self.passed.cumsum(0)
        # The negatives that pass a threshold are all of the query but those that pass only lower ones.
        beyond = (until[self.code_starts[1:] - 1]).repeat_interleave(self.code_starts.diff()) - until
        above, through = beyond[self.codes].view(2, -1)
        return Levels(self.starts, self.levels, above, through, self.windows)


def _pass(codes: Tensor, similarities: Tensor, thresholds: Tensor) -> Tensor:
    """(P,) the first threshold, from those at some codes (P,) on, that each similarity does not pass."""
    codes, further = codes.clone(), None
    while True:
        here = codes if further is None else codes.index_select(0, further)
        values = similarities if further is None else similarities.index_select(0, further)
        passed = _places(thresholds.index_select(0, here) <= values)
        further = passed if further is None else further.index_select(0, passed)
        if not len(further):
            return codes
        codes.index_add_(0, further, torch.ones_like(further))


def _places(marks: Tensor) -> Tensor:
    """(P,) the places of marks (N,); NumPy finds few in a fraction of torch's time."""
    return torch.from_numpy(np.flatnonzero(marks.numpy())) if marks.device.type == "cpu" else marks.nonzero()[:, 0]


class _Table:
    """The bins of each query's float32 similarities, and how many thresholds what is in a bin passes.

    Args:
        thresholds: (T,) float64 of products, of each query ascending, and after them one that nothing passes.
        tolerance: (Q,) how far a product may be from the exact value.
        bins: of each query; one more at either end holds what is beyond all thresholds.
        height: queries of a strip, in which codes are counted together.
        code_starts: (Q + 1,) where the thresholds of each query start.
        tile: the most columns of a strip.
    """

    def __init__(  # noqa: PLR0913 - the thresholds, and how they are counted
        self, thresholds: Tensor, tolerance: Tensor, bins: int, height: int, code_starts: Tensor, tile: int
    ) -> None:
        self.tolerance, self.height, self.width = tolerance, height, bins + 2
        self.strip_codes = [*code_starts[:-1:height].tolist(), int(code_starts[-1])]
        count, device = len(tolerance), tolerance.device
        # New memory is slow at first.
        self.numbers = torch.empty(height * tile, device=device)
        self.bins, self.memory = torch.empty(2, height * tile, dtype=torch.int32, device=device)
        self.row_starts = torch.arange(0, height * (bins + 2), bins + 2, dtype=torch.int32, device=device)
        queries = torch.arange(count, device=device).repeat_interleave(code_starts.diff())
        # A product of at least the first passes a threshold, and one below the second does not.
        infinity = thresholds.new_tensor(torch.inf, dtype=torch.float32)
        self.surely = torch.nextafter((thresholds + tolerance[queries]).float(), infinity)
        self.possibly = torch.nextafter((thresholds - tolerance[queries]).float(), -infinity)
        paired = code_starts.diff() > 1
        low = torch.where(paired, thresholds[code_starts[:-1]] - tolerance, 0)
        high = torch.where(paired, thresholds[code_starts[1:] - 2] + tolerance, 0)
        finite = thresholds.isfinite()
        queries, thresholds = queries[finite], thresholds[finite]
        reach = torch.maximum(low.abs(), high.abs())
        widths = torch.maximum((high - low) / (bins - 2), reach * _LEAST_WIDTH).clamp_(min=_UNDERFLOW)
        # A similarity is in the bin of the whole part of factor * similarity + offset. A lone query's are all in bin 0.
        self.factors = torch.where(paired, 1 / widths, _UNDERFLOW).float()
        self.offsets = torch.where(paired, 2 - low * self.factors.double(), 0).float()
        cells = queries * self.width
        first, last = (
            cells + self._bins_of(queries, thresholds + sign * tolerance[queries], sign * 0.25) for sign in (-1, 1)
        )
        one = torch.ones_like(queries, dtype=torch.int32)
        zones = torch.zeros(count * self.width + 1, dtype=torch.int32, device=device)
        zones.index_add_(0, first, one).index_add_(0, last + 1, -one)
        in_zone = torch.cumsum(zones, 0, out=zones)[:-1].view(count, self.width) > 0
        lowest = torch.zeros(count * self.width, dtype=torch.int32, device=device).index_add_(0, last + 1, one)
        strips = torch.arange(count, device=device) // height * height
        strip_starts, strip_ends = code_starts[strips], code_starts[(strips + height).clamp(max=count)]
        self.lowest = torch.cumsum(lowest.view(count, self.width), 1, dtype=torch.int32)
        self.lowest += (code_starts[:-1] - strip_starts).int()[:, None]
        # In a bin that a threshold is near to: one more than all codes of the strip.
        self.codes = torch.where(in_zone, (strip_ends - strip_starts).int()[:, None], self.lowest)

    def _bins_of(self, queries: Tensor, similarities: Tensor, slack: float) -> Tensor:
        """(T,) the bins of similarities, or those that so much of a bin further may be in."""
        bins = self.offsets[queries].double() + self.factors[queries].double() * similarities
        return (bins + slack).floor().clamp_(0, self.width - 1).long()

    def count(self, rows: slice, similarities: Tensor, passed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Count a strip (A, B) of queries, all of whom are in one of `height` from a multiple of it on.

        Args:
            passed: to which the numbers of pairs that are near to no threshold are added.

        Returns:
            The others (P,): B times the query's place and the column, the similarity, and the first threshold that it
            may not pass.
        """
        first, end = self.strip_codes[rows.start // self.height :][:2]
        shape, size = similarities.shape, similarities.numel()
        numbers, bins = (memory[:size].view(shape) for memory in (self.numbers, self.bins))
        torch.mul(similarities, self.factors[rows, None], out=numbers).add_(self.offsets[rows, None])
        bins.copy_(numbers.clamp_(0, self.width - 1)).add_(self.row_starts[: shape[0], None])
        codes = torch.index_select(self.codes[rows].view(-1), 0, bins.view(-1), out=self.memory[:size])
        counts = torch.bincount(codes, minlength=end - first + 1)
        passed[first:end] += counts[:-1]
        cells = _places(codes == end - first)
        lowest = self.lowest[rows].view(-1).index_select(0, bins.view(-1).index_select(0, cells))
        values = similarities.reshape(-1).index_select(0, cells)
        return cells + rows.start * shape[1], values, lowest.long() + first
