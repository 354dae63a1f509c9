"""Every pair of a query and an item that it may find, tile by tile: products in float32, exact similarities of some."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from layerprobe.ranking.items import BLOCK_ROWS, Items, block_rows, cuts, find_self_indices, items_of
from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.products import float32
from layerprobe.ranking.ranks import rows_at_once
from layerprobe.ranking.relevance import Pairs, Relevance, relevance_of
from layerprobe.ranking.rounded import Rounded
from layerprobe.ranking.sweep import FEW, Way, sweep_blocks
from layerprobe.ranking.vectors import Form, form_of
from layerprobe.system.computing import full_precision
from layerprobe.values.retrieval import SearchRules, Similarity

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.items import Table


# Queries of no more numbers are held as float64 vectors: 64 MiB.
_NUMBERS_HELD = 2**23


@dataclass(frozen=True, eq=False)
class Tile:
    """The pairs of some queries with some items.

    Args:
        rows: (A,) of the queries.
        columns: (B,) of the items.
        tolerance: (A,) float64: how far a product may be from the exact value.
        genuine: (P,) the places of the genuine pairs in the tile, in order of its cells.
        others: (R,) the places of the other pairs that are no impostor pairs, and of the genuine ones.
        impostors: how many impostor pairs there are.
        compute: gives `products` and `genuine_products`.
        exact: gives the float64 similarities at places, as `AllPairs.in_user_units` takes them; a higher one is closer.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    tolerance: Tensor
    genuine: NDArray[np.int64]
    others: NDArray[np.int64]
    impostors: int
    compute: Callable[[], tuple[Tensor, Tensor]]
    exact: Callable[[NDArray[np.int64]], NDArray[np.float64]]

    @cached_property
    def _computed(self) -> tuple[Tensor, Tensor]:
        return self.compute()

    @property
    def products(self) -> Tensor:
        """(A, B) float32: see `AllPairs.product_of`; -inf where a pair is no impostor pair."""
        return self._computed[0]

    @property
    def genuine_products(self) -> Tensor:
        """(P,) those of the genuine pairs."""
        return self._computed[1]


@dataclass(frozen=True, eq=False)
class AllPairs:
    """The pairs of queries and items: among the queries themselves each pair of images once, else each query and item.

    A pair is excluded as it is from a search (`SearchRules`); among the queries themselves, if either image excludes
    the other. Likewise it is genuine if either has the other in its list of right items.

    Args:
        folds: (Q,) of queries that are paired among themselves: images of two folds are no pair. None for no folds.
        memory: bytes that a sweep may take, as of `nearest_positive_ranks`; None: no limit.
    """

    queries: Items
    gallery: Items
    form: Form
    relevance: Relevance
    folds: NDArray[np.int64] | None = None
    memory: int | None = None

    @property
    def itself(self) -> bool:
        """Whether the pairs are of the queries themselves."""
        return self.gallery is self.queries

    @property
    def step(self) -> float:
        """Similarities within half a step of a multiple of it are equal: about 1e-12 of the largest possible one."""
        if self.form.similarity == "hamming":
            return 1.0
        if self.form.similarity == "cosine":
            return 2.0**-40
        # No entry is longer than 1 after scaling, so that no product exceeds D, and no halved square of a distance 2 D.
        return float(2.0 ** (math.ceil(math.log2(2 * self.form.dim)) - 40)) / self.form.scale**2

    def in_user_units(self, similarity: float) -> float:
        """The cosine, the dot product, minus the Euclidean distance, or minus the number of bits that differ."""
        if self.form.similarity == "euclidean":
            return math.copysign(math.sqrt(2 * abs(similarity)), similarity)
        return float(math.ceil(similarity)) if self.form.similarity == "hamming" else similarity

    @property
    def _shift(self) -> float:
        """What a product lacks to be the similarity of scaled vectors, whose own part of it cancels for euclidean."""
        shift = self.form.shift
        return {"euclidean": -2 * shift, "hamming": -float(self.form.dim)}.get(self.form.similarity, shift)

    @property
    def unit(self) -> float:
        """The similarity of scaled vectors that is 1 in the features' scale."""
        return 2.0 if self.form.similarity == "hamming" else self.form.scale**2

    def product_of(self, similarity: float) -> float:
        """The exact product of a pair of some similarity."""
        return similarity * self.unit - self._shift

    def sweep(self, *counts: Callable[[Tile], None]) -> None:
        """Go through all pairs, tile by tile; of the queries themselves each pair once.

        Args:
            counts: called with each tile in turn; none changes it.
        """
        with full_precision(self.queries.device):
            for rows in self._parts():
                sweep_blocks(_PairTiles(self, rows, counts), self._blocks(rows))

    def _parts(self) -> Iterator[NDArray[np.int64]]:
        """The queries that are in memory at once, in order; of one fold each."""
        every = np.arange(len(self.queries))
        size = rows_at_once(self.queries, self.form.dim, self.memory)
        for fold in [every] if self.folds is None else [np.flatnonzero(self.folds == x) for x in np.unique(self.folds)]:
            yield from (fold[start : start + size] for start in range(0, len(fold), size))

    def _blocks(self, rows: NDArray[np.int64]) -> Iterator[Chosen]:
        """The items that queries are paired with; of the queries themselves those from the first of them on."""
        items = np.arange(len(self.gallery))
        if self.folds is not None:
            items = np.flatnonzero(self.folds == self.folds[rows[0]])
        if self.itself:
            items = items[items >= rows[0]]
        for block in cuts(len(items), block_rows(self.gallery.device, self.form.dim)):
            some = items[block]
            vectors = self.form.vectors(_take(self.gallery, some))
            yield Chosen(vectors.__getitem__, self.gallery.labels[some], some)


