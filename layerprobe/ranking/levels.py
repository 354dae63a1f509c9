"""Count the negatives between the positives of each query: the sweep of Recall@K, with as many levels as positives.

The similarities to all positives are computed in float64; each has two thresholds, a tie window above and below it. The
float32 similarities of a query to a tile's items are sorted, as whole numbers that also hold the item, and searched for
its thresholds. Items that are as near to one as rounding reaches are counted by their similarity in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from layerprobe.ranking.items import block_rows, cuts
from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.products import float32
from layerprobe.ranking.rounded import Rounded
from layerprobe.ranking.sweep import FEW, Way, similarities_of
from layerprobe.ranking.tiles import mask_classes, of_one_class
from layerprobe.ranking.vectors import Form

# Items of a tile at most, in a gallery and among the queries themselves; queries of a band, and of a strip, whose keys
# fit into a CPU's caches.
_TILE, _SYMMETRIC_TILE, _BAND, _STRIP = 2**13, 2**11, 256, 32
# Numbers of a block.
_NUMBERS = 2**22
# Pairs that wait to be computed in float64.
_PAIRS_AT_ONCE = 2**15
# Bits of a key; bins of a query's similarities at most, and how wide each is at least, as a share of the largest
# similarity: rounding in float32 moves none by a quarter of a bin.
_KEY_BITS, _BIN_BITS, _LEAST_WIDTH = 31, 18, 2.0**-19
_LOWEST_BIN = 2  # of what may pass a threshold
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
        negatives: (Q,) int64 all negatives of each query.
    """

    starts: Tensor
    similarities: Tensor
    above: Tensor
    through: Tensor
    windows: Tensor
    negatives: Tensor

    def __getitem__(self, rows: Tensor) -> Levels:
        """Those of some queries (B,)."""
        counts = self.starts.diff()[rows]
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        shifts = (self.starts[rows] - starts[:-1]).repeat_interleave(counts)
        places = torch.arange(len(shifts), device=shifts.device) + shifts
        similarities, above, through = self.similarities[places], self.above[places], self.through[places]
        return Levels(starts, similarities, above, through, self.windows[rows], self.negatives[rows])

    def nearest(self) -> Tensor:
        """int64 (4, Q): closer, closer_high, tied_negatives and tied_positives, as in `Ranks`."""
        counts = self.starts.diff()
        similarities, above, through = (
            torch.cat([values, values.new_zeros(1)])[self.starts[:-1]]  # of lone queries any
            for values in (self.similarities, self.above, self.through)
        )
        tied = self.similarities >= (similarities - self.windows).repeat_interleave(counts)
        tied_until = torch.cat([counts.new_zeros(1), tied.cumsum(0)])
        closer = above.where(counts > 0, self.negatives)
        return torch.stack([closer, closer, (through - above).where(counts > 0, 0), tied_until[self.starts].diff()])

    def padded(self) -> tuple[Tensor, Tensor, Tensor]:
        """(Q, R) similarities, `above` and `through`; padding at -inf and 0."""
        counts = self.starts.diff()
        inside = torch.arange(max(1, int(counts.max())), device=counts.device) < counts[:, None]
        padded = []
        for values, padding in ((self.similarities, -torch.inf), (self.above, 0), (self.through, 0)):
            padded.append(torch.full(inside.shape, padding, dtype=values.dtype, device=values.device))
            padded[-1][inside] = values
        return padded[0], padded[1], padded[2]


def count_levels(  # noqa: PLR0913 - what is compared, and how
    places: Tensor, similarities: Tensor, queries: Chosen, windows: Tensor, form: Form, *, itself: bool = False
) -> LevelCounts:
    """Prepare the count of the negatives around positives.

    Args:
        places: (P,) of a query among the queries.
        similarities: (P,) float64 of it and a positive; in any order.
        queries: sorted by class.
        windows: (Q,) float64 tie windows.
        form: of the vectors.
        itself: whether the queries are searched themselves.
    """
    order = _order(places, -similarities)
    counts = torch.bincount(places, minlength=len(windows))
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    tile = _SYMMETRIC_TILE if itself else _TILE
    return LevelCounts(queries, form, windows, places[order], similarities[order], starts, tile)


