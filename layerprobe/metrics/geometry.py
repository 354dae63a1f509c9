"""Geometry of features: how tight classes are, the directions used, spread, intrinsic dimension, hubness.

But for hubness, which is of the search itself, all metrics here measure the queries alone, in float64, each
L2-normalised whatever similarity it is searched by. A zero vector stays zero, at distance 1 from every unit vector.
Nothing is centred, and the rules of a search (`SearchRules`) change nothing. No matrix of all pairs is formed: squared
distances within a set follow from its mean, and the one sum that needs all pairs goes over tiles.

All raise NumericError for features that are not finite and, but for hubness, DataError for packed bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.metric import Metric
from layerprobe.ranking.relevance import relevance_of
from layerprobe.ranking.vectors import TIE_WINDOW, comparable, similarity_blocks
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.retrieval import Retrieval

if TYPE_CHECKING:
    from torch import Tensor

# Pairs looked at together: 32 MiB in float64.
_TILE = 2048
# Rows that a step of the decomposition adds, at least: each step decomposes the result of the last one again.
_ROWS = 4096


class IntraInter(Metric):
    """`intra-inter`: mean distance within classes over mean distance between their centres (pi_ratio).

    Roth et al., Revisiting Training Strategies and Generalization Performance in Deep Metric Learning, ICML 2020, in
    the convention of the authors' code: distances are 1 - cosine, half the squared distance of unit vectors; within a
    class the mean over its pairs, then over the classes; between classes the mean over the pairs of centres, a centre
    being the L2-normalised mean of its class (zero where the class cancels out). Unlike there, classes of one item
    have no distance within and only a centre.
    """

    held = (8, 0)

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """The value under its name.

        Returns:
            At least 0, lower is tighter.

        Raises:
            DataError: a single class, or no class of two items.
            NumericError: all centres within 1e-12 of each other: collapsed.
        """
        classes = _ClassScatter(retrieval)
        paired = classes.paired("intra-inter")
        if len(classes.counts) < 2:
            raise DataError("intra-inter needs two classes, there is one", fix="Measure a split of several classes")
        within = (classes.scatter[paired] / (classes.counts[paired] - 1)).mean()
        lengths = classes.means.norm(dim=1, keepdim=True)
        # Where vectors cancel out, rounding is left, which has no direction.
        centres = (classes.means / lengths).masked_fill_(lengths <= TIE_WINDOW, 0)
        between = (centres - centres.mean(0)).square().sum() / (len(centres) - 1)
        if between <= TIE_WINDOW:
            raise NumericError("intra-inter has no value: the centres of all classes coincide")
        return {"intra-inter": float(within / between)}


class Alignment(Metric):
    """`alignment`: mean squared distance of two items of one class, over all such pairs.

    Wang & Isola, Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere,
    ICML 2020, with alpha = 2. Their positive pairs are two views of an image; here they are two images of a class.
    """

    held = (8, 0)

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """The value under its name.

        Returns:
            In [0, 4], lower is tighter.

        Raises:
            DataError: no class of two items.
        """
        classes = _ClassScatter(retrieval)
        paired = classes.paired("alignment")
        counts, scatter = classes.counts[paired], classes.scatter[paired]
        # n items have n (n - 1) ordered pairs, whose squared distances add up to 2 n times their scatter.
        return {"alignment": float((2 * counts * scatter).sum() / (counts * (counts - 1)).sum())}


class Uniformity(Metric):
    """`uniformity`: logarithm of the mean of exp(-2 d^2) over all pairs of different items, d their distance.

    Wang & Isola (see `alignment`), with t = 2.
    """

    held = (8, 0)

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """The value under its name.

        Returns:
            In [-8, 0], lower is more even; 0 where all features are equal.

        Raises:
            DataError: a single item.
        """
        vectors = unit_vectors(retrieval)
        if len(vectors) < 2:
            raise DataError("uniformity needs two items, there is one", fix="Measure a split of several images")
        squares = vectors.square().sum(1)
        total = 0.0
        for top in range(0, len(vectors), _TILE):
            rows = slice(top, top + _TILE)
            for first_column in range(0, top + 1, _TILE):
                columns = slice(first_column, first_column + _TILE)
                distances = (vectors[rows] @ vectors[columns].T).mul_(-2)
                distances += squares[rows, None]
                distances += squares[columns]
                near = distances.clamp_(min=0).mul_(-2).exp_()
                # Each pair once: the tiles below the diagonal, and the lower triangles of those on it.
                total += float(near.sum() if first_column < top else near.tril_(-1).sum())
        mean = total / (len(vectors) * (len(vectors) - 1) / 2)
        return {"uniformity": math.log(mean)}


class SpectralDecay(Metric):
    """`rho`: how far the singular values are from all being equal, KL(uniform || singular values / their sum).

    Roth et al. (see `intra-inter`), in the convention of the authors' code (`rho_spectrum@1`): singular values
    themselves, not their squares, all min(N, D) of them, the first included, of features that are not centred.
    """

    held = (8, 0)

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """The value under its name.

        Returns:
            At least 0, in nats; lower is more even.

        Raises:
            NumericError: a singular value is zero (at most max(N, D) times float64's epsilon of the largest): rho is
                infinite, as with a dimension that is always 0.
        """
        values, rank = _spectrum(retrieval, "rho")
        if rank < len(values):
            raise NumericError(f"rho is infinite: the features have rank {rank}, not {len(values)}")
        shares = values / values.sum()
        return {"rho": max(-math.log(len(values)) - float(np.log(shares).mean()), 0.0)}


class EffectiveRank(Metric):
    """`effective-rank`: exponential of the entropy of the singular values, divided by their sum.

    Roy & Vetterli, The effective rank: a measure of effective dimensionality, EUSIPCO 2007. Of features that are not
    centred, with the singular values themselves, not their squares.
    """

    held = (8, 0)

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """The value under its name.

        Returns:
            In [1, min(N, D)]; 1 where all features point the same way.

        Raises:
            NumericError: all features are zero.
        """
        values, rank = _spectrum(retrieval, "effective-rank")
        shares = values[:rank] / values[:rank].sum()
        return {"effective-rank": math.exp(-float((shares * np.log(shares)).sum()))}


class _ClassScatter:
    """Count (C,), mean (C, D) and scatter (C,), the summed squared distance from the mean, of each class."""

    def __init__(self, retrieval: Retrieval) -> None:
        import torch

        vectors = unit_vectors(retrieval)
        _, index, counts = np.unique(retrieval.labels, return_inverse=True, return_counts=True)
        classes = torch.from_numpy(index).to(vectors.device)
        self.counts = torch.from_numpy(counts).to(vectors)
        self.means = vectors.new_zeros(len(counts), vectors.shape[1]).index_add_(0, classes, vectors)
        self.means /= self.counts[:, None]
        # Not the sum of squares less the mean's square, of which only rounding is left for tight classes.
        vectors -= self.means[classes]
        self.scatter = vectors.new_zeros(len(counts)).index_add_(0, classes, vectors.square().sum(1))

    def paired(self, metric: str) -> Tensor:
        """(C,) which classes have two items or more; DataError if none has."""
        paired: Tensor = self.counts > 1
        if not paired.any():
            raise DataError(f"{metric} needs a class of two items, all have one", fix="Give a class two items")
        return paired


def unit_vectors(retrieval: Retrieval) -> Tensor:
    """(N, D) float64 queries of length 1, or 0; new memory.

    Raises:
        DataError: packed bits.
        NumericError: a row holds NaN or Inf.
    """
    if retrieval.similarity == "hamming":
        raise DataError("packed bits have no geometry", fix="Measure it before the features are made binary")
    return comparable(retrieval.features).queries


def _spectrum(retrieval: Retrieval, metric: str) -> tuple[NDArray[np.float64], int]:
    """Singular values (min(N, D),), descending, and how many are not zero; NumericError if all are."""
    import torch

    vectors = unit_vectors(retrieval)
    count, dim = vectors.shape
    # From the triangular factor of a QR decomposition, made block by block. The eigenvalues of a (D, D) product would
    # be cheaper, but would lose every singular value below 1e-8 of the largest.
    factor = vectors[:0]
    rows = max(_ROWS, 2 * dim)
    for start in range(0, count, rows):
        factor = torch.linalg.qr(torch.cat([factor, vectors[start : start + rows]]), mode="r").R
    values: NDArray[np.float64] = torch.linalg.svdvals(factor).cpu().numpy()
    rank = int((values > values[0] * max(count, dim) * np.finfo(np.float64).eps).sum())
    if not rank:
        raise NumericError(f"{metric} has no value: all features are zero")
    return values, rank


# Share of the items that the line is fitted to: Facco et al. discard the tenth of the largest ratios.
_KEPT = 0.9
# Unit vectors that are equal to so many digits are one item.
_DIGITS = 9
_LEAST = 10


class TwoNN(Metric):
    """`two-nn`: intrinsic dimension, the slope of -log(1 - i / N) against log(r2 / r1).

    Facco, d'Errico, Rodriguez & Laio, Estimating the intrinsic dimension of datasets by a minimal neighborhood
    information, Scientific Reports 7, 2017. r1 and r2 are an item's distances to its nearest and second nearest one,
    and i is the place of its ratio in ascending order. The line goes through the origin and is fitted to the 90 % of
    smallest ratios: their fit, not the maximum likelihood N / sum(log(r2 / r1)). Distances are Euclidean, between unit
    vectors, as recall compares them. Items whose vectors are equal to nine digits count once: a ratio by a distance of
    0 is no number. No labels are used, and the rules of a search (`SearchRules`) change nothing.
    """

    held = (24, 0)

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """The value under its name.

        Returns:
            Above 0; about d for items spread evenly over a part of a d-dimensional surface, less where d is large for
            the number of items.

        Raises:
            DataError: packed bits, or fewer than 10 different items.
            NumericError: a row holds NaN or Inf, or each item's two nearest are equally far.
        """
        from layerprobe.ranking.neighbours import nearest_neighbours  # which imports torch

        vectors = unit_vectors(retrieval).cpu().numpy()
        _, representative_rows = np.unique(vectors.round(_DIGITS) + 0.0, axis=0, return_index=True)  # + 0.0: -0 is 0
        different = vectors[np.sort(representative_rows)]
        if len(different) < _LEAST:
            raise DataError(
                f"two-nn needs {_LEAST} different items, there are {len(different)}",
                fix="Measure a split of more images",
            )
        nearest = -nearest_neighbours(different, 2, similarity="euclidean").similarities
        logs = np.sort(np.log(nearest[:, 1] / nearest[:, 0]))[: int(_KEPT * len(different))]
        heights = -np.log1p(-np.arange(1, len(logs) + 1) / len(different))
        squares = float(logs @ logs)
        if squares <= np.finfo(np.float64).eps * len(logs):
            raise NumericError("two-nn has no value: the two nearest of every item are equally far")
        return {"two-nn": float(logs @ heights) / squares}


NEIGHBOURS = 10
# A standard deviation of the counts below this is rounding error.
_ROUNDING_OF_COUNTS = 1e-9


class Hubness(Metric):
    """`hubness`: skewness of how often an item is among the 10 nearest of the others.

    Radovanović, Nanopoulos & Ivanović, Hubs in Space: Popular Nearest Neighbors in High-Dimensional Data, JMLR 11,
    2010: the third standardised moment E[(N - mean)^3] / sd^3 of the items' counts N, sd without Bessel's correction.
    Of the queries among themselves, each without itself, by the similarity that they are searched by, hamming too.
    Items that tie for the last places share them, as a random order would on average. No labels are used, and the
    rules of a search (`SearchRules`) change nothing.
    """

    held = (8, 0)

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """The value under its name.

        Returns:
            Any number; above 0 where a few items are hubs, near 0 where all are about equally often neighbours.

        Raises:
            DataError: 10 items or fewer.
            NumericError: a row holds NaN or Inf, or all items are equally often neighbours, as in a collapsed layer.
        """
        import torch

        count = len(retrieval.labels)
        if count <= NEIGHBOURS:
            raise DataError(
                f"hubness needs more than {NEIGHBOURS} items, there are {count}", fix="Measure a split of more images"
            )
        items = comparable(retrieval.features, None, retrieval.similarity)
        self_indices = torch.arange(count).numpy()
        counts = torch.zeros(count, dtype=torch.float64, device=items.windows.device)
        for rows, similarities in similarity_blocks(items, relevance_of(retrieval.labels, None, self_indices, None)):
            windows = items.windows[rows, None]
            tenth = similarities.topk(NEIGHBOURS).values[:, -1:]
            closer = similarities > tenth + windows
            tied = (similarities >= tenth - windows) & ~closer
            places = NEIGHBOURS - closer.sum(1, keepdim=True)
            counts += (closer + tied * (places / tied.sum(1, keepdim=True)).double()).sum(0)
        centred = counts - counts.mean()
        deviation = float(centred.square().mean().sqrt())
        if deviation <= _ROUNDING_OF_COUNTS:
            raise NumericError("hubness has no value: all items are equally often neighbours")
        return {"hubness": float((centred / deviation).pow(3).mean())}
