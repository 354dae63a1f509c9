"""Features in two dimensions, and how many of their nearest neighbours stay nearest there."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import torch
from numpy.typing import ArrayLike

from layerprobe.metrics.cka import unit_rows
from layerprobe.post_processing.pca import with_signs
from layerprobe.ranking.neighbours import heads_of_ties
from layerprobe.ranking.relevance import relevance_of
from layerprobe.ranking.vectors import comparable, similarity_blocks
from layerprobe.sources.hub import import_package
from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import FloatArray, Similarity
from layerprobe.values.views import ProjectionMethod

NEIGHBOURS = 10
FEWEST = 4  # images that t-SNE and UMAP need
_DIMENSIONS = 50  # of what t-SNE and UMAP start from
_PERPLEXITY, _UMAP_NEIGHBOURS = 30.0, 15  # the defaults of scikit-learn and umap-learn, where there are enough images
_START = 1e-4  # standard deviation of the first coordinate that t-SNE starts from, as scikit-learn's


def require_method(method: ProjectionMethod) -> None:
    """Check that what a projection needs is installed."""
    if method == "umap":
        import_package("umap", "umap")


def project(
    features: ArrayLike, method: ProjectionMethod, similarity: Similarity, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Features in two dimensions, as the search compares them: for cosine each divided by its length.

    PCA is `principal_coordinates`. t-SNE (van der Maaten & Hinton, Visualizing Data using t-SNE, 2008) is that of
    scikit-learn, and UMAP (McInnes, Healy & Melville, 2018) that of umap-learn. Both project the first 50 principal
    coordinates, and start from the first two.

    Args:
        features: (N, D).
        seed: of t-SNE and UMAP.

    Returns:
        (N, 2) coordinates, and (2,) the shares of the variance that the first two principal coordinates have; 0 where
        features do not vary.

    Raises:
        NumericError: NaN or Inf.
        DataError: fewer than 4 features for t-SNE or UMAP.
        EnvironmentFault: umap-learn is not installed.
    """
    vectors = unit_rows(features) if similarity == "cosine" else np.array(features, np.float64)
    if method != "pca" and len(vectors) < FEWEST:
        raise DataError(f"{method} of {len(vectors)} images: it needs {FEWEST}", fix="Draw them by pca")
    coordinates, shares = principal_coordinates(vectors, 2 if method == "pca" else _DIMENSIONS)
    plane, shares = coordinates[:, :2], shares[:2]
    if method == "pca" or not plane.any():
        return plane, shares
    start = (plane / plane[:, 0].std() * _START).astype(np.float32)
    if method == "tsne":
        from sklearn.manifold import TSNE

        perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, init=start, random_state=seed)
        return np.asarray(tsne.fit_transform(coordinates.astype(np.float32)), np.float64), shares
    neighbours = min(_UMAP_NEIGHBOURS, len(vectors) - 1)
    umap = import_package("umap", "umap").UMAP(n_neighbors=neighbours, init=start, random_state=seed, n_jobs=1)
    return np.asarray(umap.fit_transform(coordinates.astype(np.float32)), np.float64), shares


def principal_coordinates(features: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
    """The coordinates of features along their first principal axes, and the share of the variance of each axis.

    U S of the singular value decomposition of the features less their mean. Of each axis the coordinate farthest from 0
    is positive. An axis is 0 where its variance is rounding alone: a singular value of at most max(N, D) float64
    epsilons of the features' length, or its square of at most min(N, D) epsilons of the largest square.

    Args:
        features: (N, D) float64.
        count: number of axes, at least 2; there are at most min(N, D), or 2.

    Returns:
        (N, count) and (count,).
    """
    size, epsilon = min(features.shape), float(np.finfo(np.float64).eps)
    centred = features - features.mean(0)
    # The smaller of covariance and Gram matrix: both have the same eigenvalues.
    is_wide = centred.shape[1] > centred.shape[0]
    product = centred @ centred.T if is_wide else centred.T @ centred
    first = max(0, size - count)
    squares, axes = scipy.linalg.eigh(product, subset_by_index=(first, size - 1), driver="evr")
    squares, axes = squares[::-1], axes[:, ::-1]
    rounding = (max(features.shape) * epsilon) ** 2 * float((features**2).sum())
    squares = np.where(squares > max(rounding, size * epsilon * squares[0]), squares, 0)
    coordinates = (axes * np.sqrt(squares) if is_wide else centred @ axes) * (squares > 0)
    coordinates = with_signs(torch.from_numpy(coordinates)).numpy()
    missing = max(0, 2 - len(squares))
    shares = squares / max(float(np.trace(product)), squares.sum()) if squares[0] else squares
    return np.pad(coordinates, ((0, 0), (0, missing))), np.pad(shares, (0, missing))


def kept_neighbours(features: ArrayLike, points: ArrayLike, similarity: Similarity) -> tuple[FloatArray, float]:
    """The share of each item's nearest neighbours that are among its nearest in a picture, and its level at random.

    Of k = 10 neighbours, or of all others where there are fewer. Where items tie for the last places, the share is its
    expected value under a random order of the tied, in both: a layer or a picture of a single point is at chance.

    Args:
        features: (N, D), compared by the similarity.
        points: (N, 2), compared by their distance.

    Returns:
        (N,) shares, and chance, k / (N - 1); no shares and 0 where N is 1.

    Raises:
        NotFiniteError: NaN or Inf.
    """
    layer, picture = comparable(features, similarity=similarity), comparable(points, similarity="euclidean")
    count = len(layer.queries)
    k = min(NEIGHBOURS, count - 1)
    if not k:
        return np.empty(0), 0.0
    itself = relevance_of(np.zeros(count, np.int64), None, np.arange(count), None)
    shares = np.empty(count)
    blocks = zip(similarity_blocks(layer, itself), similarity_blocks(picture, itself), strict=True)
    for (rows, in_layer), (_, in_picture) in blocks:
        kept = _chances(in_layer, layer.windows[rows], k).mul_(_chances(in_picture, picture.windows[rows], k))
        shares[rows] = kept.sum(1).numpy() / k
    return shares, k / (count - 1)


def _chances(similarities: torch.Tensor, windows: torch.Tensor, k: int) -> torch.Tensor:
    """(B, N) the probability that each item is among the k nearest, under a random order of the tied."""
    heads = heads_of_ties(similarities.topk(k).values, windows)[:, -1:]
    before = (similarities > heads).double()
    tied = ((similarities >= heads - windows[:, None]) & (similarities <= heads)).double()
    return before + tied * ((k - before.sum(1, keepdim=True)) / tied.sum(1, keepdim=True))
