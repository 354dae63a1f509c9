"""Which images have an identical one among those that they are searched in: by the hashes of their contents."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import Dataset
from layerprobe.ranking.items import find_self_indices
from layerprobe.ranking.relevance import Pairs, relevance_of
from layerprobe.values.retrieval import SearchRules

_ROWS = 64  # hashed at once
_PAIRS = 2**22  # that are looked at at once


def identical_images(dataset: Dataset, split: str) -> NDArray[np.bool_] | None:
    """(Q,) whether each image of a split has one of the same content in its results; None where none is hashed."""
    (queries, gallery), rules = dataset.search_of(split), dataset.search_rules.get(split)
    if queries.digests is None or (gallery is not None and gallery.digests is None):
        return None
    if gallery is None or gallery.digests is None:
        return identical_rows(queries.digests, queries.labels, rules)
    contents = _number_contents(np.concatenate([queries.digests, gallery.digests]))
    self_items = find_self_indices(len(queries), queries.ids, len(gallery), gallery.ids)
    of_queries, of_gallery = contents[: len(queries)], contents[len(queries) :]
    return _find_identical(of_queries, of_gallery, queries.labels, gallery.labels, self_items, rules)


def row_contents(*arrays: NDArray[Any]) -> NDArray[np.int64]:
    """(N, 2) a hash of each row of some arrays (N, ...), equal for rows of equal bytes in all of them.

    Sums of products modulo 2^64 take a twentieth of the time of a cryptographic hash, which would slow extraction on a
    GPU. Different rows have equal hashes with a probability of about 2^-120.
    """
    hashes = []
    for array in arrays:
        rows = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8)))
        weights = np.random.default_rng(0).integers(0, 2**63, (2, rows.shape[1] // 8), np.uint64) * 2 + 1
        for start in range(0, len(rows), _ROWS):
            words = rows[start : start + _ROWS].view(np.uint64)
            words = words ^ (words >> np.uint64(29))  # a sign bit alone is a multiple of 2^63, which two of cancel out
            hashes.append(np.stack([(words * row_weights).sum(1) for row_weights in weights], axis=1))
    parts = np.concatenate(hashes).reshape(len(arrays), -1, 2)
    return (parts[0] if len(arrays) == 1 else row_contents(parts.swapaxes(0, 1))).view(np.int64)


def identical_rows(
    contents: NDArray[np.int64], labels: NDArray[np.int64], rules: SearchRules | None = None
) -> NDArray[np.bool_]:
    """(N,) whether each row has another of its content in its results, where all are searched among themselves.

    Args:
        contents: (N, M) hashes of each row.
    """
    numbers = _number_contents(contents)
    return _find_identical(numbers, numbers, labels, None, np.arange(len(numbers)), rules)


def _number_contents(contents: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) a number for each content, equal for equal hashes (N, M)."""
    _, numbers = np.unique(contents, axis=0, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64)


def _find_identical(  # noqa: PLR0913 - the contents and the classes of both sides, and what is taken out
    contents: NDArray[np.int64],
    searched: NDArray[np.int64],
    labels: NDArray[np.int64],
    gallery_labels: NDArray[np.int64] | None,
    self_items: NDArray[np.intp],
    rules: SearchRules | None,
) -> NDArray[np.bool_]:
    order = np.argsort(searched, kind="stable")
    starts = np.searchsorted(searched[order], contents, "left")
    counts = np.searchsorted(searched[order], contents, "right") - starts
    itself = (self_items >= 0) & (searched[self_items] == contents)
    identical: NDArray[np.bool_] = counts > itself
    if rules is None or not identical.any():
        return identical
    relevance = relevance_of(labels, gallery_labels, self_items, rules)
    ignored = relevance.ignored.queries * len(searched) + relevance.ignored.items
    rows = np.flatnonzero(identical)
    for some in np.split(rows, np.flatnonzero(np.diff(np.cumsum(counts[rows]) // _PAIRS)) + 1):
        of_row = np.repeat(some, counts[some])
        places = np.arange(len(of_row)) + np.repeat(starts[some] - np.cumsum(counts[some]) + counts[some], counts[some])
        pairs = Pairs(of_row, order[places])
        in_results = ~relevance.grouped(pairs) & (pairs.items != self_items[pairs.queries])
        in_results &= ~np.isin(pairs.queries * len(searched) + pairs.items, ignored)
        identical[some] = np.isin(some, pairs.queries[in_results])
    return identical
