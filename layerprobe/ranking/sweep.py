"""Count negatives: all pairs in low precision or few dimensions, then the unclear ones, at last in float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.ranking.items import block_rows, cuts
from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.products import Product, pair_products
from layerprobe.ranking.rounded import Leading, Rounded
from layerprobe.ranking.tiles import (
    Thresholds,
    count_columns,
    count_rows,
    mask_classes,
    of_one_class,
    places_between,
)
from layerprobe.ranking.vectors import Form

_PAIRS_AT_ONCE = 2**12
# Of the vectors of such pairs on a GPU, 512 MiB in float64.
_NUMBERS_AT_ONCE_ON_A_GPU = 2**26
# Unclear pairs that one pass lists: 32 MiB.
_LISTED = 2**22
# Rows of a tile whose similarities of fewer dimensions are listed together, by each thread.
_HEIGHT = 256
# If more than 1 / FEW of a tile's pairs are listed or unclear, one product of the whole tile is faster.
FEW = 16


@dataclass(frozen=True, eq=False)
class Way:
    """How pairs are counted.

    Args:
        product: how the similarities are computed.
        leading: the directions that the first product is limited to; None for all dimensions.
        exactly: compute unclear pairs at once.
        listed: list the pairs that may be closer instead of counting all, in tiles where they are few; in float32 on a
            CPU, and always with leading directions.
        fused: count a tile in one pass by `fused.count_in_one_pass`; with too many unclear pairs none is computed.
    """

    product: Product
    leading: Leading | None = None
    exactly: bool = True
    listed: bool = False
    fused: bool = False


@dataclass(frozen=True, eq=False)
class Targets:
    """What the negatives of some queries are compared with.

    Args:
        queries: sorted by class.
        nearest: (Q,) float64 similarity to the nearest positive; -inf for lone queries.
        windows: (Q,) float64 tie windows.
    """

    queries: Chosen
    nearest: Tensor
    windows: Tensor

    def __getitem__(self, rows: NDArray[np.intp]) -> Targets:
        return Targets(self.queries.some(rows), self.nearest[rows], self.windows[rows])

    def thresholds(self, rounded: Rounded, gallery: Rounded, form: Form, product: Product) -> Thresholds:
        """Bounds between which a product leaves the comparison with the nearest positive unclear."""
        margin = self.windows
        if form.similarity != "hamming":  # sums of -1 and 1 are exact
            margin = margin + rounded.tolerance(gallery, form, product)
        return Thresholds.of(self.nearest - form.constants(rounded.biases), margin, product)


def _stages(way: Way) -> list[Leading | None]:
    return [None] if way.leading is None else [None, way.leading]


def _round_queries(queries: Chosen, form: Form, way: Way) -> list[Rounded]:
    """All queries for a product: whole, and after them their leading directions if these are counted first."""
    count = len(queries.labels)
    blocks = (queries.vectors(rows) for rows in cuts(count, block_rows(form.origin.device, form.dim)))
    return Rounded.round_stages(blocks, count, form, way.product, _stages(way))


class Counter(Protocol):
    """What is counted of tiles of a sweep.

    Attributes:
        queries: whose items are counted, sorted by class.
        form: of the vectors.
        way: how similarities are computed.
    """

    queries: Chosen
    form: Form
    way: Way

    def search(self, queries: list[Rounded], gallery: list[Rounded], items: Chosen) -> None:
        """Take up the stages of a gallery's items: the whole vectors, and their leading directions."""

    def add(
        self, rows: slice, columns: slice, row_factors: list[Tensor], gallery: Chosen, *, both: bool = False
    ) -> None:
        """Count a tile for the queries of its rows.

        Args:
            rows: (A,) of the queries.
            columns: (B,) of the gallery.
            row_factors: each stage's factor for the rows.
            gallery: of the columns.
            both: count it for the queries of its columns, too.
        """

    def finish(self, gallery: Chosen) -> None:
        """Compute the pairs that waited for items of this gallery."""


