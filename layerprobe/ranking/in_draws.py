"""Recall@1 of queries in many draws of the same items, from one search for each query's nearest items.

A draw decides only which of a query's nearest items are there. Where its nearest ones, or ties among them, reach beyond
the list, the draw itself is searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.items import BLOCK_ROWS, Items, items_of
from layerprobe.ranking.neighbours import NeighbourSearch
from layerprobe.ranking.ranks import nearest_positive_ranks
from layerprobe.ranking.tiles import cuts
from layerprobe.ranking.vectors import form_of
from layerprobe.system.numerics import full_precision
from layerprobe.values.arrays import FloatArray, IntArray
from layerprobe.values.retrieval import Ranks, Similarity

if TYPE_CHECKING:
    from torch import Tensor

Rows = NDArray[np.intp]

# A pass over all pairs pays from so many times as many pairs in all draws.
_PAYS_FROM = 2
# Share of the queries whose list may end before an item of a draw.
_MISSED = 1e-5
# Rounding in float64 stays below this part of a tie window.
_PART = 1 / 8
# The tie window of dot and euclidean depends on the draw: it is at most so many times that of all items, since a draw's
# mean is at most as far from the common mean as the longest vector.
_WIDEST = 9


def hits_in_draws(
    features: NDArray[np.generic] | Tensor,
    labels: IntArray,
    drawn: Sequence[Rows],
    similarity: Similarity = "cosine",
    *,
    progress: Callable[[Sequence[Rows]], Iterator[Rows]] = iter,
) -> FloatArray:
    """Recall@1 of each query, searched in every draw that it is in: the mean of its hits over these.

    Time: a float32 product of all pairs, where the draws have several times as many. Memory: a few tens of indices and
    similarities for each query, and some blocks.

    Args:
        features: (Q, D), in memory.
        labels: (Q,).
        drawn: rows of each draw, ascending; they are searched among themselves, ties at their expected value.
        similarity: cosine, dot, euclidean or hamming.
        progress: goes through the draws, and shows how far.

    Returns:
        (Q,) in [0, 1]; NaN where a query is in no draw.

    Raises:
        NotFiniteError: a row of a draw holds NaN or Inf.
    """
    hits, often = np.zeros(len(labels)), np.zeros(len(labels))
    union = np.unique(np.concatenate(drawn))
    pays = sum(len(rows) ** 2 for rows in drawn) >= _PAYS_FROM * len(union) ** 2
    lists = None
    if pays:
        items = items_of(features[union], labels[union], "features", similarity)
        with full_precision(items.device):
            lists = _Lists.of(items, similarity, min(map(len, drawn)) / len(union))
    for rows in progress(drawn):
        draw_hits = np.full(len(rows), np.nan)
        if lists is not None:
            draw_hits = lists.hits(np.searchsorted(union, rows))
        open_ = np.flatnonzero(np.isnan(draw_hits))
        if len(open_):
            draw_hits[open_] = _search_hits(features, labels, rows, open_, similarity)
        hits[rows] += draw_hits
        often[rows] += 1
    hits[often == 0] = np.nan
    means: FloatArray = hits / np.maximum(often, 1)
    return means


def _search_hits(
    features: NDArray[np.generic] | Tensor, labels: IntArray, rows: Rows, some: Rows, similarity: Similarity
) -> FloatArray:
    """The hits of some of a draw's queries, which are called by their places in it."""
    gallery, classes = features[rows], labels[rows]
    if 2 * len(some) > len(rows):  # among themselves each pair is computed once
        return nearest_positive_ranks(gallery, classes, similarity=similarity, resolve=[1]).hits(1)[some]
    names = list(map(str, rows.tolist()))
    ranks = nearest_positive_ranks(
        gallery[some],
        classes[some],
        gallery=gallery,
        gallery_labels=classes,
        ids=[names[query] for query in some],
        gallery_ids=names,
        similarity=similarity,
        resolve=[1],
    )
    return ranks.hits(1)


