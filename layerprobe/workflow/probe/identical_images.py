"""Which images have an identical one among those that they are searched in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import Dataset
from layerprobe.ranking.items import own_items
from layerprobe.ranking.relevance import Pairs, relevance_of
from layerprobe.values.retrieval import SearchRules

_PAIRS = 2**22  # that are looked at at once


def identical_images(dataset: Dataset, split: str) -> NDArray[np.bool_] | None:
    """(Q,) whether each image of a split has one of the same content in its results; None where none is hashed."""
    queries, gallery = dataset.splits[split], dataset.splits[dataset.search_in.get(split, split)]
    if queries.digests is None or gallery.digests is None:
        return None
    rules, itself = dataset.search_rules.get(split), gallery is queries
    rows = queries.digests if itself else np.concatenate([queries.digests, gallery.digests])
    _, contents = np.unique(rows, axis=0, return_inverse=True)
    contents = contents.reshape(-1).astype(np.int64)
    if itself:
        return identical_rows(contents, queries.labels, rules)
    own = own_items(len(queries), queries.ids, len(gallery), gallery.ids)
    of_queries, of_gallery = contents[: len(queries)], contents[len(queries) :]
    return _identical(of_queries, of_gallery, queries.labels, gallery.labels, own, rules)


def identical_rows(
    contents: NDArray[np.int64], labels: NDArray[np.int64], rules: SearchRules | None = None
) -> NDArray[np.bool_]:
    """(N,) whether each row has another of its content in its results, where all are searched among themselves."""
    return _identical(contents, contents, labels, None, np.arange(len(contents)), rules)


def _identical(  # noqa: PLR0913 - the contents and the classes of both sides, and what is taken out
    contents: NDArray[np.int64],
    searched: NDArray[np.int64],
    labels: NDArray[np.int64],
    gallery_labels: NDArray[np.int64] | None,
    own: NDArray[np.intp],
    rules: SearchRules | None,
) -> NDArray[np.bool_]:
    order = np.argsort(searched, kind="stable")
    first = np.searchsorted(searched[order], contents, "left")
    counts = np.searchsorted(searched[order], contents, "right") - first
    itself = (own >= 0) & (searched[own] == contents)
    identical: NDArray[np.bool_] = counts > itself
    if rules is None or not identical.any():
        return identical
    relevance = relevance_of(labels, gallery_labels, own, rules)
    ignored = relevance.ignored.queries * len(searched) + relevance.ignored.items
    rows = np.flatnonzero(identical)
    for some in np.split(rows, np.flatnonzero(np.diff(np.cumsum(counts[rows]) // _PAIRS)) + 1):
        of_row = np.repeat(some, counts[some])
        places = np.arange(len(of_row)) + np.repeat(first[some] - np.cumsum(counts[some]) + counts[some], counts[some])
        pairs = Pairs(of_row, order[places])
        kept = ~relevance.grouped(pairs) & (pairs.items != own[pairs.queries])
        kept &= ~np.isin(pairs.queries * len(searched) + pairs.items, ignored)
        identical[some] = np.isin(some, pairs.queries[kept])
    return identical
