"""Features made comparable: vectors in float64 whose products order the neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.ranking.items import Items, unlabelled_items
from layerprobe.system.computing import with_float64
from layerprobe.system.errors import NotFiniteError
from layerprobe.values.retrieval import SIMILARITIES, Similarity

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.relevance import Relevance

# Similarities of vectors of length 1 that differ by no more are tied: equal vectors must not be ordered by the rounding
# of a matrix product.
TIE_WINDOW = 1e-12
# So many rows are enough to estimate the offset.
_ROWS_OF_OFFSET = 256
# Similarities held at once: 8 MiB in float64.
_BLOCK = 2**20


@dataclass(frozen=True, eq=False)
class Form:
    """How raw features become comparable vectors.

    Args:
        similarity: cosine, dot, euclidean or hamming.
        scale: what dot and euclidean features are multiplied by, a power of two.
        origin: (D,) float64, subtracted after that; the gallery's mean for euclidean, 0 otherwise.
        longest: length of the gallery's longest vector.
        offset: (D,) float64, roughly the mean of the gallery's vectors; subtracted before rounding, so that no digits
            go to a common offset.
        shift: a constant that keeps the biases small, see `biases`.
        zeros: zero rows among queries and gallery.
    """

    similarity: Similarity
    scale: float
    origin: Tensor
    longest: float
    offset: Tensor
    shift: float
    zeros: int

    @property
    def dim(self) -> int:
        """D, how many numbers a vector has."""
        return len(self.offset)

    def vectors(self, raw: Tensor) -> Tensor:
        """(N, D) float64 of raw rows."""
        if self.similarity == "hamming":
            return signs(raw).double()
        if self.similarity == "cosine":
            return _unit(raw)
        return (raw.double() * self.scale).sub_(self.origin)  # 0 for dot

    @property
    def window(self) -> float | None:
        """How much two similarities may differ and be tied; None where that depends on the query."""
        return {"hamming": 0.5, "cosine": TIE_WINDOW}.get(self.similarity)

    def windows(self, vectors: Tensor) -> Tensor:
        """(N,) how much two similarities of each query may differ and be tied."""
        if self.window is not None:
            return vectors.new_full((len(vectors),), self.window)
        lengths: Tensor = vectors.norm(dim=1)
        if self.similarity == "dot":
            return lengths * (TIE_WINDOW * self.longest)
        return (lengths + self.longest).square() * (TIE_WINDOW / 2)

    def similarities(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """(..., A, B) float64 of vectors (..., A, D) and (..., B, D): a higher one is closer."""
        products = queries @ gallery.mT
        # |q - g|^2 = |q|^2 - 2 (q.g - |g|^2 / 2), and |q|^2 is the same for all of the gallery.
        return products.sub_(gallery.square().sum(-1)[..., None, :] / 2) if self.similarity == "euclidean" else products

    def of_pairs(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """(P,) float64 of P queries with an item each."""
        products = (queries * gallery).sum(1)
        return products - gallery.square().sum(1) / 2 if self.similarity == "euclidean" else products

    def of_places(self, queries: Tensor, gallery: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """(P,) float64 of the queries (A, D) at rows (P,), ascending, with the items (B, D) at columns (P,)."""
        from layerprobe.ranking.products import pair_products  # which imports torch

        products = pair_products(queries, gallery, rows, columns)
        return products - (gallery.square().sum(1) / 2)[columns] if self.similarity == "euclidean" else products

    def biases(self, vectors: Tensor) -> Tensor:
        """(N,) float64 b, so that similarity = (x - offset).(y - offset) + b(x) + b(y) + `constants`.

        Small where the vectors are close together; a common offset would otherwise use up a product's digits.
        """
        if self.similarity == "euclidean":
            return self.shift - vectors.square().sum(1) / 2
        return vectors @ self.offset - self.shift

    def constants(self, biases: Tensor) -> Tensor:
        """(N,) float64 per-query constant to add to (x - offset).(y - offset) + b(x) + b(y)."""
        return -biases - self.shift if self.similarity == "euclidean" else biases * 0 + self.shift


def form_of(queries: Items, gallery: Items, similarity: Similarity) -> Form:
    """Read all rows and find the form that makes them comparable; nothing is kept.

    Raises:
        NotFiniteError: a row holds NaN or Inf; with the number of rows.
        ValueError: unlike dimensions or devices, or an unknown similarity.
    """
    import torch

    if similarity not in SIMILARITIES:
        raise ValueError(f"unknown similarity {similarity!r}: {', '.join(SIMILARITIES)}")
    if queries.dim != gallery.dim:
        raise ValueError(f"features have {queries.dim} dimensions, gallery {gallery.dim}")
    if queries.device != gallery.device:
        raise ValueError(f"features are on {queries.device}, gallery on {gallery.device}")
    none = torch.zeros(gallery.dim, dtype=torch.float64, device=gallery.device)
    if similarity == "hamming":
        bits = none.repeat_interleave(8)
        return Form(similarity, 1.0, bits, math.sqrt(len(bits)), bits, 0.0, 0)
    sets = (queries,) if queries is gallery else (queries, gallery)
    peak, zeros = _peak(sets)
    # Scaling by a power of two rounds nothing, and keeps squares of very short or long vectors within range.
    plain = Form(similarity, math.ldexp(1.0, min(1023, -math.frexp(peak)[1])), none, 1.0, none, 0.0, zeros)
    mean = _mean(plain, gallery)
    if similarity == "cosine":
        return Form(similarity, 1.0, none, 1.0, mean, float(mean @ mean), zeros)
    centred = Form(similarity, plain.scale, mean if similarity == "euclidean" else none, 1.0, none, 0.0, zeros)
    squares = torch.cat([centred.vectors(block).square().sum(1) for block in gallery.blocks()])
    longest = math.sqrt(float(squares.max()))
    if similarity == "dot":
        return Form(similarity, plain.scale, none, longest, mean, float(mean @ mean), zeros)
    return Form(similarity, plain.scale, mean, longest, none, float(squares.mean()) / 2, zeros)


def _mean(form: Form, gallery: Items) -> Tensor:
    """The mean of all vectors for euclidean, whose tie windows depend on it; else of some, as any point will do."""
    import torch

    step = max(1, len(gallery) // _ROWS_OF_OFFSET)
    if form.similarity != "euclidean" and not gallery.on_disk and step > 1:
        return form.vectors(gallery.take(slice(None, None, step))).mean(0)
    total = torch.zeros_like(form.origin)
    for block in gallery.blocks():
        total += form.vectors(block).sum(0)
    return total / len(gallery)


def _peak(sets: tuple[Items, ...]) -> tuple[float, int]:
    """The largest absolute value and the number of zero rows, of features that are finite."""
    peak, bad, zeros = 0.0, 0, 0
    for items in sets:
        for block in items.blocks():
            block = block if block.is_floating_point() else block.double()
            peaks = block.abs().amax(1).double()
            finite = peaks.isfinite()
            bad += int((~finite).sum())
            zeros += int((peaks == 0).sum())
            peak = max(peak, float(peaks.masked_fill(~finite, 0).max()))
    if bad:
        raise NotFiniteError(bad, sum(map(len, sets)))
    return peak, zeros


@dataclass(frozen=True, eq=False)
class Comparable:
    """Queries and gallery whole, in the form whose products order the neighbours: a higher one is closer.

    Args:
        queries: (Q, D') float64.
        gallery: (G, D') float64; the queries themselves where they are searched among themselves.
        windows: (Q,) float64: products that differ by no more are tied.
    """

    queries: Tensor
    gallery: Tensor
    windows: Tensor


def comparable(
    features: ArrayLike | Tensor, gallery: ArrayLike | Tensor | None = None, similarity: Similarity = "cosine"
) -> Comparable:
    """Check features and prepare them whole, in float64.

    Args:
        features: (Q, D), any real type; for hamming uint8 of packed bits, 8 dimensions a byte.
        gallery: (G, D) the searched items; None for the queries themselves.
        similarity: cosine (a zero vector has 0 with everything), dot (higher is closer), euclidean (squared distance)
            or hamming (bits that differ). Tied within 1e-12 for cosine; for dot within 1e-12 |q| max|g|; for euclidean
            within 1e-12 / 2 (|q| + max|g|)^2, lengths from the gallery's mean and the similarity half the negative
            squared distance; for hamming where equal.

    Raises:
        NotFiniteError: a row holds NaN or Inf; with the number of rows.
        ValueError: shapes or types that do not fit together, or an unknown similarity.
    """
    import torch

    query_items = unlabelled_items(tensor_of(features), "features", similarity)
    gallery_items = query_items if gallery is None else unlabelled_items(tensor_of(gallery), "gallery", similarity)
    form = form_of(query_items, gallery_items, similarity)
    queries = torch.cat([form.vectors(block) for block in query_items.blocks()])
    searched = (
        queries
        if gallery_items is query_items
        else torch.cat([form.vectors(block) for block in gallery_items.blocks()])
    )
    windows = form.windows(queries)
    if similarity == "euclidean":
        halves = -searched.square().sum(1, keepdim=True) / 2
        queries = torch.cat([queries, torch.ones_like(queries[:, :1])], 1)
        searched = torch.cat([searched, halves], 1)
    return Comparable(queries, searched, windows)


def tensor_of(values: ArrayLike | Tensor) -> Tensor:
    """Values as a tensor, on their own device unless it has no float64; those of a table on disk are read whole."""
    import torch

    if isinstance(values, torch.Tensor):
        return values.detach().to(with_float64(values.device))
    # A copy: torch warns of arrays that are read-only, as those of a memory map are.
    table: Any = values
    return torch.from_numpy(np.array(table[:] if getattr(values, "shape", ()) else table))


def signs(packed: Tensor) -> Tensor:
    """(N, B) uint8 of packed bits as (N, 8 B) float32 of -1 and 1, in the bit order of numpy.packbits."""
    import torch

    bits = packed[:, :, None] >> torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device) & 1
    return bits.flatten(1).float().mul_(2).sub_(1)


def _unit(raw: Tensor) -> Tensor:
    """(N, D) float64 vectors of length 1; zero vectors stay zero."""
    import torch

    vectors = raw.double()
    if raw.dtype == torch.float64:
        # Divided by the largest entry first: the squares of very short or long vectors leave float64's range.
        peaks = vectors.abs().amax(1, keepdim=True)
        vectors = vectors / peaks.masked_fill_(peaks == 0, 1)
    lengths = vectors.norm(dim=1, keepdim=True)
    lengths.masked_fill_(lengths == 0, 1)
    return vectors.div_(lengths)  # new memory, whatever the type of the raw rows


def similarity_blocks(items: Comparable, relevance: Relevance) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of queries in order, with their similarities to the whole gallery.

    Args:
        items: queries and gallery.
        relevance: of all queries.

    Yields:
        The queries and their (B, G) float64 similarities, new memory each; excluded items are -inf.
    """
    rows = queries_at_once(len(items.gallery))
    for start in range(0, len(items.queries), rows):
        block = slice(start, start + rows)
        similarities = items.queries[block] @ items.gallery.T
        relevance[block].take_out(similarities)
        yield block, similarities


def queries_at_once(gallery: int) -> int:
    """Queries of a block of `similarity_blocks`, in a gallery of so many items."""
    return max(1, _BLOCK // gallery)
