"""How the variance of a layer's unit vectors is spread over dimensions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.cka import unit_rows
from layerprobe.system.errors import NumericError
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.views import Curve

MEASURE, AXIS = "share of the variance", "dimension"
# Rows that a step of the decomposition adds, at least.
_ROWS = 4096


def spectrum(features: NDArray[np.floating], *, run: str, epoch: int, split: str, ranked: RankedLayer) -> Curve:
    """The variance along each principal direction, largest first, as a share of the whole.

    The vectors are L2-normalised and not centred, as for the metric `effective-rank`: variance is the mean square
    about 0, and the first direction is roughly that of the mean vector. With singular values s, the shares are
    s^2 / sum of s^2.

    Args:
        features: (N, D).

    Returns:
        Directions without variance are excluded: singular values that are at most max(N, D) times float64's epsilon of
        the largest. With NaN or Inf, or where all features are zero, one place without a value, and the reason as a
        note.
    """
    notes: tuple[str, ...] = ()
    try:
        shares = variance_shares(unit_rows(features))
        values: tuple[float | None, ...] = tuple(map(float, shares))
    except NumericError as error:
        values, notes = (None,), (error.message,)
    places = tuple(range(1, len(values) + 1))
    return Curve(run, epoch, split, ranked, MEASURE, AXIS, places, values, n=len(features), notes=notes)


def variance_shares(units: FloatArray) -> FloatArray:
    """(R,) shares of the variance about 0, descending, of the R directions that have any.

    Args:
        units: (N, D).
    """
    count, dim = units.shape
    # As for `effective-rank`: the eigenvalues of a (D, D) product would lose small singular values.
    factor: FloatArray = units[:0]
    rows = max(_ROWS, 2 * dim)
    for start in range(0, count, rows):
        factor = np.asarray(np.linalg.qr(np.concatenate([factor, units[start : start + rows]]), mode="r"), np.float64)
    values = np.asarray(np.linalg.svd(factor, compute_uv=False), np.float64)
    nonzero = values[values > values[0] * max(count, dim) * np.finfo(np.float64).eps]
    if not len(nonzero):
        raise NumericError("no spectrum: all features are zero")
    shares: FloatArray = nonzero**2 / (nonzero**2).sum()
    return shares
