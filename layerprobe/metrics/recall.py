"""Recall@K: its name and its chance level.

Vo & Hays 2019, section 4, for K = 1: the percentage of test images whose first nearest neighbour is of the same class.
Here it is a fraction, for any K, with the query itself excluded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.ranking.items import own_items
from layerprobe.ranking.relevance import relevance_of
from layerprobe.retrieval import Ranks, SearchRules


def recall_name(k: int) -> str:
    """`R@1`, as tables and files have it."""
    return f"R@{k}"


def chance_recall(
    labels: ArrayLike, k: int, gallery_labels: ArrayLike | None = None, *, rules: SearchRules | None = None
) -> float:
    """Recall@K that a random order of the gallery is expected to reach, exactly.

    A query with p right ones among the T items that it may find misses with probability C(T - p, K) / C(T, K); a lone
    query (p = 0) always.

    Args:
        labels: (Q,) class of each query.
        k: at least 1 and below the gallery's size (Q without a gallery).
        gallery_labels: (G,) classes of what is searched, the queries not among it; None for the other queries.
        rules: which items are right, or taken out, where the class does not say; None: the classes alone.

    Returns:
        A fraction in [0, 1].

    Raises:
        ValueError: k out of range, labels that are not a vector, or rules that do not fit them.
    """
    queries = np.asarray(labels)
    gallery = queries if gallery_labels is None else np.asarray(gallery_labels)
    if queries.ndim != 1 or gallery.ndim != 1:
        raise ValueError(f"labels: expected vectors, got {queries.shape} and {gallery.shape}")
    if not 1 <= k < len(gallery):
        raise ValueError(f"K = {k}: must be at least 1 and below the gallery's size, {len(gallery)}")
    own = own_items(len(queries), None, None if gallery_labels is None else len(gallery), None)
    relevance = relevance_of(queries, None if gallery_labels is None else gallery, own, rules)
    positives, negatives = relevance.counts()
    none = np.zeros(len(queries), np.int32)
    # In a random order everything is tied.
    return Ranks(none, none, negatives.astype(np.int32), positives.astype(np.int32)).recall(k)
