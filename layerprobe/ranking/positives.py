"""Similarities of queries with items of their own class, or of single pairs, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.ranking.items import BLOCK_ROWS, Items, block_rows, cuts
from layerprobe.ranking.products import Product, float32
from layerprobe.ranking.relevance import Pairs, Relevance
from layerprobe.ranking.rounded import Rounded
from layerprobe.ranking.vectors import Form

# Similarities held at once: 16 MiB.
_CELLS = 2**21
# Numbers of vectors held at once: 8 MiB, on a GPU 512 MiB.
_NUMBERS, _NUMBERS_OF_A_GPU = 2**20, 2**26
# In classes with more items the nearest are found in float32 first.
_SCREENED_FROM = 192
# With more candidates in a row, one float64 product of the block is faster than computing each pair.
_PAIRS_PER_ROW = 16


@dataclass(frozen=True, eq=False)
class Chosen:
    """Rows of queries or of a gallery, sorted by class.

    Args:
        vectors: gives the float64 vectors (B, D) of a slice or of an index.
        labels: (N,) int64, ascending.
        index: (N,) index of each row in its set.
    """

    vectors: Callable[[Any], Tensor]
    labels: NDArray[np.int64]
    index: NDArray[np.intp]

    def some(self, places: NDArray[np.intp]) -> Chosen:
        """The rows at some places, ascending."""
        vectors = self.vectors
        return Chosen(lambda part: vectors(places[part]), self.labels[places], self.index[places])


@dataclass(frozen=True, eq=False)
class _SharedClasses:
    """Classes that queries and gallery share: (C,) where each starts and ends among the sorted rows of both."""

    query_starts: NDArray[np.intp]
    query_ends: NDArray[np.intp]
    gallery_starts: NDArray[np.intp]
    gallery_ends: NDArray[np.intp]

    @classmethod
    def of(cls, queries: Chosen, gallery: Chosen) -> _SharedClasses:
        query_starts, query_ends = _runs(queries.labels)
        gallery_starts, gallery_ends = _runs(gallery.labels)
        classes = queries.labels[query_starts], gallery.labels[gallery_starts]
        _, query_runs, gallery_runs = np.intersect1d(*classes, assume_unique=True, return_indices=True)
        return cls(
            query_starts[query_runs], query_ends[query_runs], gallery_starts[gallery_runs], gallery_ends[gallery_runs]
        )

    def __getitem__(self, which: NDArray[Any] | slice) -> _SharedClasses:
        return _SharedClasses(
            self.query_starts[which], self.query_ends[which], self.gallery_starts[which], self.gallery_ends[which]
        )

    def cut(self) -> _SharedClasses:
        """The same with classes of many queries in parts, whose similarities fit into memory."""
        most = np.maximum(_CELLS // (self.gallery_ends - self.gallery_starts), 1)
        parts = -(-(self.query_ends - self.query_starts) // most)
        which = np.repeat(np.arange(len(parts)), parts)
        part = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
        starts = self.query_starts[which] + part * most[which]
        ends = np.minimum(starts + most[which], self.query_ends[which])
        return _SharedClasses(starts, ends, self.gallery_starts[which], self.gallery_ends[which])

    def chunks(self, dim: int, device: torch.device) -> Iterator[tuple[_SharedClasses, int, int]]:
        """Classes of about equal size, with the largest number of queries and items; each chunk fits into memory."""
        numbers, steps = (_NUMBERS, 4) if device.type == "cpu" else (_NUMBERS_OF_A_GPU, 1)
        height = _rounded_up(self.query_ends - self.query_starts, steps)
        width = _rounded_up(self.gallery_ends - self.gallery_starts, steps)
        sizes = height << 32 | width
        for size in sorted(set(sizes.tolist())):
            some, (rows, columns) = np.flatnonzero(sizes == size), divmod(size, 2**32)
            step = max(1, min(_CELLS // (rows * columns), numbers // ((rows + columns) * dim)))
            for start in range(0, len(some), step):
                yield self[some[start : start + step]], rows, columns


def _runs(labels: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where each class starts and ends among sorted labels."""
    starts = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))
    return starts, np.append(starts[1:], len(labels))


