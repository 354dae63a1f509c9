from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import skew

from layerprobe.metrics.hubness import Hubness
from layerprobe.ranking import retrieval
from layerprobe.system.errors import DataError, NumericError


def measured(features: Any, similarity: Any = "cosine") -> float:
    values = np.asarray(features)
    return Hubness()(retrieval(values, np.zeros(len(values), int), similarity=similarity))["hubness"]


def test_a_hub_by_hand() -> None:
    # The middle of 20 axes is the nearest of each axis; the other 9 places are shared by the 19 other axes, 9/19 each.
    # The middle's 10 places are shared by the 20 axes. So N is 20 for the middle and 19 * 9/19 + 10/20 = 9.5 for an
    # axis, 10 on average: the second moment is (10^2 + 20 * 0.5^2) / 21 = 5, the third (10^3 - 20 * 0.5^3) / 21 = 47.5.
    features = np.concatenate([np.eye(20), np.ones((1, 20))])
    assert measured(features) == pytest.approx(47.5 / 5**1.5)


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "dot"])
def test_without_ties_it_is_the_skewness_of_the_counts(similarity: Any) -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 12)) * rng.uniform(1, 2, (60, 1))
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    counts = np.zeros(60)
    for query in range(60):
        close = {
            "cosine": units @ units[query],
            "dot": features @ features[query],
            "euclidean": -np.linalg.norm(features - features[query], axis=1),
        }[similarity]
        nearest = sorted((i for i in range(60) if i != query), key=lambda i: -close[i])
        counts[nearest[:10]] += 1
    assert measured(features, similarity) == pytest.approx(skew(counts))


def test_packed_bits_have_the_hubs_of_their_signs() -> None:
    bits = np.random.default_rng(1).integers(2, size=(40, 24))
    assert measured(np.packbits(bits, axis=1), "hamming") == pytest.approx(measured(2.0 * bits - 1))


@pytest.mark.parametrize("count", [11, 30])
def test_items_that_are_equally_often_neighbours_have_none(count: int) -> None:
    with pytest.raises(NumericError, match="all items are equally often neighbours"):
        measured(np.ones((count, 3)))


def test_ten_items_are_too_few() -> None:
    with pytest.raises(DataError, match="hubness needs more than 10 items, there are 10"):
        measured(np.eye(10))


def test_a_row_that_is_not_finite_is_refused() -> None:
    features = np.eye(12)
    features[3, 3] = np.nan
    with pytest.raises(NumericError, match="1 of 12"):
        measured(features)