def count_symmetric(targets: Targets, form: Form, way: Way, share: slice, enough: Tensor | None = None) -> Tensor:
    """Count among the queries themselves.

    Args:
        targets: all items.
        form: of the vectors.
        way: how.
        share: which of the pairs of tiles to take.
        enough: (Q,) int64 closer negatives after which a query may be counted no further; None to count all.

    Returns:
        int64 (3, Q): the fewest and the most negatives that are closer than the nearest positive, and those tied with
        it where the two are equal.
    """
    counter = _TileCounts(targets, form, way, enough)
    sweep_symmetric(counter, share)
    return counter.counts()


def count_blocks(
    targets: Targets, gallery: Iterable[Chosen], form: Form, way: Way, enough: Tensor | None = None
) -> Tensor:
    """Count in a gallery that comes in blocks; arguments and result of `count_symmetric`."""
    counter = _TileCounts(targets, form, way, enough)
    sweep_blocks(counter, gallery)
    return counter.counts()


def sweep_symmetric(counter: Counter, share: slice = slice(None)) -> None:
    """Go through the pairs of the queries, each pair of tiles once for its rows and once for its columns.

    Args:
        counter: counts them.
        share: which of the pairs of tiles to take.
    """
    queries, way = counter.queries, counter.way
    stages = _round_queries(queries, counter.form, way)
    counter.search(stages, stages, queries)
    tiles = cuts(len(queries.labels), way.product.tile)
    pairs = [(i, j) for i in range(len(tiles)) for j in range(i, len(tiles))][share]
    row_factors, factored_tile = [stage.values for stage in stages], -1
    for i, j in pairs:
        rows, columns = tiles[i], tiles[j]
        if i != factored_tile:
            if way.fused:  # the list need not hold more than the pairs of some rows, however many items there are
                counter.finish(queries)
            row_factors, factored_tile = [stage.swapped(rows) for stage in stages], i
        counter.add(rows, columns, row_factors, queries, both=i != j)
    counter.finish(queries)


def sweep_blocks(counter: Counter, gallery: Iterable[Chosen]) -> None:
    """Go through the pairs of all queries with a gallery that comes in blocks."""
    queries, form, way = counter.queries, counter.form, counter.way
    stages = _round_queries(queries, form, way)
    for stage in stages:
        stage.swap()
    for block in gallery:
        vectors = [block.vectors(slice(None))]
        rounded = Rounded.round_stages(vectors, len(block.labels), form, way.product, _stages(way))
        counter.search(stages, rounded, block)
        for rows in cuts(len(queries.labels), way.product.tile):
            row_factors = [stage.values[rows] for stage in stages]
            for columns in cuts(len(block.labels), way.product.tile):
                counter.add(rows, columns, row_factors, block)
            if way.fused:
                counter.finish(block)
        counter.finish(block)


@cache
def works_in_one_pass(device: torch.device) -> bool:
    """Whether a way may be `fused` there: on a GPU, with Triton and a compiler that Triton can use."""
    if device.type != "cuda":
        return False
    similarities, (low, high) = torch.tensor([[[0, 2.0], [1.0, 0]], [[0.5, 0.5], [1.5, 1.5]]], device=device)
    labels, bounds = torch.arange(2, device=device), Thresholds(low, high)
    closer, unclear = counts = torch.zeros(2, 2, dtype=torch.int32, device=device)
    pairs, number = torch.empty(2, 4, dtype=torch.int32, device=device), torch.zeros_like(labels[0])
    try:
        from layerprobe.ranking.fused import FAULTS, count_in_one_pass
    except ImportError:
        return False
    try:
        count_in_one_pass(similarities, labels, labels, (0, 0), bounds, closer, unclear, pairs, number)
        return counts.tolist() == [[1, 0], [0, 1]]
    except FAULTS:
        return False


