"""Recall@K of features, every K from one count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from layerprobe.ranking.ranks import nearest_positive_ranks, whole_k
from layerprobe.retrieval import Lone, Similarity, Ties

if TYPE_CHECKING:
    from torch import Tensor


def recall_at_k(  # noqa: PLR0913 - the public signature
    features: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    ks: Iterable[int],
    *,
    gallery: ArrayLike | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    ties: Ties = "expected",
    lone: Lone = "miss",
) -> dict[int, float]:
    """Share of the queries that have an item of their class among their K nearest, themselves excluded.

    Args:
        features: as for `nearest_positive_ranks`.
        labels: as there.
        ks: each at least 1 and below the gallery's size; that is Q without a gallery, so that K = Q - 1 takes in all
            but the query.
        gallery: as there.
        gallery_labels: as there.
        similarity: as there.
        ids: as there.
        gallery_ids: as there.
        ties: expected value under a random order of tied items, or positives first (optimistic) or last (pessimistic).
        lone: queries without another item of their class are a miss, excluded from the mean, or an error.

    Returns:
        K -> fraction in [0, 1], in the order of `ks`.

    Raises:
        NotFiniteError: a row holds NaN or Inf.
        DataError: lone queries where they are an error, or nothing else where they are excluded.
        ValueError: a K out of range, or as for `nearest_positive_ranks`.
    """
    ks = [whole_k(k) for k in ks]
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
        resolve=ks,
    )
    return {k: ranks.recall(k, ties, lone) for k in ks}
