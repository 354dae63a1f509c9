from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.metrics.two_nn import TwoNN
from layerprobe.ranking import retrieval
from layerprobe.system.errors import DataError, NumericError


def measured(features: Any, similarity: Any = "cosine") -> float:
    values = np.asarray(features)
    return TwoNN()(retrieval(values, np.zeros(len(values), int), similarity=similarity))["two-nn"]


def sphere(dim: int, count: int) -> NDArray[np.float64]:
    """Points spread evenly over a sphere of so many dimensions, turned into 20."""
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.standard_normal((20, 20)))[0][: dim + 1]
    points: NDArray[np.float64] = rng.standard_normal((count, dim + 1)) @ turned
    return points


@pytest.mark.parametrize(("dim", "within"), [(1, 0.05), (2, 0.05), (5, 0.1)])
def test_a_sphere_of_d_dimensions_has_dimension_d(dim: int, within: float) -> None:
    assert measured(sphere(dim, 3000)) == pytest.approx(dim, rel=within)


def test_it_is_the_slope_of_the_paper_s_line() -> None:
    features = sphere(3, 60)
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    ratios = []
    for point in units:
        first, second = sorted(np.linalg.norm(units - point, axis=1))[1:3]
        ratios.append(second / first)
    x = np.log(sorted(ratios))[:54]  # 90 % of 60
    y = [-np.log(1 - i / 60) for i in range(1, 55)]
    slope = np.linalg.lstsq(x[:, None], np.array(y), rcond=None)[0][0]
    assert measured(features) == pytest.approx(slope, rel=1e-9)


def test_duplicates_and_lengths_change_nothing() -> None:
    features = sphere(2, 100)
    again = np.concatenate([features, features[:40], 4 * features[:40]])
    assert measured(again) == pytest.approx(measured(features), rel=1e-9)


def test_a_collapsed_layer_has_one_different_item() -> None:
    with pytest.raises(DataError, match="two-nn needs 10 different items, there are 1"):
        measured(np.ones((30, 4)))


def test_items_that_are_all_equally_far_have_no_dimension() -> None:
    with pytest.raises(NumericError, match="the two nearest of every item are equally far"):
        measured(np.eye(12))


def test_packed_bits_are_refused() -> None:
    with pytest.raises(DataError, match="packed bits have no geometry"):
        measured(np.zeros((12, 2), np.uint8), "hamming")


def test_a_row_that_is_not_finite_is_refused() -> None:
    features = np.eye(12)
    features[3, 3] = np.nan
    with pytest.raises(NumericError, match="1 of 12"):
        measured(features)