def similarities_of(queries: Chosen, gallery: Chosen, form: Form, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Float64 similarities of few pairs.

    Args:
        pairs: (2, P) places of queries and of items.

    Returns:
        (P,) what sorts the pairs by query, and (P,) their similarities in that order.
    """
    (rows, row_places), (items, item_places) = (torch.unique(places, return_inverse=True) for places in pairs)
    order = row_places.argsort()
    vectors = queries.vectors(rows.cpu().numpy()), gallery.vectors(items.cpu().numpy())
    return order, form.of_places(*vectors, row_places[order], item_places[order])


class _TileCounts:
    """What tiles have counted so far, and the unclear pairs that wait to be computed in float64.

    Args:
        targets: the queries.
        form: of the vectors.
        way: how they are counted.
        enough: as for `count_symmetric`.
    """

    def __init__(self, targets: Targets, form: Form, way: Way, enough: Tensor | None) -> None:
        self.targets, self.form, self.way, self.enough = targets, form, way, enough
        self.queries = targets.queries
        self.nearest = targets.nearest.where(targets.nearest.isfinite(), torch.inf)  # nothing reaches a lone query's
        count, device = len(targets.nearest), targets.nearest.device
        # Those of a kernel are int32: they are added up faster.
        self.closer = torch.zeros(count, dtype=torch.int32 if way.fused else torch.int64, device=device)
        self.tied, self.unclear = torch.zeros_like(self.closer), torch.zeros_like(self.closer)
        self.waiting: list[Tensor] = []  # (2, P) places of queries and of items of the gallery
        self.number = 0  # of pairs that wait
        self.threads = torch.get_num_threads()
        self.pool = ThreadPoolExecutor(self.threads) if way.listed and self.threads > 1 else None
        # Fewer dimensions give similarities as fast as memory takes them: these rows stay in the caches.
        self.height = way.product.tile if way.leading is None else _HEIGHT * self.threads
        if way.listed:
            self.memory = torch.empty(
                min(way.product.tile, count) * way.product.tile, dtype=way.product.result, device=device
            )
        self.at_once = _PAIRS_AT_ONCE if device.type == "cpu" else _NUMBERS_AT_ONCE_ON_A_GPU // form.dim
        if way.fused:
            self.labels = torch.from_numpy(targets.queries.labels).to(device)
            self.pairs = torch.empty(2, _LISTED if self.lists else 0, dtype=torch.int32, device=device)
            self.between = torch.zeros((), dtype=torch.int64, device=device)  # how many pairs are unclear
            self.too_many = False  # whether more are unclear than fit into the list

    @property
    def lists(self) -> bool:
        """Whether unclear pairs are computed; not for Hamming, whose similarities are whole numbers."""
        return self.way.exactly and self.form.similarity != "hamming"

    def search(self, queries: list[Rounded], gallery: list[Rounded], items: Chosen) -> None:
        """See `Counter`."""
        self.gallery = gallery
        if self.way.fused:
            itself = items is self.targets.queries
            self.item_labels = self.labels if itself else torch.from_numpy(items.labels).to(self.labels.device)
        if self.way.leading is not None:
            self.residuals = queries[-1].residuals(), gallery[-1].residuals()
        self.thresholds = [
            self.targets.thresholds(mine, searched, self.form, self.way.product)
            for mine, searched in zip(queries, gallery, strict=True)
        ]
        self._stop(slice(None))

    def _stop(self, queries: slice) -> None:
        """Let nothing reach the thresholds of queries that have enough closer negatives."""
        if self.enough is None:
            return
        stopped = self.closer[queries] >= self.enough[queries]
        for some in self.thresholds:
            for bounds in (some.low, some.high):
                bounds[queries].masked_fill_(stopped, float("inf"))

    def add(
        self, rows: slice, columns: slice, row_factors: list[Tensor], gallery: Chosen, *, both: bool = False
    ) -> None:
        """See `Counter`."""
        labels = self.targets.queries.labels[rows], gallery.labels[columns]
        if of_one_class(*labels):
            return
        if self.way.fused:
            similarities = self.way.product.multiply(row_factors[-1], self.gallery[-1].values[columns])
            self._add_in_one_pass(rows, columns, similarities)
            if both:
                self._add_in_one_pass(columns, rows, similarities.T)
            return
        sides = (rows, columns) if both else (rows,)
        if self.way.listed:
            listings = []
            for strip in cuts(len(labels[0]), self.height):
                similarities = self._multiply(row_factors[-1][strip], self.gallery[-1].values[columns])
                mask_classes(similarities, labels[0][strip], labels[1])
                listings.append(self._places(similarities.numpy(), strip, sides))
            places, ends = map(np.concatenate, zip(*listings, strict=True))
            if len(places) * FEW <= len(labels[0]) * len(labels[1]):
                self._add_listed(sides, columns, places, ends, row_factors[0], gallery)
                return
        if not self.way.listed or self.way.leading is not None:
            similarities = self._multiply(row_factors[0], self.gallery[0].values[columns])
            mask_classes(similarities, *labels)
        unclear = []
        for count, queries in zip((count_rows, count_columns), sides, strict=False):
            possible, closer = count(similarities, self.thresholds[0][queries])
            self.closer[queries].add_(closer)
            self._stop(queries)
            unclear.append(possible.sub_(closer))
        if not self.lists:
            for queries, some in zip(sides, unclear, strict=True):
                self.unclear[queries].add_(some)
            return
        if sum(int(some.sum()) for some in unclear) * FEW > similarities.numel():
            self._recount(rows, columns, similarities, gallery, both=both)
            return
        for side, (queries, some) in enumerate(zip(sides, unclear, strict=True)):
            which = some.nonzero()[:, 0]
            if len(which):
                unclear_similarities = similarities.index_select(side, which)
                unclear_similarities = unclear_similarities.T.contiguous() if side else unclear_similarities
                queries_there = which + queries.start
                near, items = places_between(unclear_similarities, self.thresholds[0][queries_there])
                self._wait(torch.stack([queries_there[near], items + (rows if side else columns).start]), gallery)

    def _add_in_one_pass(self, queries: slice, items: slice, similarities: Tensor) -> None:
        from layerprobe.ranking.fused import count_in_one_pass

        count_in_one_pass(
            similarities,
            self.labels[queries],
            self.item_labels[items],
            (queries.start, items.start),
            self.thresholds[0][queries],
            self.closer[queries],
            self.unclear[queries],
            self.pairs,
            self.between,
        )

    def _recount(self, rows: slice, columns: slice, similarities: Tensor, gallery: Chosen, *, both: bool) -> None:
        """Count the pairs of a tile (A, B) that are unclear in float64, all at once."""
        mine, theirs = self.targets.queries.vectors(rows), gallery.vectors(columns)
        exact = self.form.similarities(mine, theirs)
        self._count_unclear(rows, similarities, exact)
        if both:
            turned = self.form.similarities(theirs, mine) if self.form.similarity == "euclidean" else exact.T
            self._count_unclear(columns, similarities.T, turned)

    def _count_unclear(self, queries: slice, similarities: Tensor, exact: Tensor) -> None:
        bounds = self.thresholds[0][queries]
        clear = (similarities < bounds.low[:, None]) | (similarities > bounds.high[:, None])
        places = torch.arange(queries.start, queries.stop, device=exact.device)
        self._count(places, exact.masked_fill(clear, -torch.inf))

    def _multiply(self, row_factors: Tensor, column_factors: Tensor) -> Tensor:
        """A tile of similarities (A, B); where pairs are listed in the memory of the one before: the new is slow."""
        if not self.way.listed:
            return self.way.product.multiply(row_factors, column_factors)
        memory = self.memory[: len(row_factors) * len(column_factors)].view(len(row_factors), len(column_factors))
        return self.way.product.multiply(row_factors, column_factors, memory)

    def _places(
        self, ends: NDArray[np.float32], rows: slice, sides: Sequence[slice]
    ) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Places in a tile, of some of its rows with upper ends (A, B), that may be closer for a side; and the ends."""
        low = [self.thresholds[-1].low[queries].numpy() for queries in sides]
        low[0] = low[0][rows]

        def above(strip: slice) -> NDArray[np.intp]:
            marks = ends[strip] >= low[0][strip, None]
            if len(low) > 1:
                marks |= ends[strip] >= low[1]
            cells: NDArray[np.intp] = np.flatnonzero(marks)
            cells += strip.start * ends.shape[1]
            return cells

        parts = cuts(len(ends), -(-len(ends) // self.threads))
        places = np.concatenate([*(self.pool.map(above, parts) if self.pool else map(above, parts))])
        return places + rows.start * ends.shape[1], ends.ravel()[places]

    def _add_listed(  # noqa: PLR0913 - the tile, and what is listed of it
        self,
        sides: Sequence[slice],
        columns: slice,
        places: NDArray[np.intp],
        similarities: NDArray[np.float32],
        row_factors: Tensor,
        gallery: Chosen,
    ) -> None:
        """Count listed pairs of a tile for its rows, and its columns; unclear ones are computed from whole vectors.

        In NumPy, whose operations on such lists take a fraction of the time of torch's.
        """
        width = columns.stop - columns.start
        row_indices = places // width
        column_indices = places - row_indices * width
        sure, unclear = [], []  # by side
        slack = None
        if self.way.leading is not None:
            of_rows = self.residuals[0][sides[0]].numpy()[row_indices]
            slack = 2 * of_rows * self.residuals[1][columns].numpy()[column_indices]
        for queries, mine in zip(sides, (row_indices, column_indices), strict=False):
            bounds = self.thresholds[-1][queries]
            listed = similarities >= bounds.low.numpy()[mine]
            lowest = similarities if slack is None else similarities - slack
            sure.append(listed & (lowest > bounds.high.numpy()[mine]))
            unclear.append(listed & ~sure[-1])
        which = np.flatnonzero(np.logical_or.reduce(unclear))
        pairs = row_indices[which], column_indices[which]
        similarities = similarities[which]
        if slack is not None:
            similarities = pair_products(
                row_factors, self.gallery[0].values[columns], *map(torch.from_numpy, pairs)
            ).numpy()
        for side, (queries, mine) in enumerate(zip(sides, (row_indices, column_indices), strict=False)):
            bounds, unresolved = self.thresholds[0][queries], unclear[side][which]
            closer = unresolved & (similarities > bounds.high.numpy()[pairs[side]])
            counted = np.concatenate([mine[sure[side]], pairs[side][closer]])
            self.closer[queries] += torch.from_numpy(np.bincount(counted, minlength=queries.stop - queries.start))
            still = np.flatnonzero(unresolved & ~closer & (similarities >= bounds.low.numpy()[pairs[side]]))
            if len(still):
                near = pairs[0][still] + sides[0].start, pairs[1][still] + columns.start
                self._wait(torch.from_numpy(np.stack(near[::-1] if side else near)), gallery)
            self._stop(queries)

    def _wait(self, pairs: Tensor, gallery: Chosen) -> None:
        self.waiting.append(pairs)
        self.number += pairs.shape[1]
        if self.number > self.at_once:
            self.finish(gallery)

    def finish(self, gallery: Chosen) -> None:
        """See `Counter`."""
        if self.way.fused and self.lists:
            number = int(self.between)
            self.too_many |= number > self.pairs.shape[1]
            if not self.too_many:
                self.waiting.append(self.pairs[:, :number].long())
                self.unclear.zero_()
                self.between.zero_()
        if not self.waiting:
            return
        waiting = torch.cat(self.waiting, 1)
        self.waiting, self.number = [], 0
        for pairs in waiting.split(self.at_once, 1):
            if self.way.fused:  # in no order, and sorting takes longer than to read a vector again
                exact = self.form.of_pairs(self.targets.queries.vectors(pairs[0]), gallery.vectors(pairs[1]))
                self._count(pairs[0], exact[:, None])
                continue
            order, exact = similarities_of(self.queries, gallery, self.form, pairs)
            self._count(pairs[0][order], exact[:, None])

    def counts(self) -> Tensor:
        """The fewest and the most negatives that are closer, and the ties where these are equal."""
        if self.form.similarity == "hamming":  # a whole number between two thresholds is a tie
            return torch.stack([self.closer, self.closer, self.unclear]).long()
        return torch.stack([self.closer, self.closer + self.unclear, self.tied]).long()

    def _count(self, queries: Tensor, similarities: Tensor) -> None:
        """Add exact similarities (R, B) of the queries at places (R,), which may repeat."""
        nearest, windows = self.nearest[queries], self.targets.windows[queries]
        closer = (similarities > (nearest + windows)[:, None]).sum(1, dtype=self.closer.dtype)
        tied = (similarities >= (nearest - windows)[:, None]).sum(1, dtype=self.closer.dtype) - closer
        self.closer.index_add_(0, queries, closer)
        self.tied.index_add_(0, queries, tied)
