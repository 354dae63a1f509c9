"""How alike two layers are: linear CKA of the same items' features, by the unbiased estimator of HSIC.

CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) for the products K = X X^T and L = Y Y^T: Kornblith et al., Similarity of
Neural Network Representations Revisited, ICML 2019. HSIC is estimated by HSIC_1 of Song et al., Feature Selection via
Dependence Maximization, JMLR 2012, which leaves the diagonals out: with as many dimensions as items the plain estimator
calls everything alike. From batches, each HSIC is the mean over them before the ratio is formed: Nguyen, Raghu &
Kornblith, Do Wide and Deep Networks Learn the Same Things?, ICLR 2021.

Rows are L2-normalised first, as recall by the cosine compares them; a zero row stays zero. So the lengths of vectors
change nothing, nor does rotating the features of either layer. All is computed in float64. The estimator is unbiased:
for unrelated layers, the value is below 0 as often as above.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.retrieval import FloatArray

# HSIC_1 is not defined for fewer items.
_LEAST = 4
# An HSIC of a layer with itself below this share of its largest term is rounding error.
_ROUNDING = 1e-12
# Unit vectors that are closer together are equal.
_SPREAD = 1e-12


def cka_vector(features: ArrayLike, *, batch_size: int, name: str = "features") -> FloatArray:
    """A layer's centred kernel as a vector of length 1; the product of two layers' vectors is their linear CKA.

    The kernel says how alike every two items are. Comparing L layers in this way needs L kernels, not L^2.

    Args:
        features: (N, D), row i is item i.
        batch_size: at least 4. The rows are split at random, in the same way for every N rows, into N // batch_size
            batches (at least one) whose sizes differ by at most a row. None has fewer rows than this, unless N is less.
        name: of the features in an error.

    Returns:
        (M,) with M about N times the batch size.

    Raises:
        NumericError: NaN or Inf, or features that do not vary but in length.
        DataError: fewer than 4 rows.
        ValueError: no matrix, or a batch size below 4.
    """
    values = unit_rows(features, name)
    if len(values) < _LEAST:
        raise DataError(
            f"linear CKA needs {_LEAST} rows, there are {len(values)}", fix="Compare layers on a split of more images"
        )
    parts, largest = [], 0.0
    for rows in _batches(len(values), batch_size):
        n = len(rows)
        # The first row first: dimensions that are constant become exactly 0.
        x = values[rows] - values[rows[0]]
        x -= x.mean(0)
        kernel = x @ x.T
        largest += float(np.vdot(kernel, kernel)) / (n * (n - 3))
        # Without its diagonal and centred again, so that the sum over the products of two kernels' entries is n (n - 3)
        # HSIC_1. The rows of a centred kernel sum to 0; without the diagonal, to minus its entry.
        squares = kernel.diagonal().copy()
        kernel += squares / (n - 2)
        kernel += squares[:, None] / (n - 2)
        kernel -= squares.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(kernel, 0)
        parts.append((kernel / np.sqrt(n * (n - 3))).ravel())
    vector: FloatArray = np.concatenate(parts)
    square_norm = float(vector @ vector)
    # Products of centred vectors are squares of their spread, and these are squared again.
    if largest <= _SPREAD**4:
        raise NumericError(f"{name}: the features do not vary")
    if square_norm <= _ROUNDING * largest:
        raise NumericError(f"{name}: the features do not tell which items are alike")
    vector /= np.sqrt(square_norm)
    return vector


def unit_rows(features: ArrayLike, name: str = "features") -> FloatArray:
    """(N, D) float64, each row of length 1 or 0; new memory.

    Args:
        features: (N, D).
        name: of the features in an error.

    Raises:
        NumericError: NaN or Inf.
        ValueError: no matrix, or an empty one.
    """
    values = np.array(features, np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"{name}: expected (N, D), neither 0, got {values.shape}")
    bad = int((~np.isfinite(values)).any(1).sum())
    if bad:
        raise NumericError(f"{name}: {bad} of {len(values)} feature rows hold NaN or Inf")
    # Divided by the largest entry first: the squares of very short or long rows leave float64's range.
    peaks = np.abs(values).max(1, keepdims=True)
    values /= np.where(peaks > 0, peaks, 1)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    values /= np.where(lengths > 0, lengths, 1)
    return values


def _batches(count: int, batch_size: int) -> list[NDArray[np.intp]]:
    if batch_size < _LEAST:
        raise ValueError(f"batch size {batch_size}: must be at least {_LEAST}")
    # Neighbouring rows are often of one class, and a batch of one class says nothing of the others.
    order = np.random.default_rng(0).permutation(count)
    return np.array_split(order, max(1, count // batch_size))
