"""Recall@K of features, every K from one count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from layerprobe.ranking.ranks import RecallAlone, integer_k, nearest_positive_ranks
from layerprobe.values.retrieval import Lone, SearchRules, Similarity, Ties

if TYPE_CHECKING:
    from torch import Tensor


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
