"""Features made comparable: checked, and brought into the form whose products order the neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.errors import NumericError

if TYPE_CHECKING:
    from torch import Tensor

Similarity = Literal["cosine", "dot", "euclidean", "hamming"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot", "euclidean", "hamming")

# Similarities of vectors of length 1 that differ by no more are tied: equal vectors must not be ordered by the rounding
# of a matrix product.
TIE_WINDOW = 1e-12
# Similarities held at once: 8 MiB in float64.
_BLOCK = 2**20


@dataclass(frozen=True, eq=False)
class Comparable:
    """Queries and gallery in float64 whose products order the neighbours: a higher one is closer.

    Args:
        queries: (Q, D') float64.
        gallery: (G, D') float64; the queries themselves where they are searched among themselves.
        windows: (Q,) float64: products that differ by no more are tied.
    """

    queries: Tensor
    gallery: Tensor
    windows: Tensor


def tensor_of(values: ArrayLike | Tensor) -> Tensor:
    """On the device where it is, unless that has no float64."""
    import torch

    if isinstance(values, torch.Tensor):
        return values.detach().cpu() if values.device.type == "mps" else values.detach()
    # A copy: torch warns of arrays that are read-only, as those of a memory map are.
    return torch.from_numpy(np.array(values))


def comparable(
    features: ArrayLike | Tensor, gallery: ArrayLike | Tensor | None = None, similarity: Similarity = "cosine"
) -> Comparable:
    """Check features and prepare them whole, in float64.

    Args:
        features: (Q, D), any real type; for hamming uint8 of packed bits, 8 dimensions a byte.
        gallery: (G, D) what is searched; None for the queries themselves.
        similarity: cosine (a zero vector has 0 with everything), dot (higher is closer), euclidean (squared distance)
            or hamming (bits that differ). Tied within 1e-12 for cosine; for dot within 1e-12 |q| max|g|; for euclidean
            within 1e-12 (|q| + max|g|)^2, lengths from the gallery's mean; for hamming where equal.

    Raises:
        NumericError: a row holds NaN or Inf; with the number of rows.
        ValueError: shapes or types that do not fit together, or an unknown similarity.
    """
    import torch

    if similarity not in SIMILARITIES:
        raise ValueError(f"unknown similarity {similarity!r}: {', '.join(SIMILARITIES)}")
    first = _matrix(features, "features", similarity)
    second = first if gallery is None else _matrix(gallery, "gallery", similarity)
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"features have {first.shape[1]} dimensions, gallery {second.shape[1]}")
    if first.device != second.device:
        raise ValueError(f"features are on {first.device}, gallery on {second.device}")
    sets = (first,) if second is first else (first, second)
    bad = sum(int((~items.isfinite()).any(1).sum()) for items in sets)
    if bad:
        raise NumericError(f"{bad} of {sum(map(len, sets))} feature rows hold NaN or Inf")
    if similarity == "hamming":
        # Bits as -1 and 1: their product falls by 2 with each bit that differs.
        return Comparable(first, second, torch.full_like(first[:, 0], 0.5))
    if similarity == "cosine":
        unit = _unit(second)
        queries = unit if second is first else _unit(first)
        return Comparable(queries, unit, torch.full_like(queries[:, 0], TIE_WINDOW))
    return _scaled(first, second, similarity)


def _matrix(features: ArrayLike | Tensor, name: str, similarity: Similarity) -> Tensor:
    import torch

    vectors = tensor_of(features)
    if vectors.dim() != 2 or 0 in vectors.shape:
        raise ValueError(f"{name}: expected (N, D), neither 0, got {tuple(vectors.shape)}")
    if similarity != "hamming":
        return vectors.double()
    if vectors.dtype != torch.uint8:
        raise ValueError(f"{name}: hamming needs packed bits of uint8, got {vectors.dtype}")
    return signs(vectors).double()


def signs(packed: Tensor) -> Tensor:
    """(N, B) uint8 of packed bits as (N, 8 B) float32 of -1 and 1, in the bit order of numpy.packbits."""
    import torch

    bits = packed[:, :, None] >> torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device) & 1
    return bits.flatten(1).float().mul_(2).sub_(1)


def _scaled(first: Tensor, second: Tensor, similarity: Similarity) -> Comparable:
    import torch

    # A power of two rounds nothing, and lengths beyond the range of their own squares come back into it.
    peak = max(float(first.abs().max()), float(second.abs().max()))
    scale = math.ldexp(1.0, -math.frexp(peak)[1])
    first, second = first * scale, second * scale
    if similarity == "dot":
        return Comparable(first, second, TIE_WINDOW * first.norm(dim=1) * second.norm(dim=1).max())
    # Distances do not change with the origin, their rounding does: a common offset would drown them.
    centre = second.mean(0)
    first, second = first - centre, second - centre
    lengths = second.norm(dim=1)
    # |q - g|^2 = |q|^2 - 2 (q.g - |g|^2 / 2), and |q|^2 orders nothing.
    windows = TIE_WINDOW / 2 * (first.norm(dim=1) + lengths.max()).square()
    first = torch.cat([first, torch.ones_like(lengths[:1]).expand(len(first), 1)], 1)
    second = torch.cat([second, -lengths.square()[:, None] / 2], 1)
    return Comparable(first, second, windows)


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1; zero vectors stay zero."""
    # Divided by the largest entry first: the squares of very short or long vectors leave float64's range.
    peaks = vectors.abs().amax(1, keepdim=True)
    scaled = vectors / peaks.masked_fill(peaks == 0, 1)
    lengths = scaled.norm(dim=1, keepdim=True)
    unit: Tensor = scaled / lengths.masked_fill(lengths == 0, 1)
    return unit


def own_items(
    queries: int, ids: Sequence[str] | None, gallery: int | None, gallery_ids: Sequence[str] | None
) -> NDArray[np.intp]:
    """(Q,) index in the gallery of the item that is the query, -1 where none is.

    Args:
        queries: Q.
        ids: Q names, used with `gallery_ids` only.
        gallery: G; None where the queries are searched among themselves.
        gallery_ids: G different names.

    Raises:
        ValueError: ids that do not fit together.
    """
    if gallery is None:
        if gallery_ids is not None:
            raise ValueError("gallery_ids need a gallery")
        return np.arange(queries)
    if ids is None and gallery_ids is None:
        return np.full(queries, -1)
    if ids is None or gallery_ids is None:
        raise ValueError("ids and gallery_ids need each other")
    place = {name: i for i, name in enumerate(gallery_ids)}
    if len(ids) != queries or len(gallery_ids) != gallery or len(place) != gallery:
        raise ValueError(
            f"expected {queries} ids and {gallery} different gallery_ids,"
            f" got {len(ids)} and {len(gallery_ids)}, {len(place)} of them different"
        )
    return np.array([place.get(name, -1) for name in ids], np.intp)


def similarity_blocks(items: Comparable, own: NDArray[np.intp]) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of queries in order, with their similarities to the whole gallery.

    Args:
        items: queries and gallery.
        own: (Q,) as from `own_items`.

    Yields:
        The queries and their (B, G) float64 similarities, new memory each; the query's own item is at -inf.
    """
    import torch

    columns = torch.from_numpy(own).to(items.queries.device)
    rows = max(1, _BLOCK // len(items.gallery))
    for start in range(0, len(items.queries), rows):
        block = slice(start, start + rows)
        similarities = items.queries[block] @ items.gallery.T
        found = torch.nonzero(columns[block] >= 0)[:, 0]
        similarities[found, columns[block][found]] = -math.inf
        yield block, similarities
