"""Recall@K: its name and its chance level.

Vo & Hays 2019, section 4, for K = 1: the percentage of test images whose first nearest neighbour is of the same class.
Here it is a fraction, for any K, with the query itself excluded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.ranking.items import find_self_indices
from layerprobe.ranking.relevance import relevance_of
from layerprobe.values.retrieval import Ranks, SearchRules


def chance_recall(  # noqa: PLR0913 - what is searched, and by which rules
    labels: ArrayLike,
    k: int,
    gallery_labels: ArrayLike | None = None,
    *,
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    rules: SearchRules | None = None,
) -> float:
    """Recall@K that a random order of the gallery is expected to reach, exactly.

    A query with p right ones among the T items that it may find misses with probability C(T - p, K) / C(T, K); a lone
    query (p = 0) always.

    Args:
        labels: (Q,) class of each query.
        k: at least 1 and below the gallery's size (Q without a gallery).
        gallery_labels: (G,) classes of the searched items; None for the other queries.
        ids: Q names, used with `gallery_ids` only.
        gallery_ids: G different names; a query does not find the item of its name. None: no query is among them.
        rules: which items are right, or taken out, where the class does not say; None: the classes alone.

    Returns:
        A fraction in [0, 1].

    Raises:
        ValueError: k out of range, labels that are not a vector, or rules that do not fit them.
    """
    positives, negatives = positives_and_negatives(
        labels, gallery_labels, ids=ids, gallery_ids=gallery_ids, rules=rules
    )
    size = np.size(labels if gallery_labels is None else gallery_labels)
    if not 1 <= k < size:
        raise ValueError(f"K = {k}: must be at least 1 and below the gallery's size, {size}")
    none = np.zeros(len(positives), np.int32)
    # In a random order everything is tied.
    return Ranks(none, none, negatives.astype(np.int32), positives.astype(np.int32)).recall(k)


def positives_and_negatives(
    labels: ArrayLike,
    gallery_labels: ArrayLike | None = None,
    *,
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    rules: SearchRules | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many items each query may find that are right, and how many that are wrong.

    Args:
        labels: (Q,) class of each query.
        gallery_labels: (G,) classes of the searched items; None for the other queries.
        ids: see `chance_recall`, like the others.
        gallery_ids: G different names.
        rules: which items are right, or taken out.

    Returns:
        (Q,) and (Q,); neither counts the query itself, nor excluded items.

    Raises:
        ValueError: labels that are not a vector, or rules that do not fit them.
    """
    queries = np.asarray(labels)
    gallery = None if gallery_labels is None else np.asarray(gallery_labels)
    for vector in (queries, gallery):
        if vector is not None and vector.ndim != 1:
            raise ValueError(f"labels: expected vectors, got {vector.shape}")
    if gallery is None:
        self_indices = find_self_indices(len(queries), None, None, None)
    else:
        self_indices = find_self_indices(len(queries), ids, len(gallery), gallery_ids)
    return relevance_of(queries, gallery, self_indices, rules).counts()
