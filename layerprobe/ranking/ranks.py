"""Rank of the nearest same-class item for every query, exact in float64.

Conventions: the query itself is excluded by its index, never by its position in a list or by its similarity, so that
exact duplicates of it stay in the gallery. Similarities that differ by at most `TIE_WINDOW`, relative to the lengths
of the vectors, are tied: equal vectors must not be ordered by the rounding of a matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.errors import NumericError
from layerprobe.retrieval import Ranks

if TYPE_CHECKING:
    from torch import Tensor

Similarity = Literal["cosine", "dot", "euclidean"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot", "euclidean")

TIE_WINDOW = 1e-12
# Similarities held at once: 8 MiB in float64; with the masks and copies beside it about 80 MiB.
_BLOCK = 2**20


@dataclass(frozen=True, eq=False)
class _Items:
    """Vectors and labels of queries or of a gallery, checked, on one device."""

    vectors: Tensor  # (N, D) float64
    labels: Tensor  # (N,) int64

    def __len__(self) -> int:
        return len(self.labels)


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
    if similarity not in SIMILARITIES:
        raise ValueError(f"unknown similarity {similarity!r}: {', '.join(SIMILARITIES)}")
    queries = _items(features, labels, "features")
    if gallery is None:
        if gallery_labels is not None or gallery_ids is not None:
            raise ValueError("gallery_labels and gallery_ids need a gallery")
        searched, own = queries, np.arange(len(queries))
    else:
        if gallery_labels is None:
            raise ValueError("a gallery needs gallery_labels")
        searched = _items(gallery, gallery_labels, "gallery")
        own = _own_items((len(queries), ids), (len(searched), gallery_ids))
    _require_comparable(queries, searched)
    zeros = sum(int((items.vectors == 0).all(1).sum()) for items in _distinct(queries, searched))
    queries, searched, windows = _prepared(queries, searched, similarity)
    return _count(queries, searched, windows, own, zeros=zeros)


def _items(features: ArrayLike | Tensor, labels: ArrayLike | Tensor, name: str) -> _Items:
    vectors = _tensor(features)
    if vectors.dim() != 2 or 0 in vectors.shape:
        raise ValueError(f"{name}: expected (N, D), neither 0, got {tuple(vectors.shape)}")
    classes = _tensor(labels)
    if classes.is_floating_point() or classes.is_complex():
        # Beyond 2**24 classes float32 labels collide in silence.
        raise ValueError(f"labels of {name}: expected integers, got {classes.dtype}")
    if classes.shape != vectors.shape[:1]:
        raise ValueError(f"labels of {name}: expected ({len(vectors)},), got {tuple(classes.shape)}")
    return _Items(vectors.double(), classes.to(vectors.device).long())


def _tensor(values: ArrayLike | Tensor) -> Tensor:
    """On the device where it is, unless that has no float64."""
    import torch

    if isinstance(values, torch.Tensor):
        return values.detach().cpu() if values.device.type == "mps" else values.detach()
    # A copy: torch warns of arrays that are read-only, as those of a memory map are.
    return torch.from_numpy(np.array(values))


def _distinct(queries: _Items, searched: _Items) -> tuple[_Items, ...]:
    return (queries,) if searched is queries else (queries, searched)


def _require_comparable(queries: _Items, searched: _Items) -> None:
    if queries.vectors.shape[1] != searched.vectors.shape[1]:
        raise ValueError(f"features have {queries.vectors.shape[1]} dimensions, gallery {searched.vectors.shape[1]}")
    if queries.vectors.device != searched.vectors.device:
        raise ValueError(f"features are on {queries.vectors.device}, gallery on {searched.vectors.device}")
    sets = _distinct(queries, searched)
    bad = sum(int((~items.vectors.isfinite()).any(1).sum()) for items in sets)
    if bad:
        raise NumericError(f"{bad} of {sum(map(len, sets))} feature rows hold NaN or Inf")


def _own_items(
    queries: tuple[int, Sequence[str] | None], gallery: tuple[int, Sequence[str] | None]
) -> NDArray[np.intp]:
    """(Q,) index in the gallery of the item that is the query, -1 where none is."""
    (num_queries, ids), (num_gallery, gallery_ids) = queries, gallery
    if ids is None and gallery_ids is None:
        return np.full(num_queries, -1)
    if ids is None or gallery_ids is None:
        raise ValueError("ids and gallery_ids need each other")
    place = {name: i for i, name in enumerate(gallery_ids)}
    if len(ids) != num_queries or len(gallery_ids) != num_gallery or len(place) != num_gallery:
        raise ValueError(
            f"expected {num_queries} ids and {num_gallery} different gallery_ids,"
            f" got {len(ids)} and {len(gallery_ids)}, {len(place)} of them different"
        )
    return np.array([place.get(name, -1) for name in ids])


def _prepared(queries: _Items, searched: _Items, similarity: Similarity) -> tuple[_Items, _Items, Tensor]:
    """Queries and gallery whose products order the neighbours, and each query's tie window (Q,)."""
    import torch

    if similarity == "cosine":
        unit = _Items(_unit(searched.vectors), searched.labels)
        directions = unit if searched is queries else _Items(_unit(queries.vectors), queries.labels)
        return directions, unit, torch.full_like(directions.vectors[:, 0], TIE_WINDOW)
    # A power of two rounds nothing, and lengths beyond the range of their own squares come back into it.
    peak = max(float(items.vectors.abs().max()) for items in _distinct(queries, searched))
    scale = math.ldexp(1.0, -math.frexp(peak)[1])
    first, second = queries.vectors * scale, searched.vectors * scale
    if similarity == "dot":
        windows = TIE_WINDOW * first.norm(dim=1) * second.norm(dim=1).max()
    else:
        # Distances do not change with the origin, their rounding does: a common offset would drown them.
        centre = second.mean(0)
        first, second = first - centre, second - centre
        lengths = second.norm(dim=1)
        # |q - g|^2 = |q|^2 - 2 (q.g - |g|^2 / 2), and |q|^2 orders nothing.
        windows = TIE_WINDOW / 2 * (first.norm(dim=1) + lengths.max()).square()
        first = torch.cat([first, torch.ones_like(lengths[:1]).expand(len(first), 1)], 1)
        second = torch.cat([second, -lengths.square()[:, None] / 2], 1)
    return _Items(first, queries.labels), _Items(second, searched.labels), windows


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1; zero vectors stay zero."""
    # Divided by the largest entry first: the squares of very short or long vectors leave float64's range.
    peaks = vectors.abs().amax(1, keepdim=True)
    scaled = vectors / peaks.masked_fill(peaks == 0, 1)
    lengths = scaled.norm(dim=1, keepdim=True)
    unit: Tensor = scaled / lengths.masked_fill(lengths == 0, 1)
    return unit


def _count(queries: _Items, searched: _Items, windows: Tensor, own: NDArray[np.intp], *, zeros: int) -> Ranks:
    import torch

    columns = torch.from_numpy(own).to(windows.device)
    counts = np.empty((3, len(queries)), np.int32)  # closer, tied negatives, tied positives
    rows = max(1, _BLOCK // len(searched))
    gallery = searched.vectors.T
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        similarities = queries.vectors[block] @ gallery
        same = queries.labels[block, None] == searched.labels
        found = torch.nonzero(columns[block] >= 0)[:, 0]
        similarities[found, columns[block][found]] = -math.inf
        positives = similarities.masked_fill(~same, -math.inf)
        nearest = positives.amax(1, keepdim=True)
        negatives = similarities.masked_fill_(same, -math.inf)
        low, high = nearest - windows[block, None], nearest + windows[block, None]
        closer = (negatives > high).sum(1)
        # The nearest positive of a lone query is at -inf, where the masked items are.
        paired = nearest[:, 0] > -math.inf
        tied_negatives = ((negatives >= low).sum(1) - closer) * paired
        tied_positives = (positives >= low).sum(1) * paired
        counts[:, block] = torch.stack([closer, tied_negatives, tied_positives]).cpu().numpy()
    return Ranks(counts[0], counts[0].copy(), counts[1], counts[2], zeros)
