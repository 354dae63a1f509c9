"""The intrinsic dimension of features, from how far each item's two nearest neighbours are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layerprobe.metrics.geometry import unit_vectors
from layerprobe.metrics.metric import Metric
from layerprobe.ranking.neighbours import nearest_neighbours
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.retrieval import Retrieval

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

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """The value under its name.

        Returns:
            Above 0; about d for items spread evenly over a part of a d-dimensional surface, less where d is large for
            the number of items.

        Raises:
            DataError: packed bits, or fewer than 10 different items.
            NumericError: a row holds NaN or Inf, or each item's two nearest are equally far.
        """
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
