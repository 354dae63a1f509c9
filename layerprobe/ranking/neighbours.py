"""Nearest neighbours of every query, equal to what float64 brute force finds, whichever library searches.

The backend proposes candidates in float32, a few more than k. They are compared in float64, and a rigorous
bound of the float32 rounding tells whether an item that was not proposed could belong among them; where one could, that
query is compared with the whole gallery in float64. An offset common to all features costs no digits, since it is
subtracted before rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from layerprobe.ranking.faiss_search import Finder, faiss_finder, import_faiss
from layerprobe.ranking.items import BLOCK_ROWS, Items, cuts, find_self_indices, label_array, unlabelled_items
from layerprobe.ranking.products import Product, float32
from layerprobe.ranking.relevance import Relevance, relevance_of
from layerprobe.ranking.rounded import Rounded
from layerprobe.ranking.vectors import Form, form_of
from layerprobe.system.computing import full_precision
from layerprobe.system.errors import EnvironmentFault
from layerprobe.values.retrieval import Neighbours, SearchRules, Similarity

Backend = Literal["auto", "torch", "faiss"]

# Candidates beyond k, in case rounding changed the order, and for near ties.
_SPARE = 16
# Similarities or numbers of vectors held at once: 32 MiB in float64.
_CELLS = 2**22


def nearest_neighbours(  # noqa: PLR0913 - the public signature; a gallery's parts mean nothing in another call
    features: ArrayLike | Tensor,
    k: int,
    gallery: ArrayLike | Tensor | None = None,
    backend: Backend = "auto",
    *,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    rules: SearchRules | None = None,
    labels: ArrayLike | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
) -> Neighbours:
    """The `k` nearest items of every query, closest first.

    Without a gallery the queries are searched among themselves, each without itself: it is excluded by its
    index, so that its exact duplicates are found. In a gallery nothing is excluded, unless `ids` and `gallery_ids`
    are given: then an item with the query's id is the query and no neighbour of it.

    Ties: the closest item left, and all that are tied with it, come next, in the order of their indices; and so on. At
    the end of the list that rule says which of the tied are in it. Tied are similarities within the windows of
    `nearest_positive_ranks`. Both backends give the same neighbours, those of a float64 sort by this rule; only where a
    difference is a window to the last digits of float64 may its rounding decide.

    >>> import numpy as np
    >>> from layerprobe import nearest_neighbours
    >>> angles = np.radians([0, 10, 15, 90])
    >>> features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    >>> nearest_neighbours(features, k=2).indices.tolist()
    [[1, 2], [2, 0], [1, 0], [2, 1]]

    Args:
        features: (Q, D) array or tensor on any device, of any real type; for hamming uint8 of packed bits, 8
            dimensions a byte.
        k: at least 1 and below the gallery's size (Q without a gallery).
        gallery: (G, D) the searched items, likewise; None for the queries themselves.
        backend: what proposes candidates. "auto" takes faiss where it can be imported, unless the features lie on a GPU
            and faiss has none; otherwise torch.
        similarity: cosine (a zero vector has 0 with everything), dot, euclidean or hamming.
        ids: Q names, used with `gallery_ids` only.
        gallery_ids: G different names.
        rules: further excluded items: those of the query's class and group, and ignored ones. `positives` say what is
            right and change nothing here.
        labels: (Q,) integers, the class of each query; needed with groups only.
        gallery_labels: (G,) those of the gallery.

    Returns:
        Indices and similarities (Q, k). Where the rules leave a query fewer than k items, its last ones are -1, at the
        similarity -inf.

    Raises:
        NumericError: a row holds NaN or Inf; with the number of rows.
        EnvironmentFault: faiss was requested and cannot be imported.
        ValueError: shapes, types, ids or rules that do not fit together, a k out of range, an unknown similarity or
            backend.
    """
    queries = unlabelled_items(features, "features", similarity)
    searched = queries if gallery is None else unlabelled_items(gallery, "gallery", similarity)
    self_indices = find_self_indices(len(queries), ids, None if gallery is None else len(searched), gallery_ids)
    if not 1 <= k < len(searched):
        raise ValueError(f"k = {k}: must be at least 1 and below the gallery's size, {len(searched)}")
    classes, searched_classes = queries.labels, None if gallery is None else searched.labels
    if rules is not None and rules.groups is not None:
        classes = label_array(labels, len(queries), "features")
        searched_classes = None if gallery is None else label_array(gallery_labels, len(searched), "gallery")
    elif rules is not None:  # the classes matter to groups alone
        rules = replace(rules, label_sets=None)
    relevance = relevance_of(classes, searched_classes, self_indices, rules)
    faiss = _library(backend, searched.device)
    with full_precision(queries.device):
        form = form_of(queries, searched, similarity)
        spare = _SPARE + 1
        if rules is not None:
            # So many candidates nine queries in ten lose to the rules; the others are compared with the whole gallery.
            spare = _SPARE + int(np.quantile(relevance.excluded_counts(), 0.9, method="higher"))
        search = NeighbourSearch.of(searched, form, k, spare, faiss)
        indices = np.empty((len(queries), k), np.int64)
        similarities = np.empty((len(queries), k))
        for rows in cuts(len(queries), BLOCK_ROWS):
            nearest = search.nearest(form.vectors(queries.take(rows)), relevance[rows])
            indices[rows], similarities[rows] = (tensor.cpu().numpy() for tensor in nearest)
    return Neighbours(indices, similarities, similarity, "torch" if faiss is None else "faiss")


def _library(backend: Backend, device: torch.device) -> Any:
    """The faiss module; None if torch proposes the candidates."""
    if backend not in ("auto", "torch", "faiss"):
        raise ValueError(f"unknown backend {backend!r}: auto, torch or faiss")
    if backend == "torch":
        return None
    if backend == "faiss":
        return import_faiss()
    try:
        faiss = import_faiss()
    except EnvironmentFault:
        return None
    return faiss if device.type == "cpu" or faiss.get_num_gpus() else None


def _torch_finder(product: Product, gallery: Tensor, count: int) -> Finder:
    def find(queries: Tensor) -> tuple[Tensor, Tensor]:
        blocks = queries.split(max(1, _CELLS // len(gallery)))
        nearest = [product.multiply(block, gallery).topk(count, sorted=False) for block in blocks]
        return torch.cat([block.values for block in nearest]), torch.cat([block.indices for block in nearest])

    return find


@dataclass(frozen=True, eq=False)
class NeighbourSearch:
    """A gallery that blocks of queries are searched in.

    Args:
        gallery: the searched items.
        form: what makes it comparable.
        k: number of neighbours.
        product: how its float32 sums are rounded.
        rounded: the gallery for that product.
        find: proposes candidates: all of the gallery, or more than k.
    """

    gallery: Items
    form: Form
    k: int
    product: Product
    rounded: Rounded
    find: Finder

    @classmethod
    def of(cls, gallery: Items, form: Form, k: int, spare: int, faiss: Any) -> NeighbourSearch:
        """Round a gallery, of which `k` and `spare` items are proposed; faiss proposes them unless it is None."""
        product = float32(gallery.device)
        rounded = Rounded.of(map(form.vectors, gallery.blocks()), len(gallery), form, product)
        count = min(k + spare, len(gallery))
        if faiss is None:
            find = _torch_finder(product, rounded.values, count)
        else:
            # faiss may sum on a CPU or a GPU: the larger of the two units.
            product = replace(product, unit=2.0**-23)
            find = faiss_finder(faiss, rounded.values, count)
        return cls(gallery, form, k, product, rounded, find)

    def nearest(self, queries: Tensor, relevance: Relevance) -> tuple[Tensor, Tensor]:
        """Indices and similarities (B, k) of the neighbours of queries (B, D); `relevance` is that of the queries."""
        windows = self.form.windows(queries)
        scores, candidates, constants, tolerance = self.candidates(queries)
        candidates = candidates.sort(1).values
        similarities = self.of_pairs(queries, candidates)
        similarities.masked_fill_(relevance.is_excluded(candidates), -torch.inf)
        chosen = _closest(similarities, windows, self.k)
        indices, similar = candidates.gather(1, chosen), similarities.gather(1, chosen)
        if candidates.shape[1] < len(self.gallery):
            # Items that were not proposed are no closer than this; nor may one tie with the last one chosen.
            ceiling = scores.amin(1).double() + constants + tolerance
            unsure = torch.nonzero(~(similarities.topk(self.k).values[:, -1] - windows > ceiling))[:, 0]
            for rows in unsure.split(max(1, _CELLS // len(self.gallery))) if len(unsure) else ():
                every = self._of_all(queries[rows])
                relevance[rows.cpu().numpy()].take_out(every)
                indices[rows] = _closest(every, windows[rows], self.k)
                similar[rows] = every.gather(1, indices[rows])
        missing = similar == -torch.inf
        reported = self._in_user_units(queries, indices, similar).masked_fill_(missing, -torch.inf)
        return indices.masked_fill_(missing, -1), reported

    def candidates(self, queries: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What queries (B, D) find among rounded vectors.

        Returns:
            (B, C) scores, (B, C) their rows of the gallery, (B,) the constant to add to a query's scores, and (B,) how
            far a similarity may then be from its score.
        """
        form, product = self.form, self.product
        rounded = Rounded.of([queries], len(queries), form, product)
        constants = form.constants(rounded.biases)
        # sums of -1 and 1 are exact
        exact = form.similarity == "hamming"
        tolerance = constants * 0 if exact else rounded.tolerance(self.rounded, form, product)
        rounded.swap()
        return *self.find(rounded.values), constants, tolerance

    def of_pairs(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """(B, C) float64 similarities of queries with the items at `candidates` (B, C)."""
        similarities = []
        for rows in cuts(len(queries), max(1, _CELLS // (candidates.shape[1] * self.form.dim))):
            some = queries[rows].repeat_interleave(candidates.shape[1], 0)
            similarities.append(self.form.of_pairs(some, self._vectors(candidates[rows].flatten())))
        return torch.cat(similarities).view(candidates.shape)

    def _of_all(self, queries: Tensor) -> Tensor:
        """(B, G) float64 similarities of queries with the whole gallery."""
        form = self.form
        return torch.cat([form.similarities(queries, form.vectors(block)) for block in self.gallery.blocks()], 1)

    def _vectors(self, index: Tensor) -> Tensor:
        return self.form.vectors(self.gallery.take(index.cpu().numpy()))

    def _in_user_units(self, queries: Tensor, indices: Tensor, similarities: Tensor) -> Tensor:
        """(B, k) similarities in the units that users get."""
        form = self.form
        if form.similarity == "cosine":
            return similarities.clamp(-1, 1)
        if form.similarity == "dot":
            return similarities / form.scale / form.scale
        if form.similarity == "hamming":
            return (similarities - form.dim) / 2
        # From differences: |q|^2 - 2 q.g + |g|^2 would leave few digits of a small distance.
        distances = []
        for rows in cuts(len(queries), max(1, _CELLS // (self.k * form.dim))):
            items = self._vectors(indices[rows].flatten()).view(*indices[rows].shape, -1)
            distances.append(0 - (items - queries[rows, None]).norm(dim=2) / form.scale)
        return torch.cat(distances)


def _closest(similarities: Tensor, windows: Tensor, k: int) -> Tensor:
    """Columns (B, k) of the closest items, ties in the order of the columns.

    Args:
        similarities: (B, C) float64; items that must not be chosen are at -inf; they come last where fewer than k
            are not.
        windows: (B,) how much two may differ and be tied.
        k: at most C.
    """
    heads = heads_of_ties(similarities.topk(k).values, windows)
    lowest_heads = heads[:, -1:]
    before = similarities > lowest_heads
    tied = (similarities >= lowest_heads - windows[:, None]) & ~before
    chosen = before | (tied & (tied.cumsum(1) <= k - before.sum(1, keepdim=True)))
    columns = torch.nonzero(chosen)[:, 1].view(-1, k)
    # An item's group is that of the smallest head that is not below the item.
    groups = torch.searchsorted(heads.flip(1).contiguous(), similarities.gather(1, columns))
    return columns.gather(1, groups.sort(dim=1, descending=True, stable=True).indices)


def heads_of_ties(top: Tensor, windows: Tensor) -> Tensor:
    """(B, k) for each of the k closest items the closest of those that it is tied with.

    Args:
        top: (B, k) similarities of the k closest items, descending.
        windows: (B,) how much two may differ and be tied.
    """
    heads = top.clone()
    for i in range(1, top.shape[1]):
        heads[:, i] = torch.where(top[:, i] >= heads[:, i - 1] - windows, heads[:, i - 1], top[:, i])
    return heads
