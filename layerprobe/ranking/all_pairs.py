"""Every pair of a query and an item that it may find, tile by tile: exact similarities, bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.ranking.items import BLOCK_ROWS, Items, cuts, find_self_indices, items_of
from layerprobe.ranking.relevance import Pairs, Relevance, relevance_of
from layerprobe.ranking.vectors import Form, form_of
from layerprobe.system.computing import full_precision
from layerprobe.values.retrieval import SearchRules, Similarity

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.items import Table


@dataclass(frozen=True, eq=False)
class Tile:
    """The pairs of some queries with some items.

    Args:
        rows: of the queries.
        columns: of the items.
        similarities: (A, B) float64, as `AllPairs.in_user_units` takes them; a higher one is closer.
        genuine: (A, B) the pairs of a query and an item that is right for it.
        impostor: (A, B) those of a query and an item that is wrong. A pair that does not count is neither.
    """

    rows: slice
    columns: slice
    similarities: Tensor
    genuine: Tensor
    impostor: Tensor


@dataclass(frozen=True, eq=False)
class AllPairs:
    """The pairs of queries and items: among the queries themselves each pair of images once, else each query and item.

    A pair is excluded as it is from a search (`SearchRules`); among the queries themselves, if either image excludes
    the other. Likewise it is genuine if either has the other in its list of right items.

    Args:
        folds: (Q,) of queries that are paired among themselves: images of two folds are no pair. None for no folds.
    """

    queries: Items
    gallery: Items
    form: Form
    relevance: Relevance
    folds: NDArray[np.int64] | None = None

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

    def tiles(self) -> Iterator[Tile]:
        """All pairs; of the queries themselves the tiles on and above the diagonal."""
        with full_precision(self.queries.device):
            for rows in cuts(len(self.queries), BLOCK_ROWS):
                vectors = self.form.vectors(self.queries.take(rows))
                relevance = self.relevance[rows]
                for columns in cuts(len(self.gallery), BLOCK_ROWS):
                    if self.itself and columns.stop <= rows.start:
                        continue
                    similarities = self._similarities(vectors, self.form.vectors(self.gallery.take(columns)))
                    yield Tile(rows, columns, similarities, *self._kinds(relevance, rows, columns, similarities))

    def _similarities(self, queries: Tensor, gallery: Tensor) -> Tensor:
        similarities = self.form.similarities(queries, gallery)
        if self.form.similarity == "hamming":
            return similarities.sub_(self.form.dim).div_(2)
        if self.form.similarity == "euclidean":
            similarities = similarities.sub_(queries.square().sum(1, keepdim=True) / 2)
        return similarities if self.form.similarity == "cosine" else similarities.div_(self.form.scale**2)

    def _kinds(self, relevance: Relevance, rows: slice, columns: slice, like: Tensor) -> tuple[Tensor, Tensor]:
        """The genuine and the impostor pairs of a tile (A, B), given the relevance of its queries."""
        import torch

        same = relevance.of_one_class(columns)
        counted = np.ones_like(same)
        if self.itself:
            counted = np.arange(columns.start, columns.stop) > np.arange(rows.start, rows.stop)[:, None]
        if self.folds is not None:
            counted &= self.folds[rows, None] == self.folds[columns]
        if relevance.groups is not None and relevance.gallery_groups is not None:
            counted &= ~(same & (relevance.groups[:, None] == relevance.gallery_groups[None, columns]))
        for pairs in (relevance.self_pairs, relevance.ignored):
            counted[_within(pairs, columns)] = False
        right = same
        if relevance.positives is not None:
            right = np.zeros_like(same)
            right[_within(relevance.positives, columns)] = True
        kinds = (torch.from_numpy(kind).to(like.device) for kind in (counted & right, counted & ~right))
        return next(kinds), next(kinds)


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
    return AllPairs(queries, items, form_of(queries, items, similarity), relevance)


def _both_ways(pairs: Pairs) -> Pairs:
    """The pairs and their reverse, each once, sorted by query."""
    both = np.stack([np.r_[pairs.queries, pairs.items], np.r_[pairs.items, pairs.queries]], axis=1)
    both = np.unique(both, axis=0)
    return Pairs(both[:, 0], both[:, 1])


def _within(pairs: Pairs, columns: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of a tile that pairs of its queries are at."""
    some = pairs.where((pairs.items >= columns.start) & (pairs.items < columns.stop))
    return some.queries, some.items - columns.start