@dataclass(frozen=True, eq=False)
class _Lists:
    """The nearest items of all queries, from float32; in float64 where that left a draw open.

    Args:
        search: has found them.
        items: (Q, C).
        right: (Q, C) whether an item has the query's class.
        similarities: (Q, C) float64; the query itself is at -inf.
        tolerance: (Q,) how far they may be from the exact ones: 0 in float64.
        floor: (Q,) an item outside the list has no higher similarity, within the tolerance.
        tied: (Q,) exact similarities that differ by no more are tied in every draw.
        apart: (Q,) those that differ by more are not, in any draw.
    """

    search: NeighbourSearch
    items: Tensor
    right: Tensor
    similarities: Tensor
    tolerance: Tensor
    floor: Tensor
    tied: Tensor
    apart: Tensor

    @classmethod
    def of(cls, items: Items, similarity: Similarity, share: float) -> _Lists:
        """Search all items among themselves.

        Args:
            share: of the items that the smallest draw has.
        """
        import torch

        form = form_of(items, items, similarity)
        # The query itself, the item that decides, and one that bounds the rest.
        count = 3 + (math.ceil(math.log(_MISSED) / math.log1p(-share)) if share < 1 else 0)
        search = NeighbourSearch.of(items, form, 1, count - 1, None)
        blocks = []
        for rows in cuts(len(items), BLOCK_ROWS):
            vectors = form.vectors(items.take(rows))
            scores, candidates, constants, tolerance = search.candidates(vectors)
            blocks.append((candidates, scores.double() + constants[:, None], tolerance, form.windows(vectors)))
        candidates, similarities, tolerance, windows = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        floor = similarities.amin(1) if count < len(items) else torch.full_like(windows, -torch.inf)
        similarities.masked_fill_(_is_query(candidates, np.arange(len(items))), -torch.inf)
        labels = torch.from_numpy(items.labels).to(candidates.device)
        low, high = (1, 1) if form.window is not None else (0, _WIDEST)
        tied, apart = (1 - _PART) * low * windows, (1 + _PART) * high * windows
        return cls(
            search, candidates, labels[candidates] == labels[:, None], similarities, tolerance, floor, tied, apart
        )

    def hits(self, rows: Rows) -> FloatArray:
        """The hits of a draw's queries; NaN where the lists do not say."""
        import torch

        queries = torch.from_numpy(rows).to(self.items.device)
        drawn = torch.zeros(len(self.items), dtype=torch.bool, device=queries.device)
        drawn[queries] = True
        hits = self._hits(queries, drawn)
        rounded = np.flatnonzero(np.isnan(hits))
        rounded = rounded[(self.tolerance[rows[rounded]] > 0).cpu().numpy()]
        if len(rounded):
            self._compute(rows[rounded])
            hits[rounded] = self._hits(queries[rounded], drawn)
        return hits

    def _compute(self, rows: Rows) -> None:
        """Replace the similarities of some queries by those in float64."""
        form = self.search.form
        for some in (rows[block] for block in cuts(len(rows), BLOCK_ROWS)):
            items = self.items[some]
            similarities = self.search.of_pairs(form.vectors(self.search.gallery.take(some)), items)
            self.similarities[some] = similarities.masked_fill_(_is_query(items, some), -np.inf)
        self.floor[rows] += self.tolerance[rows]
        self.tolerance[rows] = 0

    def _hits(self, queries: Tensor, drawn: Tensor) -> FloatArray:
        import torch

        right, similar, floor = (
            tensor.index_select(0, queries) for tensor in (self.right, self.similarities, self.floor)
        )
        similar.masked_fill_(~drawn.take(self.items.index_select(0, queries)), -torch.inf)
        nearest, wrong = (similar.masked_fill(which, -torch.inf).amax(1) for which in (~right, right))
        apart = self.apart[queries] + 2 * self.tolerance[queries]
        won = nearest - torch.maximum(wrong, floor) > apart
        lost = wrong - torch.maximum(nearest, floor) > apart
        hits: FloatArray = torch.where(won, 1.0, torch.where(lost, 0.0, torch.nan)).double().cpu().numpy()
        # The others may tie: those whose ties are all in the list, each pair surely one or surely none.
        some = torch.nonzero(~(won | lost) & (nearest - floor > apart))[:, 0]
        gaps = (similar[some] - nearest[some, None]).abs()
        tied = gaps <= (self.tied - 2 * self.tolerance)[queries[some], None]
        sure = (tied | (gaps > apart[some, None])).all(1)
        some, tied = some[sure], tied[sure]
        if len(some):
            negatives, positives = ((tied & which).sum(1).int().cpu().numpy() for which in (~right[some], right[some]))
            none = np.zeros_like(negatives)
            hits[some.cpu().numpy()] = Ranks(none, none, negatives, positives).hits(1)
        return hits


def _is_query(items: Tensor, rows: Rows) -> Tensor:
    """(B, C) where lists of items hold the query itself."""
    import torch

    is_query: Tensor = items == torch.from_numpy(rows).to(items.device)[:, None]
    return is_query