def _take(items: Items, index: NDArray[np.int64]) -> Tensor:
    """The rows of an ascending index, in one slice where they lie side by side, as those on a disk must."""
    if len(index) == index[-1] - index[0] + 1:
        return items.take(slice(int(index[0]), int(index[-1]) + 1))
    return items.take(index)


class _PairTiles:
    """The counter of a sweep that gives each tile to others.

    Args:
        pairs: all of them.
        rows: (Q',) of the queries, ascending.
        counts: called with each tile.
    """

    def __init__(self, pairs: AllPairs, rows: NDArray[np.int64], counts: Sequence[Callable[[Tile], None]]) -> None:
        self.pairs, self.counts, self.form = pairs, counts, pairs.form
        some = Items(_take(pairs.queries, rows), pairs.queries.labels[rows])
        held = pairs.form.vectors(some.take(slice(None))) if len(rows) * pairs.form.dim <= _NUMBERS_HELD else None
        of_rows = (lambda part: pairs.form.vectors(some.take(part))) if held is None else held.__getitem__
        self.queries = Chosen(of_rows, some.labels, rows)
        self.relevance, self.relevance_rows = pairs.relevance, slice(None)
        product = float32(pairs.queries.device)
        self.way = Way(replace(product, tile=max(product.tile, BLOCK_ROWS)))  # of small tiles the kinds take longer
        self.memory = torch.empty(0, device=pairs.queries.device)  # new memory is slow at first

    def search(self, queries: list[Rounded], gallery: list[Rounded], items: Chosen) -> None:  # noqa: ARG002 - for others
        """See `Counter`."""
        self.gallery, self.half_norms = gallery[0], self.form.shift - queries[0].biases
        self.tolerance = torch.zeros_like(self.half_norms)
        if self.form.similarity != "hamming":  # sums of -1 and 1 are exact
            self.tolerance = queries[0].tolerance(self.gallery, self.form, self.way.product)

    def add(
        self,
        rows: slice,
        columns: slice,
        row_factors: list[Tensor],
        gallery: Chosen,
        *,
        both: bool = False,  # noqa: ARG002 - one side is all pairs
    ) -> None:
        """See `Counter`."""
        queries, items = self.queries.index[rows], gallery.index[columns]
        if self.pairs.itself and items[-1] <= queries[0]:
            return
        genuine, others = self._kinds(rows, items, gallery.labels[columns])
        # Below the diagonal are no pairs.
        no_pairs = items <= queries[:, None] if self._overlap(queries, items) else np.zeros((0, 0), bool)
        impostors = len(queries) * len(items) - len(others) - int(no_pairs.sum())

        def compute() -> tuple[Tensor, Tensor]:
            products = self._multiply(row_factors[0], self.gallery.values[columns])
            flat = products.view(-1)
            genuine_products = flat[torch.from_numpy(genuine).to(flat.device)]
            flat[torch.from_numpy(others).to(flat.device)] = -torch.inf
            if len(no_pairs):
                products.masked_fill_(torch.from_numpy(no_pairs).to(flat.device), -torch.inf)
            return products, genuine_products

        def exact(places: NDArray[np.int64]) -> NDArray[np.float64]:
            return self._exact(rows, columns, gallery, places)

        tile = Tile(queries, items, self.tolerance[rows], genuine, others, impostors, compute, exact)
        for count in self.counts:
            count(tile)

    def _multiply(self, row_factors: Tensor, column_factors: Tensor) -> Tensor:
        """Products (A, B), in memory that the next ones take."""
        size = len(row_factors) * len(column_factors)
        if len(self.memory) < size:
            self.memory = self.memory.new_empty(size)
        memory = self.memory[:size].view(len(row_factors), len(column_factors))
        return self.way.product.multiply(row_factors, column_factors, memory)

    def finish(self, gallery: Chosen) -> None:
        """See `Counter`; nothing waits."""

    def _exact(self, rows: slice, columns: slice, gallery: Chosen, places: NDArray[np.int64]) -> NDArray[np.float64]:
        width, device = columns.stop - columns.start, self.half_norms.device
        order = np.argsort(places, kind="stable")
        where = torch.from_numpy(places[order]).to(device)
        vectors, queries = (self.queries.vectors(rows), gallery.vectors(columns)), where // width
        if len(places) * FEW > (rows.stop - rows.start) * width:  # one product of the tile is faster then
            in_order = self.form.similarities(*vectors).view(-1)[where]
        else:
            in_order = self.form.of_places(*vectors, queries, where % width)
        if self.form.similarity == "euclidean":
            in_order -= self.half_norms[rows][queries]
        if self.form.similarity == "hamming":
            in_order -= self.form.dim
        values = np.empty(len(places))
        values[order] = (in_order / self.pairs.unit).cpu().numpy()
        return values

    def _overlap(self, queries: NDArray[np.int64], items: NDArray[np.int64]) -> bool:
        """Whether there are items that are no later than a query that they would be paired with."""
        return self.pairs.itself and bool(items[0] <= queries[-1])

    def _kinds(
        self, rows: slice, items: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places of the genuine pairs of a tile, and of all that are no impostor pairs."""
        queries = self.queries.index[rows]
        if self.relevance_rows != rows:  # the next tiles are of the same queries
            self.relevance_rows, self.relevance = rows, self.pairs.relevance[queries]
        relevance = self.relevance
        if relevance.held_labels is not None:
            same = np.flatnonzero(relevance.of_one_class(items))
        else:
            same = _places_of_one_class(relevance.labels, labels)
        excluded = [_within(relevance.ignored, items)]
        if not self.pairs.itself:
            excluded.append(_within(relevance.self_pairs, items))
        if relevance.groups is not None and relevance.gallery_groups is not None:
            grouped = relevance.groups[same // len(items)] == relevance.gallery_groups[items][same % len(items)]
            excluded.append(same[grouped])
        right = same if relevance.positives is None else _within(relevance.positives, items)
        out = np.concatenate(excluded)
        if self._overlap(queries, items):
            right, out = (places[items[places % len(items)] > queries[places // len(items)]] for places in (right, out))
        if not len(out):
            return right, right
        marks = np.zeros(len(queries) * len(items), bool)
        marks[out] = True
        genuine = right[~marks[right]]
        marks[right] = True
        return genuine, np.flatnonzero(marks)


def all_pairs(  # noqa: PLR0913 - as nearest_neighbours
    features: ArrayLike | Tensor | Table,
    labels: ArrayLike | Tensor,
    *,
    gallery: ArrayLike | Tensor | Table | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    rules: SearchRules | None = None,
    memory: int | None = None,
) -> AllPairs:
    """Check features and prepare their pairs; nothing is computed yet.

    Args:
        features: (Q, D), see `nearest_neighbours`, as all that is not named here.
        labels: (Q,) integers.
        gallery: (G, D); None for the queries themselves.
        gallery_labels: (G,) integers; needed with a gallery.
        similarity: cosine, dot, euclidean or hamming.
        ids: Q names, used with `gallery_ids` only.
        gallery_ids: G different names; an item with the query's name is no pair with it.
        rules: which pairs do not count, or are genuine, where the class does not say.
        memory: bytes that a sweep may take; None: no limit.

    Raises:
        NotFiniteError: a row holds NaN or Inf; with the number of rows.
        ValueError: arguments that do not fit together.
    """
    queries = items_of(features, labels, "features", similarity)
    items = queries if gallery is None else items_of(gallery, gallery_labels, "gallery", similarity)
    self_indices = find_self_indices(len(queries), ids, None if gallery is None else len(items), gallery_ids)
    relevance = relevance_of(queries.labels, None if gallery is None else items.labels, self_indices, rules)
    if gallery is None:
        listed = None if relevance.positives is None else _both_ways(relevance.positives)
        relevance = replace(relevance, ignored=_both_ways(relevance.ignored), positives=listed)
    return AllPairs(queries, items, form_of(queries, items, similarity), relevance, memory=memory)


def _both_ways(pairs: Pairs) -> Pairs:
    """The pairs and their reverse, each once, sorted by query."""
    both = np.stack([np.r_[pairs.queries, pairs.items], np.r_[pairs.items, pairs.queries]], axis=1)
    both = np.unique(both, axis=0)
    return Pairs(both[:, 0], both[:, 1])


def _places_of_one_class(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places in a tile of the pairs of one class, ascending."""
    order = np.argsort(columns, kind="stable")
    ordered = columns[order]
    starts = np.searchsorted(ordered, rows)
    paired = np.flatnonzero(ordered[starts.clip(max=len(ordered) - 1)] == rows)  # few rows, of many classes
    starts = starts[paired]
    lengths = np.searchsorted(ordered, rows[paired], "right") - starts
    within = np.arange(int(lengths.sum())) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    places: NDArray[np.int64] = np.repeat(paired, lengths) * len(columns) + order[within]
    return places


def _within(pairs: Pairs, items: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places of pairs in a tile of their queries and of some items, ascending."""
    columns = np.searchsorted(items, pairs.items)
    there = items[columns.clip(max=len(items) - 1)] == pairs.items
    places: NDArray[np.int64] = np.sort(pairs.queries[there] * len(items) + columns[there])
    return places
