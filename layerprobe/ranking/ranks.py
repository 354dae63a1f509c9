"""The rank of each query's nearest same-class item, as float64 brute force, and Recall@K of it.

Conventions: the query itself is excluded by its index, never by its position in a list or by its similarity, so that
exact duplicates of it stay in the gallery. Similarities that differ by at most the tie window are tied: equal vectors
must not be ordered by the rounding of a matrix product.

No neighbour is ever sorted. The similarity to the nearest positive is computed in float64; the negatives above it are
counted in a blocked product of bfloat16 or float32, or of float32 over the leading directions of the vectors, between
two thresholds that a rigorous bound of the rounding, or of what is left out, sets. A pair between them is computed in
float32 and float64: at once where such pairs are few, otherwise for the queries that a K needs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.ranking.items import BLOCK_ROWS, Items, Table, find_self_indices, items_of, label_array
from layerprobe.ranking.relevance import Relevance, relevance_of
from layerprobe.ranking.vectors import form_of, queries_at_once
from layerprobe.system.computing import full_precision
from layerprobe.values.retrieval import Lone, Ranks, Retrieval, SearchRules, Similarity, Ties

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from layerprobe.ranking.levels import Levels
    from layerprobe.ranking.search import Search


@dataclass(frozen=True)
class RecallAlone:
    """K of which Recall@K alone is asked: a query that misses at each may be counted no further."""

    ks: frozenset[int]


Resolve = Iterable[int] | Literal["all"] | RecallAlone | None

# Version of the definition and computation of the counts; stored ranks of another version are not used.
ENGINE = 2
# With fewer items than this every count is made exact; with more, those that a Recall@K needs.
RESOLVE_ALL_BELOW = 20_000
# The K of the field's tables; their counts are made exact unless the caller says otherwise.
USUAL_KS = (1, 2, 4, 8, 10, 16, 20, 30, 32, 40, 50, 100, 1000)
# Bytes for each number of a query in memory: as it was read, as it was rounded, and temporary copies.
_BYTES_PER_NUMBER = 16
# Levels that are held at once: 100 MB.
_LEVELS = 2**20
# Bytes for features on disk, if the caller sets no limit.
_MEMORY_FROM_DISK = 2**30


def nearest_positive_ranks(  # noqa: PLR0913 - the public signature; a gallery's parts mean nothing in another call
    features: ArrayLike | Tensor | Table,
    labels: ArrayLike | Tensor,
    *,
    gallery: ArrayLike | Tensor | Table | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    resolve: Resolve = None,
    previous_ranks: Ranks | None = None,
    memory: int | None = None,
    group: ProcessGroup | None = None,
    rules: SearchRules | None = None,
) -> Ranks:
    """Count, for every query, the items closer than its nearest one of the same class.

    Without a gallery the queries are searched among themselves, each without itself. In a gallery nothing is excluded,
    unless `ids` and `gallery_ids` are given: then an item with the query's id is the query and no neighbour of it.

    >>> import numpy as np
    >>> from layerprobe import nearest_positive_ranks
    >>> angles = np.radians([0, 10, 15, 90])
    >>> features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    >>> ranks = nearest_positive_ranks(features, labels=[0, 0, 1, 1])
    >>> ranks.closer.tolist()  # items of the other class before the nearest of the own
    [0, 1, 2, 0]
    >>> ranks.recall(1), ranks.recall(2)
    (0.5, 0.75)

    Args:
        features: (Q, D) array, tensor on any device, or table on disk that is read in slices (an HDF5 data set), of any
            real type; for hamming uint8 of packed bits, 8 dimensions a byte.
        labels: (Q,) integers, the class of each.
        gallery: (G, D) the searched items, likewise; None for the queries themselves.
        gallery_labels: (G,) integers.
        similarity: cosine (a zero vector has 0 with everything), dot (higher is closer), euclidean (squared distance)
            or hamming (bits that differ). Tied within 1e-12 for cosine; for dot within 1e-12 |q| max|g|; for euclidean
            within 1e-12 (|q| + max|g|)^2, lengths from the gallery's mean; for hamming where equal.
        ids: Q names, used with `gallery_ids` only.
        gallery_ids: G different names.
        resolve: "all" makes every count exact; K ... makes those exact that Recall@K needs, and may leave both ends of
            an interval (`closer`, `closer_high`, no ties) in the others. Default: "all" where fewer than 20,000 items
            are searched, otherwise K = 1, 2, 4, 8, 10, 16, 20, 30, 32, 40, 50, 100 and 1000.
        previous_ranks: of the same items, from an earlier call: only queries that they leave open are counted again.
        memory: bytes that the search may take beside the features, above what 1,024 rows and some blocks need (about
            200 MB); features on disk are then read in blocks, and those in memory not copied as a whole. None: 1 GiB
            from disk, else about 3 bytes a number and 200 MB.
        group: processes of torch.distributed that share the work; each calls with the same arguments and gets all.
        rules: which items are right, or taken out, where the class does not say; None: the classes alone.

    Returns:
        Counts of Q queries in their order.

    Raises:
        NotFiniteError: a row holds NaN or Inf; with the number of rows.
        ValueError: shapes, labels, ids or rules that do not fit together, a K below 1, or an unknown similarity.
    """
    queries = items_of(features, labels, "features", similarity)
    if gallery is None:
        if gallery_labels is not None:
            raise ValueError("gallery_labels need a gallery")
        searched = queries
    else:
        searched = items_of(gallery, gallery_labels, "gallery", similarity)
    self_indices = find_self_indices(len(queries), ids, None if gallery is None else len(searched), gallery_ids)
    relevance = relevance_of(queries.labels, None if gallery is None else searched.labels, self_indices, rules)
    ks = _ks(resolve, len(searched))
    if memory is not None and memory < 1:
        raise ValueError(f"memory = {memory}: must be at least 1 byte")
    if previous_ranks is not None and len(previous_ranks) != len(queries):
        raise ValueError(f"previous_ranks: ranks of {len(previous_ranks)} queries, not {len(queries)}")
    with full_precision(queries.device):
        search = prepare_search(queries, searched, relevance, similarity, group)
        search = replace(search, further=not isinstance(resolve, RecallAlone))
        if previous_ranks is not None:
            return _complete_ranks(search, previous_ranks, ks, memory)
        return _ranks(_counts(search, ks, memory), search.form.zeros)


def prepare_search(
    queries: Items, gallery: Items, relevance: Relevance, similarity: Similarity, group: ProcessGroup | None = None
) -> Search:
    """The search of queries in a gallery, which is the same object where they are searched among themselves."""
    from layerprobe.ranking.search import Search, Team  # which import torch

    form = form_of(queries, gallery, similarity)
    marks, searched_marks = relevance.marks
    marked = Items(queries.rows, marks)
    found_in = marked if gallery is queries else Items(gallery.rows, searched_marks)
    return Search(marked, found_in, relevance, form, Team(group))


def positive_levels(retrieval: Retrieval, group: ProcessGroup | None = None) -> Iterator[tuple[Levels, Ranks]]:
    """The positives of each query, closest first, and how many negatives are above and through each.

    Time: a product of all pairs in float32, and a place for each negative. Memory: that of `nearest_positive_ranks`,
    however large the classes are.

    Args:
        group: processes of torch.distributed that share the work; each calls with the same arguments and gets all.

    Yields:
        Those of some queries at a time, in order, and their ranks; all but the last as many as whole blocks of
        `similarity_blocks`.

    Raises:
        NotFiniteError: a row holds NaN or Inf.
    """
    queries = items_of(retrieval.features, retrieval.labels, "features", retrieval.similarity)
    gallery = queries
    if retrieval.gallery is not None:
        gallery = items_of(retrieval.gallery, retrieval.gallery_labels, "gallery", retrieval.similarity)
    relevance = relevance_of(retrieval.labels, retrieval.gallery_labels, retrieval.own, retrieval.rules)
    with full_precision(queries.device):
        search = prepare_search(queries, gallery, relevance, retrieval.similarity, group)
        for rows in _level_parts(
            relevance.counts()[0], rows_at_once(queries, search.form.dim, retrieval.memory), len(gallery)
        ):
            levels = _part(search, rows).levels()
            yield levels, _ranks(_numpy(levels.nearest()), search.form.zeros)


def _level_parts(positives: NDArray[np.int64], most: int, gallery: int) -> Iterator[slice]:
    """Queries whose levels are in memory at once."""
    step, start = queries_at_once(gallery), 0
    while start < len(positives):
        stop = start + step
        while stop < len(positives):
            further = positives[start : stop + step]
            if len(further) > most or further.sum() > _LEVELS:
                break
            stop += step
        yield slice(start, min(stop, len(positives)))
        start = stop


def _part(search: Search, rows: slice) -> Search:
    """The search of some of its queries; the same where these are all, and in memory."""
    queries = search.queries
    if rows.stop - rows.start >= len(queries) and not queries.on_disk:
        return replace(search, in_order=search.gallery.on_disk)
    some = Items(queries.take(rows), queries.labels[rows])
    return replace(search, queries=some, relevance=search.relevance[rows], in_order=True)


def _ks(resolve: Resolve, size: int) -> frozenset[int] | None:
    if resolve is None:
        return None if size < RESOLVE_ALL_BELOW else frozenset(USUAL_KS)
    if isinstance(resolve, str):
        if resolve != "all":
            raise ValueError(f"unknown resolve {resolve!r}: 'all' or the K of Recall@K")
        return None
    if isinstance(resolve, RecallAlone):
        return resolve.ks
    ks = frozenset(integer_k(k) for k in resolve)
    if ks and min(ks) < 1:
        raise ValueError(f"K = {min(ks)}: must be at least 1")
    return ks


def integer_k(k: object) -> int:
    """A K of Recall@K as an int, from any integer type.

    Raises:
        ValueError: no whole number.
    """
    try:
        return operator.index(k)  # type: ignore[arg-type] # tells by itself what is none
    except TypeError as error:
        raise ValueError(f"K = {k!r}: must be a whole number") from error


def _counts(search: Search, ks: frozenset[int] | None, memory: int | None) -> NDArray[np.int64]:
    """(4, Q) counts, also of queries that are on disk or too many for memory."""
    count, size = len(search.queries), rows_at_once(search.queries, search.form.dim, memory)
    parts = (slice(start, min(start + size, count)) for start in range(0, count, size))
    return np.concatenate([_numpy(_part(search, rows).counts(ks)) for rows in parts], 1)


def rows_at_once(queries: Items, dim: int, memory: int | None) -> int:
    """How many queries with vectors of so many numbers may be in memory at once."""
    if memory is None:
        if not queries.on_disk:
            return len(queries)
        memory = _MEMORY_FROM_DISK
    return max(BLOCK_ROWS, memory // (dim * _BYTES_PER_NUMBER))


def _numpy(counts: Tensor) -> NDArray[np.int64]:
    values: NDArray[np.int64] = counts.cpu().numpy()
    return values


def _complete_ranks(search: Search, previous_ranks: Ranks, ks: frozenset[int] | None, memory: int | None) -> Ranks:
    """Known ranks, with the requested open counts made exact."""
    open_ = np.flatnonzero(previous_ranks.open(ks))
    if not len(open_):
        return previous_ranks
    old = previous_ranks
    counts = old.closer, old.closer_high, old.tied_negatives, old.tied_positives
    merged = np.stack(counts).astype(np.int64)
    size = rows_at_once(search.queries, search.form.dim, memory)
    in_order = search.gallery.on_disk or size < len(search.gallery)
    for start in range(0, len(open_), size):
        rows = open_[start : start + size]
        some = Items(_take_rows(search.queries, rows), search.queries.labels[rows])
        subsearch = replace(search, queries=some, relevance=search.relevance[rows], in_order=in_order)
        merged[:, rows] = _numpy(subsearch.counts(None))
    return _ranks(merged, previous_ranks.zeros)


def _take_rows(items: Items, rows: NDArray[np.intp]) -> Tensor:
    """Some rows, in ascending order."""
    import torch

    if not items.on_disk:
        return items.take(rows)
    starts = range(0, len(items), BLOCK_ROWS)
    bounds = np.searchsorted(rows, [*starts, len(items)])
    blocks = zip(starts, items.blocks(), bounds[:-1], bounds[1:], strict=True)
    return torch.cat([block[rows[begin:end] - start] for start, block, begin, end in blocks])


def _ranks(counts: NDArray[np.int64], zeros: int) -> Ranks:
    closer, closer_high, tied_negatives, tied_positives = counts.astype(np.int32)
    return Ranks(closer, closer_high, tied_negatives, tied_positives, zeros)


def retrieval(  # noqa: PLR0913 - as nearest_positive_ranks
    features: NDArray[Any] | Tensor | Table,
    labels: ArrayLike | Tensor,
    *,
    gallery: NDArray[Any] | Tensor | Table | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    rules: SearchRules | None = None,
) -> Retrieval:
    """Make a `Retrieval`; arguments and errors of `nearest_positive_ranks`, but values are not checked."""
    count = partial(
        nearest_positive_ranks,
        features,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        similarity=similarity,
        ids=ids,
        gallery_ids=gallery_ids,
        resolve="all",
        rules=rules,
    )
    return Retrieval(
        features=features,
        labels=label_array(labels, len(features), "features"),
        gallery=gallery,
        gallery_labels=None if gallery is None else label_array(gallery_labels, len(gallery), "gallery"),
        similarity=similarity,
        own=find_self_indices(len(features), ids, None if gallery is None else len(gallery), gallery_ids),
        count=count,
        rules=rules,
    )


def recall_at_k(  # noqa: PLR0913 - the public signature
    features: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    ks: Iterable[int] = (1, 2, 4, 8),
    *,
    gallery: ArrayLike | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    ties: Ties = "expected",
    lone: Lone = "miss",
    rules: SearchRules | None = None,
) -> dict[int, float]:
    """Share of the queries that have an item of their class among their K nearest, themselves excluded.

    Without a gallery the queries are searched among themselves. Four images at 0, 10, 15 and 90 degrees have their
    nearest at 10, 15, 10 and 15 degrees:

    >>> import numpy as np
    >>> from layerprobe import recall_at_k
    >>> angles = np.radians([0, 10, 15, 90])
    >>> features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    >>> recall_at_k(features, labels=[0, 0, 1, 1], ks=(1, 2))
    {1: 0.5, 2: 0.75}

    Args:
        features: (Q, D) the queries: an array, or a tensor on any device, of any real type; for hamming uint8 of packed
            bits, 8 dimensions a byte.
        labels: (Q,) integers, the class of each.
        ks: each at least 1 and below the gallery's size; that is Q without a gallery, so that K = Q - 1 takes in all
            but the query.
        gallery: (G, D) the searched items, likewise; None for the queries themselves.
        gallery_labels: (G,) integers; needed with a gallery.
        similarity: cosine, dot (higher is closer), euclidean, or hamming (bits that differ).
        ids: Q names. An item of the gallery with the query's name is the query, and no neighbour of it; without names
            nothing in a gallery is excluded.
        gallery_ids: G different names, used with `ids`.
        ties: expected value under a random order of tied items, or positives first (optimistic) or last (pessimistic).
        lone: queries without another item of their class are a miss, excluded from the mean, or an error.
        rules: which items are right, or taken out, where the class does not say; None: the classes alone.

    Returns:
        K -> fraction in [0, 1], in the order of `ks`.

    Raises:
        NotFiniteError: a row holds NaN or Inf.
        DataError: lone queries where they are an error, or nothing else where they are excluded.
        ValueError: a K out of range; shapes, labels, ids or rules that do not fit together; or an unknown similarity.
    """
    ks = [integer_k(k) for k in ks]
    size = len(features if gallery is None else gallery)  # type: ignore[arg-type] # whatever has rows has a length
    for k in ks:
        if not 1 <= k < size:
            raise ValueError(f"K = {k}: must be at least 1 and below the gallery's size, {size}")
    ranks = nearest_positive_ranks(
        features,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        similarity=similarity,
        ids=ids,
        gallery_ids=gallery_ids,
        resolve=RecallAlone(frozenset(ks)),
        rules=rules,
    )
    return {k: ranks.recall(k, ties, lone) for k in ks}
