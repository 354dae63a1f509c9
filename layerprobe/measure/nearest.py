"""The items nearest to queries, and which of them are right."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features
from layerprobe.ranking.items import BLOCK_ROWS, cuts, find_self_indices
from layerprobe.ranking.neighbours import nearest_neighbours
from layerprobe.ranking.relevance import relevance_of
from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import SearchRules


def nearest_items(
    queries: Features, gallery: Features | None, similarity: str, k: int, rules: SearchRules | None
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """The `k` nearest items of every query, an item of the query's id left out; ties as in `nearest_neighbours`.

    Args:
        gallery: the searched items, among which the queries may be; None for the queries themselves.
        rules: of the queries.

    Returns:
        (Q, K) rows of the items, -1 at the end where the rules leave a query fewer; their similarities, -inf there; and
        whether each is right, False there. K is `k`, or the number of items less 1.

    Raises:
        DataError: one item is searched.
    """
    gallery_ids, gallery_labels = (None, None) if gallery is None else (gallery.ids, gallery.labels)
    count = len(gallery_ids or queries.ids)
    if count < 2:
        raise DataError(
            "one item is searched, in which no query has a nearest other one", fix="Give at least two images"
        )
    nearest = nearest_neighbours(
        torch.as_tensor(queries.values),
        min(k, count - 1),
        None if gallery is None else torch.as_tensor(gallery.values),
        similarity=similarity,  # type: ignore[arg-type] # text from a file, checked there
        ids=queries.ids,
        gallery_ids=gallery_ids,
        rules=rules,
        labels=queries.labels,
        gallery_labels=gallery_labels,
    )
    size = None if gallery is None else len(gallery.ids)
    self_indices = find_self_indices(len(queries.ids), queries.ids, size, gallery_ids)
    relevance = relevance_of(queries.labels, gallery_labels, self_indices, rules)
    right = np.zeros(nearest.indices.shape, np.bool_)
    for rows in cuts(len(queries.ids), BLOCK_ROWS):
        is_right = relevance[rows].right(torch.device("cpu")).numpy()
        right[rows] = np.take_along_axis(is_right, np.maximum(nearest.indices[rows], 0), 1)
    return nearest.indices, nearest.similarities, right & (nearest.indices >= 0)
