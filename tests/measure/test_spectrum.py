from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.measure.spectrum import spectrum
from layerprobe.metrics.geometry import EffectiveRank
from layerprobe.plots.spectrum import effective_rank
from layerprobe.ranking import retrieval
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import Curve

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")


def of(features: NDArray[np.floating]) -> Curve:
    return spectrum(features, run="one", epoch=3, split="test", ranked=FC6)


def test_shares_by_hand() -> None:
    # three unit vectors along x and one along y, whatever their lengths: mean squares 3/4 and 1/4
    curve = of(np.array([[1.0, 0], [2, 0], [-3, 0], [0, 5]]))
    assert curve.values == pytest.approx((0.75, 0.25))
    assert (curve.places, curve.n, curve.notes) == ((1, 2), 4, ())
    assert (curve.measure, curve.axis) == ("share of the variance", "dimension")


def test_shares_are_the_eigenvalues_of_the_mean_products() -> None:
    features = np.random.default_rng(0).normal(size=(50, 6)) + 1
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    expected = np.linalg.eigvalsh(units.T @ units / 50)[::-1]
    assert of(features).values == pytest.approx(tuple(expected), abs=1e-12)


@pytest.mark.parametrize(("rows", "dim"), [(60, 7), (7, 60)])
def test_the_effective_rank_is_that_of_the_metric(rows: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    features[:, -1] = 0
    expected = EffectiveRank()(retrieval(features, np.arange(rows) % 3))["effective-rank"]
    assert effective_rank(of(features)) == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr("layerprobe.measure.spectrum._ROWS", 16)  # in several blocks
    assert effective_rank(of(features)) == pytest.approx(expected, rel=1e-12)


def test_directions_without_variance_are_left_out() -> None:
    curve = of(np.ones((5, 3)))
    assert curve.places == (1,)
    assert curve.values == pytest.approx((1.0,))
    assert effective_rank(curve) == pytest.approx(1)


@pytest.mark.parametrize(
    ("value", "note"),
    [(np.nan, "features: 4 of 4 feature rows hold NaN or Inf"), (0, "no spectrum: all features are zero")],
)
def test_features_without_a_spectrum_say_why(value: float, note: str) -> None:
    curve = of(np.full((4, 2), value))
    assert (curve.values, curve.notes) == ((None,), (note,))
    assert effective_rank(curve) is None