def _rounded_up(sizes: NDArray[np.intp], steps: int) -> NDArray[np.intp]:
    """Sizes rounded up to at most so many steps in each doubling, of four 1 2 3 4 5 6 7 8 10 12 14 16 20 ..."""
    step = np.maximum(2 ** np.floor(np.log2(sizes)).astype(np.intp) // steps, 1)
    up: NDArray[np.intp] = -(-sizes // step) * step
    return up


def positive_similarities(  # noqa: PLR0913 - what is compared, how, and the share of it
    queries: Chosen,
    gallery: Chosen,
    relevance: Relevance,
    form: Form,
    share: slice = slice(None),
    *,
    classes: _SharedClasses | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each query with the items of its class, in blocks.

    Args:
        queries: the same object as `gallery` where the rows are the same.
        gallery: the searched items.
        relevance: of the queries, by their index, in the gallery's set; without listed positives.
        form: of the vectors.
        share: which of the blocks to take.
        classes: only these; None for all that queries and gallery share.

    Yields:
        Places (B,) of queries and their similarities (B, C); padding and what is taken out at -inf. Every query whose
        class is in the gallery comes once, with all items of its class.
    """
    classes = _SharedClasses.of(queries, gallery) if classes is None else classes
    chunks = classes.cut().chunks(form.dim, form.origin.device)
    for some, height, width in islice(chunks, share.start, share.stop, share.step):
        rows, columns = some.query_starts[:, None] + np.arange(height), some.gallery_starts[:, None] + np.arange(width)
        here, there = rows < some.query_ends[:, None], columns < some.gallery_ends[:, None]
        rows = np.minimum(rows, some.query_ends[:, None] - 1)
        columns = np.minimum(columns, some.gallery_ends[:, None] - 1)
        searched = gallery.vectors(columns.ravel()).view(len(columns), width, -1)
        same = queries is gallery and np.array_equal(rows, columns)
        query_vectors = searched if same else queries.vectors(rows.ravel()).view(len(rows), height, -1)
        similarities = form.similarities(query_vectors, searched)

        def to_device(values: NDArray[Any], device: torch.device = similarities.device) -> Tensor:
            return torch.from_numpy(values).to(device)

        if relevance.groups is None and not len(relevance.ignored):  # the query alone is taken out
            self_indices = to_device(relevance.self_indices[queries.index[rows]])
            excluded = self_indices[:, :, None] == to_device(gallery.index[columns])[:, None]
        else:
            every = np.zeros(similarities.shape, bool)
            item_places = columns[:, None, :].repeat(height, 1)[here]
            every[here] = _exclusions(relevance, queries.index[rows[here]], gallery, item_places)
            excluded = to_device(every)
        excluded |= to_device(~there)[:, None]
        similarities = similarities.masked_fill_(excluded, -torch.inf).flatten(0, 1)
        if here.all():
            yield to_device(rows.ravel()), similarities
        else:
            inside = np.flatnonzero(here)
            yield to_device(rows.ravel()[inside]), similarities[to_device(inside)]


def nearest_positives(  # noqa: PLR0913 - what is compared, how, and the share of it
    queries: Chosen, gallery: Chosen, relevance: Relevance, form: Form, windows: Tensor, share: slice
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The nearest item of the class of each query.

    Args:
        queries, gallery, relevance, form: as for `positive_similarities`.
        windows: (Q,) float64 tie windows.
        share: which of the blocks to take.

    Yields:
        Places (B,) of queries, their similarities to the nearest positive, -inf without one, and how many tie there.
    """
    classes = _SharedClasses.of(queries, gallery)
    large = classes.gallery_ends - classes.gallery_starts > _SCREENED_FROM
    for rows, similarities in positive_similarities(queries, gallery, relevance, form, share, classes=classes[~large]):
        yield rows, *_nearest(similarities, windows[rows])
    for number in np.flatnonzero(large)[share]:
        yield from _screen_class(queries, gallery, relevance, form, windows, classes[number : number + 1])


def _nearest(similarities: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
    nearest = similarities.amax(1)
    # What is taken out is at -inf, where a lone query's nearest is too.
    lowest = (nearest - windows).clamp_(min=torch.finfo(similarities.dtype).min)
    return nearest, (similarities >= lowest[:, None]).sum(1)


def _screen_class(  # noqa: PLR0913 - as nearest_positives
    queries: Chosen, gallery: Chosen, relevance: Relevance, form: Form, windows: Tensor, large_class: _SharedClasses
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One large class: float32 finds the items that may be the nearest, and float64 computes these."""
    product = float32(form.origin.device)
    rows = slice(int(large_class.query_starts[0]), int(large_class.query_ends[0]))
    columns = slice(int(large_class.gallery_starts[0]), int(large_class.gallery_ends[0]))
    searched = _round_vectors(gallery, columns, form, product)
    rounded_queries = _round_vectors(queries, rows, form, product)
    rounded_queries.swap()
    reach = 2 * rounded_queries.tolerance(searched, form, product) + windows[rows]
    every = np.arange(columns.start, columns.stop)
    step = max(1, 2 * _CELLS // len(every))
    for start in range(0, len(reach), step):
        chunk = slice(start, min(start + step, len(reach)))
        block = slice(rows.start + chunk.start, rows.start + chunk.stop)
        excluded = _class_exclusions(relevance, queries.index[block], gallery, every, reach.device)
        similarities = product.multiply(rounded_queries.values[chunk], searched.values)
        similarities[excluded] = -torch.inf
        nearest = similarities.amax(1)
        lowest = (nearest.double() - reach[chunk]).float()
        lowest = torch.nextafter(lowest, lowest.new_tensor(-torch.inf)).where(nearest.isfinite(), torch.inf)
        places, columns_of_candidates = (similarities >= lowest[:, None]).nonzero().unbind(1)
        here = torch.arange(block.start, block.stop, device=reach.device)
        mine = queries.vectors(block)
        if len(places) > _PAIRS_PER_ROW * len(here):
            exact = form.similarities(mine, gallery.vectors(columns))
            exact[excluded] = -torch.inf
            yield here, *_nearest(exact, windows[block])
            continue
        candidates, inverse = columns_of_candidates.unique(return_inverse=True)
        items = gallery.vectors(columns.start + candidates.cpu().numpy())
        exact = form.of_places(mine, items, places, inverse)
        best = mine.new_full((len(here),), -torch.inf).scatter_reduce_(0, places, exact, "amax")
        ties = exact >= (best - windows[block])[places]
        yield here, best, torch.zeros_like(here).index_add_(0, places, ties.long())


def _round_vectors(some: Chosen, rows: slice, form: Form, product: Product) -> Rounded:
    parts = cuts(rows.stop - rows.start, block_rows(form.origin.device, form.dim))
    blocks = (some.vectors(slice(rows.start + chunk.start, rows.start + chunk.stop)) for chunk in parts)
    return Rounded.of(blocks, rows.stop - rows.start, form, product)


def _exclusions(
    relevance: Relevance, rows: NDArray[np.intp], gallery: Chosen, places: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """(B, C) which items of the query's class are taken out: itself, those of its group, and ignored ones.

    Args:
        relevance: says which.
        rows: (B,) which queries they are.
        gallery: whose items they are.
        places: (B, C) of the items in the gallery.
    """
    items = gallery.index[places]
    excluded: NDArray[np.bool_] = relevance.self_indices[rows][:, None] == items
    if relevance.groups is not None and relevance.gallery_groups is not None:
        excluded |= relevance.groups[rows][:, None] == relevance.gallery_groups[items]
    if len(relevance.ignored):
        pairs, size = relevance.ignored.among(rows), len(relevance.gallery_labels)
        keys = np.arange(len(rows))[:, None] * size + items
        excluded |= np.isin(keys, pairs.queries * size + pairs.items)
    return excluded


def _class_exclusions(
    relevance: Relevance, rows: NDArray[np.intp], gallery: Chosen, places: NDArray[np.intp], device: torch.device
) -> Any:
    """What is taken out of one class's items at places (C,), as an index of (B, C)."""
    if relevance.groups is not None or len(relevance.ignored):
        every = np.broadcast_to(places, (len(rows), len(places)))
        return torch.from_numpy(_exclusions(relevance, rows, gallery, every)).to(device)
    items = gallery.index[places]
    order = np.argsort(items)
    self_places = order[np.searchsorted(items, relevance.self_indices[rows], sorter=order).clip(max=len(items) - 1)]
    which = np.flatnonzero(items[self_places] == relevance.self_indices[rows])
    return torch.from_numpy(which).to(device), torch.from_numpy(self_places[which]).to(device)


# Pairs computed together: their float64 vectors fit into the CPU's caches.
_PAIRS_TOGETHER = 512


def pair_similarities(queries: Chosen, gallery: Items, pairs: Pairs, form: Form, share: slice) -> tuple[Tensor, Tensor]:
    """Similarity of each pair.

    Args:
        queries: whose index the pairs' queries are.
        gallery: whose rows the pairs' items are; on disk only blocks that have a pair are read.
        pairs: in any order.
        form: of the vectors.
        share: which of the blocks of pairs to take.

    Returns:
        (S,) places of queries among `queries` and (S,) float64 similarities.
    """
    places = np.empty(len(queries.index), np.intp)
    places[queries.index] = np.arange(len(places))
    of_pairs = places[pairs.queries]
    which, similarities = [np.zeros(0, np.intp)], [form.origin.new_zeros(0)]
    for some, items in islice(_blocks(gallery, pairs.items), share.start, share.stop, share.step):
        # A query comes several times in a row.
        query_rows, inverse = np.unique(of_pairs[some], return_inverse=True)
        similarities.append(form.of_pairs(queries.vectors(query_rows)[inverse], form.vectors(items)))
        which.append(of_pairs[some])
    return torch.from_numpy(np.concatenate(which)).to(form.origin.device), torch.cat(similarities)


def _blocks(gallery: Items, items: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.intp], Tensor]]:
    """Places among items (P,) and the raw rows there, a few at a time."""
    if not gallery.on_disk:
        for start in range(0, len(items), _PAIRS_TOGETHER):
            some = np.arange(start, min(start + _PAIRS_TOGETHER, len(items)))
            yield some, gallery.take(items[some])
        return
    order = np.argsort(items, kind="stable")
    starts = range(0, len(gallery), BLOCK_ROWS)
    bounds = np.searchsorted(items[order], [*starts, len(gallery)])
    for start, begin, end in zip(starts, bounds[:-1], bounds[1:], strict=True):
        if begin == end:
            continue
        rows = gallery.take(slice(start, start + BLOCK_ROWS))
        for offset in range(begin, end, _PAIRS_TOGETHER):
            some = order[offset : min(offset + _PAIRS_TOGETHER, end)]
            yield some, rows[items[some] - start]
