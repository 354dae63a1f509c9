"""Recall@K: its name and its chance level.

Vo & Hays 2019, section 4, for K = 1: the percentage of test images whose first nearest neighbour is of the same class.
Here it is a fraction, for any K, with the query itself excluded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.ranking.items import own_items
from layerprobe.ranking.relevance import relevance_of
from layerprobe.retrieval import Ranks, SearchRules


def recall_name(k: int) -> str:
    """`R@1`, as tables and files have it."""
    return f"R@{k}"


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
        gallery_labels: (G,) classes of what is searched; None for the other queries.
        ids: Q names, used with `gallery_ids` only.
        gallery_ids: G different names; a query does not find the item of its name. None: no query is among them.
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
    itself = gallery_labels is None
    own = own_items(len(queries), None if itself else ids, None if itself else len(gallery), gallery_ids)
    relevance = relevance_of(queries, None if itself else gallery, own, rules)
    positives, negatives = relevance.counts()
    none = np.zeros(len(queries), np.int32)
    # In a random order everything is tied.
    return Ranks(none, none, negatives.astype(np.int32), positives.astype(np.int32)).recall(k)
