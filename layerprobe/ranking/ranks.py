"""Rank of the nearest same-class item for every query, exact in float64.

Conventions: the query itself is excluded by its index, never by its position in a list or by its similarity, so that
exact duplicates of it stay in the gallery. Similarities that differ by at most `TIE_WINDOW`, relative to the lengths
of the vectors, are tied: equal vectors must not be ordered by the rounding of a matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.ranking.vectors import Comparable, Similarity, comparable, own_items, similarity_blocks, tensor_of
from layerprobe.retrieval import Ranks, Retrieval

if TYPE_CHECKING:
    from torch import Tensor


def nearest_positive_ranks(  # noqa: PLR0913 - the public signature; a gallery's parts mean nothing in another call
    features: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    gallery: ArrayLike | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
) -> Ranks:
    """Count, for every query, the items closer than its nearest one of the same class.

    Without a gallery the queries are searched among themselves, each without itself. In a gallery nothing is excluded,
    unless `ids` and `gallery_ids` are given: then an item with the query's id is the query and no neighbour of it.
    Memory: up to four copies of the features in float64 and about 80 MiB.

    Args:
        features: (Q, D) array or tensor on any device, any real type, computed in float64.
        labels: (Q,) integers, the class of each.
        gallery: (G, D) what is searched; None for the queries themselves.
        gallery_labels: (G,) integers.
        similarity: cosine (a zero vector has 0 with everything), dot (higher is closer) or euclidean (squared
            distance). Tied within 1e-12 for cosine; for dot within 1e-12 |q| max|g|; for euclidean within
            1e-12 (|q| + max|g|)^2, lengths from the gallery's mean.
        ids: Q names, used with `gallery_ids` only.
        gallery_ids: G different names.

    Returns:
        Counts of Q queries in their order, all resolved.

    Raises:
        NumericError: a row holds NaN or Inf; with the number of rows.
        ValueError: shapes, labels or ids that do not fit together, or an unknown similarity.
    """
    if gallery is None and gallery_labels is not None:
        raise ValueError("gallery_labels need a gallery")
    if gallery is not None and gallery_labels is None:
        raise ValueError("a gallery needs gallery_labels")
    items = comparable(features, gallery, similarity)
    classes = label_array(labels, len(items.queries), "features")
    searched = classes
    if gallery_labels is not None:
        searched = label_array(gallery_labels, len(items.gallery), "gallery")
    own = own_items(len(classes), ids, None if gallery is None else len(items.gallery), gallery_ids)
    sets = (features,) if gallery is None else (features, gallery)
    zeros = 0 if similarity == "hamming" else sum(int((tensor_of(x) == 0).all(1).sum()) for x in sets)
    return _count(items, (classes, searched), own, zeros)


def retrieval(  # noqa: PLR0913 - as nearest_positive_ranks
    features: NDArray[Any] | Tensor,
    labels: ArrayLike | Tensor,
    *,
    gallery: NDArray[Any] | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
) -> Retrieval:
    """What a metric takes; arguments and errors as for `nearest_positive_ranks`, the features' values unchecked."""
    count = partial(
        nearest_positive_ranks,
        features,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        similarity=similarity,
        ids=ids,
        gallery_ids=gallery_ids,
    )
    return Retrieval(
        features=features,
        labels=label_array(labels, len(features), "features"),
        gallery=gallery,
        gallery_labels=None if gallery is None else label_array(gallery_labels, len(gallery), "gallery"),
        similarity=similarity,
        own=own_items(len(features), ids, None if gallery is None else len(gallery), gallery_ids),
        count=count,
    )


def label_array(labels: ArrayLike | Tensor | None, count: int, name: str) -> NDArray[np.int64]:
    """(count,) int64 labels.

    Raises:
        ValueError: not that many, or no integers.
    """
    if labels is None:
        raise ValueError(f"{name} needs labels")
    classes = tensor_of(labels).cpu().numpy()
    if classes.dtype.kind not in "iub":
        # Beyond 2**24 classes float32 labels collide in silence.
        raise ValueError(f"labels of {name}: expected integers, got {classes.dtype}")
    if classes.shape != (count,):
        raise ValueError(f"labels of {name}: expected ({count},), got {classes.shape}")
    return classes.astype(np.int64)


def _count(
    items: Comparable, labels: tuple[NDArray[np.int64], NDArray[np.int64]], own: NDArray[np.intp], zeros: int
) -> Ranks:
    import torch

    device = items.windows.device
    classes, searched = (torch.from_numpy(values).to(device) for values in labels)
    counts = np.empty((3, len(classes)), np.int32)  # closer, tied negatives, tied positives
    for block, similarities in similarity_blocks(items, own):
        same = classes[block, None] == searched
        positives = similarities.masked_fill(~same, -torch.inf)
        nearest = positives.amax(1, keepdim=True)
        negatives = similarities.masked_fill_(same, -torch.inf)
        window = items.windows[block, None]
        closer = (negatives > nearest + window).sum(1)
        # The nearest positive of a lone query is at -inf, where the masked items are.
        paired = nearest[:, 0] > -torch.inf
        tied_negatives = ((negatives >= nearest - window).sum(1) - closer) * paired
        tied_positives = (positives >= nearest - window).sum(1) * paired
        counts[:, block] = torch.stack([closer, tied_negatives, tied_positives]).cpu().numpy()
    return Ranks(counts[0], counts[0].copy(), counts[1], counts[2], zeros)