def _order(places: Tensor, values: Tensor) -> Tensor:
    """(P,) what sorts values (P,) by query, and of each query ascending."""
    queries = places.cpu().numpy()
    order = np.argsort(values.cpu().numpy())
    if len(queries) and queries.max() < 2**16:  # numbers of 16 bits are sorted several times as fast
        queries = queries.astype(np.uint16)
    return torch.from_numpy(order[np.argsort(queries[order], kind="stable")]).to(places.device)


class LevelCounts:
    """The counter of a sweep that counts the negatives around the levels of each query.

    Args:
        queries, form, windows: see `count_levels`.
        places: (P,) the query of each level, ascending.
        levels: (P,) float64, of each query the closest first.
        starts: (Q + 1,) where the levels of each query start.
        tile: rows and columns of a tile on a CPU.
    """

    def __init__(  # noqa: PLR0913 - as count_levels
        self,
        queries: Chosen,
        form: Form,
        windows: Tensor,
        places: Tensor,
        levels: Tensor,
        starts: Tensor,
        tile: int,
    ) -> None:
        self.queries, self.form, self.windows, self.places, self.levels = queries, form, windows, places, levels
        self.starts, self.ends = starts, starts.tolist()
        product, self.block_rows = float32(levels.device), block_rows(levels.device, form.dim)
        self.band = self.strip = product.tile
        if levels.device.type == "cpu":
            # Where rows are long, products take most of the time.
            self.block_rows = max(self.block_rows, min(tile, _NUMBERS // form.dim))
            product, self.band, self.strip = replace(product, tile=tile), _BAND, _STRIP
        self.way = Way(product)
        # The lowest similarities that are through a level, and above it.
        upper = torch.nextafter(levels + windows[places], levels.new_tensor(torch.inf))
        self.thresholds = torch.stack([levels - windows[places], upper], 1)
        self.passed = torch.zeros(self.thresholds.shape, dtype=torch.int64, device=levels.device)
        threads = torch.get_num_threads() if levels.device.type == "cpu" else 1
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self.keys: _Keys | None = None
        self.memory = torch.empty(0, device=levels.device)  # new memory is slow at first
        self.waiting: list[Tensor] = []  # (3, P) places of queries, of levels, and of items of the gallery
        self.number = 0  # of pairs that wait

    def search(self, queries: list[Rounded], gallery: list[Rounded], items: Chosen) -> None:  # noqa: ARG002 - for others
        """See `Counter`."""
        self.gallery = gallery[0]
        constants = self.form.constants(queries[0].biases)[self.places, None]  # which products lack
        if self.form.similarity == "hamming":  # sums of -1 and 1 are exact
            self.of_products = (self.thresholds - constants).float()
            return
        tolerance = queries[0].tolerance(self.gallery, self.form, self.way.product)
        if self.keys is None or bool((tolerance > self.keys.tolerance).any()):
            # An eighth more, as the blocks of a gallery have about equal bounds: keys are seldom made anew.
            shape = self.way.product.tile, self.strip
            self.keys = _Keys(self.thresholds - constants, self.places, tolerance * 1.125, *shape)

    def add(
        self, rows: slice, columns: slice, row_factors: list[Tensor], gallery: Chosen, *, both: bool = False
    ) -> None:
        """See `Counter`."""
        labels = self.queries.labels[rows], gallery.labels[columns]
        if of_one_class(*labels):
            return
        for band in cuts(len(labels[0]), len(labels[0]) if both else self.band):
            similarities = self._multiply(row_factors[0][band], self.gallery.values[columns])
            mask_classes(similarities, labels[0][band], labels[1])
            self._count(slice(rows.start + band.start, rows.start + band.stop), columns, similarities, gallery)
        if both:
            self._count(columns, rows, similarities.T, gallery)

    def _multiply(self, row_factors: Tensor, column_factors: Tensor) -> Tensor:
        """Similarities (A, B), in memory that the next ones take."""
        size = len(row_factors) * len(column_factors)
        if len(self.memory) < size:
            self.memory = row_factors.new_empty(size)
        memory = self.memory[:size].view(len(row_factors), len(column_factors))
        return self.way.product.multiply(row_factors, column_factors, memory)

    def _count(self, rows: slice, columns: slice, similarities: Tensor, gallery: Chosen) -> None:
        """Count a tile (A, B) for its rows, a band at a time."""
        for band in cuts(len(similarities), self.band):
            products, queries = similarities[band], slice(rows.start + band.start, rows.start + band.stop)
            levels = slice(self.ends[queries.start], self.ends[queries.stop])
            keys = self.keys
            if keys is None:
                products = products.clone(memory_format=torch.contiguous_format)
                self.passed[levels] += self._passed(queries, products, self.of_products[levels])
                continue
            values = keys.of(queries, products)
            passed = self._passed(queries, values, keys.thresholds[levels])
            unclear = passed[:, 0] - passed[:, 1]
            number = int(unclear.sum())
            if number * FEW > products.numel():  # one product of the band is faster then
                exact = self.form.similarities(self.queries.vectors(queries), gallery.vectors(columns))
                exact.masked_fill_(products == -torch.inf, -torch.inf)
                self.passed[levels] += self._passed(queries, exact, self.thresholds[levels])
                continue
            self.passed[levels] += passed[:, 1:]
            if number:
                places, near = self._near(queries, passed[:, 0], unclear, len(products[0]))
                items = keys.items(values.view(-1)[places]) + columns.start
                self.waiting.append(torch.cat([near, items[None]]))
                self.number += number
                if self.number > _PAIRS_AT_ONCE:
                    self.finish(gallery)

    def _passed(self, queries: slice, values: Tensor, thresholds: Tensor) -> Tensor:
        """(P, 2) how many of the values (A, B) of their queries are at least thresholds (P, 2); sorts the values."""
        ends = self.ends[queries.start : queries.stop + 1]
        strips = [
            (
                values[rows],
                thresholds[ends[rows.start] - ends[0] : ends[rows.stop] - ends[0]],
                ends[rows.start : rows.stop + 1],
            )
            for rows in cuts(len(values), self.strip)
        ]
        return torch.cat([*(self.pool.map if self.pool else map)(_sort_and_search, *zip(*strips, strict=True))])

    def _near(self, queries: slice, passed: Tensor, unclear: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Where in sorted keys are those near to levels.

        Args:
            passed: (P,) how many keys of its query may be through each level.
            unclear: (P,) how many of these, the lowest, are near to it.
            columns: keys of a query.

        Returns:
            (N,) places in the keys of the queries, and (2, N) the queries and the levels.
        """
        levels = unclear.nonzero()[:, 0]
        counts, levels_of_all = unclear[levels], levels + self.ends[queries.start]
        queries_of_all = self.places[levels_of_all]
        # In each row those that pass come last, and of these the unclear ones first.
        begins = (queries_of_all - queries.start + 1) * columns - passed[levels]
        shifts = (begins - (counts.cumsum(0) - counts)).repeat_interleave(counts)
        places = torch.arange(len(shifts), device=shifts.device) + shifts
        return places, torch.stack([queries_of_all, levels_of_all]).repeat_interleave(counts, 1)

    def finish(self, gallery: Chosen) -> None:
        """See `Counter`."""
        if self.waiting:
            queries, levels, items = torch.cat(self.waiting, 1)
            self.waiting, self.number = [], 0
            size = len(gallery.labels)
            pairs, pair_of_level = torch.unique(queries * size + items, return_inverse=True)
            order, in_order = similarities_of(
                self.queries, gallery, self.form, torch.stack([pairs // size, pairs % size])
            )
            exact = torch.empty_like(in_order)
            exact[order] = in_order
            passes = exact[pair_of_level, None] >= self.thresholds[levels]
            self.passed.index_add_(0, levels, passes.long())

    def count(self, queries: Tensor, similarities: Tensor, number: int = 1) -> None:
        """Count negatives (P,) by their queries' places and float64 similarities.

        Args:
            number: -1 for what is no negative, and has been counted.
        """
        order = _order(queries, similarities)
        ends = torch.searchsorted(queries[order], torch.arange(len(self.ends), device=order.device)).tolist()
        values, passed = similarities[order].cpu().numpy(), np.zeros(self.passed.shape, np.int64)
        thresholds = self.thresholds.cpu().numpy()
        for start, end, first, stop in zip(self.ends, self.ends[1:], ends, ends[1:], strict=False):
            passed[start:end] = stop - first - values[first:stop].searchsorted(thresholds[start:end])
        self.passed += number * torch.from_numpy(passed).to(self.passed.device)

    def counts(self, negatives: Tensor) -> Levels:
        """What has been counted."""
        through, above = self.passed.unbind(1)
        return Levels(self.starts, self.levels, above, through, self.windows, negatives)


def _sort_and_search(values: Tensor, thresholds: Tensor, ends: Sequence[int]) -> Tensor:
    """(P, 2) how many of the values (A, B) of a row are at least its thresholds (P, 2); sorts the values.

    Args:
        ends: A + 1, where the thresholds of each row start, counted from any place on.
    """
    if values.device.type == "cpu":
        rows, wanted = values.numpy(), thresholds.reshape(-1).numpy()
        below = np.empty(len(wanted), np.int64)
        rows.sort(1)
        for row, start, end in zip(rows, ends, ends[1:], strict=False):
            of_row = slice(2 * (start - ends[0]), 2 * (end - ends[0]))
            below[of_row] = row.searchsorted(wanted[of_row])
        return torch.from_numpy(values.shape[1] - below).view(-1, 2)
    values.copy_(values.sort(1).values)
    counts = torch.tensor(ends, device=values.device).diff()
    inside = torch.arange(int(counts.max()), device=values.device) < counts[:, None]
    padded = thresholds.new_zeros(*inside.shape, 2)
    padded[inside] = thresholds
    return values.shape[1] - torch.searchsorted(values, padded.flatten(1)).view(padded.shape)[inside]


class _Keys:
    """Products as whole numbers in the same order, which hold the item in their last bits.

    Args:
        thresholds: (P, 2) of products, of each query the closest first.
        places: (P,) the query of each.
        tolerance: (Q,) how far a product may be from the exact value.
        tile: the most items.
        strip: rows whose keys are made together.
    """

    def __init__(self, thresholds: Tensor, places: Tensor, tolerance: Tensor, tile: int, strip: int) -> None:
        self.strip = strip
        self.tolerance, self.item_bits, device = tolerance, (tile - 1).bit_length(), tolerance.device
        self.bins = 2 ** min(_BIN_BITS, _KEY_BITS - self.item_bits)
        low, high = thresholds[:, 0] - tolerance[places], thresholds[:, 1] + tolerance[places]
        lowest, highest = torch.full_like(tolerance, torch.inf), torch.full_like(tolerance, -torch.inf)
        lowest.scatter_reduce_(0, places, low, "amin")
        highest.scatter_reduce_(0, places, high, "amax")
        paired = lowest <= highest
        lowest, highest = lowest.where(paired, 0), highest.where(paired, 0)
        reach = torch.maximum(lowest.abs(), highest.abs())
        widths = torch.maximum((highest - lowest) / (self.bins - _LOWEST_BIN - 3), reach * _LEAST_WIDTH)
        widths.clamp_(min=_UNDERFLOW)
        # A product is in the bin of the whole part of factor * product + offset.
        self.factors = torch.where(paired, 1 / widths, _UNDERFLOW).float()
        self.offsets = torch.where(paired, _LOWEST_BIN + 1 - lowest * self.factors.double(), 0).float()
        bins = torch.stack([low, high], 1) * self.factors.double()[places, None] + self.offsets.double()[places, None]
        # What is at least in the second of its bins passes a threshold, and what is below the first does not.
        bins = (bins + bins.new_tensor([-0.25, 1.25])).floor_().clamp_(_LOWEST_BIN, self.bins - 1)
        self.thresholds = bins.int() << self.item_bits
        self.numbers = torch.arange(tile, dtype=torch.int32, device=device)  # of items
        self.memory = torch.empty(0, dtype=torch.int32, device=device)  # new memory is slow at first

    def of(self, queries: slice, products: Tensor) -> Tensor:
        """The keys (A, B) of products, in memory that the next ones take."""
        if len(self.memory) < products.numel():
            self.memory = self.memory.new_empty(products.numel())
        keys = self.memory[: products.numel()].view(products.shape)
        if not products.is_contiguous():
            products = keys.view(torch.float32).copy_(products)
        factors, offsets = self.factors[queries, None], self.offsets[queries, None]
        for rows in cuts(len(keys), self.strip):
            strip, numbers = keys[rows], keys[rows].view(torch.float32)  # in the same memory
            torch.mul(products[rows], factors[rows], out=numbers).add_(offsets[rows])
            strip.copy_(numbers.clamp_(0, self.bins - 1))
            torch.add(self.numbers[: keys.shape[1]], strip, alpha=2**self.item_bits, out=strip)
            strip.clamp_(min=_LOWEST_BIN * 2**self.item_bits - 1)  # equal keys are sorted in no time
        return keys

    def items(self, keys: Tensor) -> Tensor:
        """(P,) the items of keys, from 0."""
        return keys.long().bitwise_and(2**self.item_bits - 1)
