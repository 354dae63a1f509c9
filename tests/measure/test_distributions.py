from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.measure.distributions import DIFFERENT, SAME, LabelledFeatures, pair_histograms, spectrum
from layerprobe.metrics.geometry import EffectiveRank
from layerprobe.plots.spectrum import effective_rank
from layerprobe.ranking import retrieval
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import Curve, Histogram

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
# Unit vectors at these angles in degrees, classes 0 0 0 1 1 1. Of same-class pairs the angles are 10, 30, 40 and 5, 15,
# 20, so that the middle two are 15 and 20.
ANGLES, LABELS = (0, 10, 40, 60, 65, 80), np.array([0, 0, 0, 1, 1, 1])


def on_circle(angles: tuple[float, ...], lengths: float = 1.0) -> NDArray[np.float64]:
    return lengths * np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], 1)


def of(features: NDArray[np.floating], labels: NDArray[np.integer] = LABELS) -> dict[str, Histogram]:
    found = pair_histograms({"test": LabelledFeatures(features, labels)}, run="one", epoch=3, ranked=FC6)
    return {histogram.pairs: histogram for histogram in found}


def plainly(features: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, list[float]]:
    """The cosine of every two rows, one by one."""
    cosines: dict[str, list[float]] = {SAME: [], DIFFERENT: []}
    for (x, of_x), (y, of_y) in combinations(zip(features, labels, strict=True), 2):
        pairs = SAME if of_x == of_y else DIFFERENT
        cosines[pairs].append(float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)))
    return cosines


def test_medians_and_what_lies_beyond_by_hand() -> None:
    found = of(on_circle(ANGLES))
    median = (np.cos(np.radians(15)) + np.cos(np.radians(20))) / 2
    assert found[SAME].median == pytest.approx(median, abs=1e-6)
    # different-class pairs: 60 65 80, 50 55 70, 20 25 40; none is nearer than 15 to 20 degrees
    assert found[DIFFERENT].above == 0
    assert found[DIFFERENT].median == pytest.approx(np.cos(np.radians(55)), abs=1e-6)
    assert found[SAME].above == 0.5


def test_every_pair_is_counted_once_in_its_bin() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(90, 4)) + 1, rng.integers(0, 5, 90)
    expected, found = plainly(features, labels), of(features, labels)
    for pairs in (SAME, DIFFERENT):
        counts, _ = np.histogram(expected[pairs], found[pairs].edges)
        assert found[pairs].counts == tuple(counts)
        assert sum(found[pairs].counts) == len(expected[pairs])
        assert found[pairs].median == pytest.approx(np.median(expected[pairs]), abs=1e-6)
    beyond = np.mean(np.array(expected[DIFFERENT]) > np.median(expected[SAME]))
    assert found[DIFFERENT].above == pytest.approx(beyond, abs=1e-12)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    features = on_circle(ANGLES)
    whole = of(features)
    monkeypatch.setattr("layerprobe.measure.distributions._BLOCK", 13)  # two rows of six
    assert of(features) == whole


def test_lengths_change_nothing() -> None:
    assert of(on_circle(ANGLES, 3.0)) == of(on_circle(ANGLES))


def test_equal_features_lie_half_beyond_the_median() -> None:
    found = of(np.ones((6, 2)))
    assert found[DIFFERENT].above == 0.5
    assert [sum(found[pairs].counts) for pairs in (SAME, DIFFERENT)] == [6, 9]
    assert found[SAME].edges[-1] == 1


def test_bins_are_round_and_narrow_where_most_pairs_are() -> None:
    rng = np.random.default_rng(0)
    near = rng.normal(size=(400, 3)) * 0.02 + [1, 0, 0]
    edges = np.array(of(near, np.arange(400) % 4)[SAME].edges)
    assert edges[-1] - edges[-2] == pytest.approx(0.0001)  # a 40th of about 0.004, what 98 % of the pairs take
    edges = np.array(of(np.concatenate([near, -np.eye(3)[:1]]), np.arange(401) % 4)[SAME].edges)
    assert edges[-1] - edges[-2] == pytest.approx(0.005)  # a 400th of what all take
    assert (edges[0], edges[-1]) == (-1, 1)


def test_all_splits_of_a_layer_have_the_same_bins() -> None:
    splits = {
        "train": LabelledFeatures(on_circle((0, 1, 2, 3)), LABELS[:4]),
        "test": LabelledFeatures(on_circle(ANGLES), LABELS),
    }
    found = pair_histograms(splits, run="one", epoch=3, ranked=FC6)
    assert [(histogram.split, histogram.pairs) for histogram in found] == [
        ("train", SAME), ("train", DIFFERENT), ("test", SAME), ("test", DIFFERENT),
    ]  # fmt: skip
    assert len({histogram.edges for histogram in found}) == 1
    assert [(histogram.n, histogram.run, histogram.epoch) for histogram in found[1:3]] == [(4, "one", 3), (6, "one", 3)]


def test_classes_of_one_image_have_no_pair() -> None:
    found = of(on_circle(ANGLES), np.arange(6))
    assert (found[SAME].median, found[SAME].above, found[DIFFERENT].above) == (None, None, None)
    assert (sum(found[SAME].counts), sum(found[DIFFERENT].counts)) == (0, 15)


def test_a_split_with_nan_is_told_and_leaves_the_others() -> None:
    bad = on_circle(ANGLES)
    bad[1, 0] = np.nan
    splits = {"train": LabelledFeatures(bad, LABELS, ("note",)), "test": LabelledFeatures(on_circle(ANGLES), LABELS)}
    train, _, test, _ = pair_histograms(splits, run="one", epoch=3, ranked=FC6)
    assert train.notes == ("note", "features: 1 of 6 feature rows hold NaN or Inf")
    assert (sum(train.counts), train.median) == (0, None)
    assert (sum(test.counts), test.notes) == (6, ())


def test_a_zero_vector_has_the_cosine_0() -> None:
    found = of(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([0, 0]))
    assert found[SAME].median == pytest.approx(0, abs=1e-6)


def test_images_of_different_folds_are_no_pair() -> None:
    rng, labels, folds = np.random.default_rng(4), np.repeat(np.arange(6), 3), np.repeat([0, 1, 2], 6)
    features = rng.normal(size=(18, 4))
    split = LabelledFeatures(features, labels, folds=folds)
    found = {one.pairs: sum(one.counts) for one in pair_histograms({"test": split}, run="a", epoch=0, ranked=FC6)}
    # in each fold two classes of three images: 2 x 3 pairs of one class, 9 of two
    assert found == {SAME: 3 * 6, DIFFERENT: 3 * 9}
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = sorted(
        float(units[i] @ units[j])
        for i in range(18)
        for j in range(i)
        if labels[i] == labels[j] and folds[i] == folds[j]
    )
    (same, _) = pair_histograms({"test": split}, run="a", epoch=0, ranked=FC6)
    assert same.median == pytest.approx(np.median(cosines), abs=2e-6)


def spectrum_of(features: NDArray[np.floating]) -> Curve:
    return spectrum(features, run="one", epoch=3, split="test", ranked=FC6)


def test_shares_by_hand() -> None:
    # three unit vectors along x and one along y, whatever their lengths: mean squares 3/4 and 1/4
    curve = spectrum_of(np.array([[1.0, 0], [2, 0], [-3, 0], [0, 5]]))
    assert curve.values == pytest.approx((0.75, 0.25))
    assert (curve.places, curve.n, curve.notes) == ((1, 2), 4, ())
    assert (curve.measure, curve.axis) == ("share of the variance", "dimension")


def test_shares_are_the_eigenvalues_of_the_mean_products() -> None:
    features = np.random.default_rng(0).normal(size=(50, 6)) + 1
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    expected = np.linalg.eigvalsh(units.T @ units / 50)[::-1]
    assert spectrum_of(features).values == pytest.approx(tuple(expected), abs=1e-12)


@pytest.mark.parametrize(("rows", "dim"), [(60, 7), (7, 60)])
def test_the_effective_rank_is_that_of_the_metric(rows: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    features[:, -1] = 0
    expected = EffectiveRank()(retrieval(features, np.arange(rows) % 3))["effective-rank"]
    assert effective_rank(spectrum_of(features)) == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr("layerprobe.measure.distributions._ROWS", 16)  # in several blocks
    assert effective_rank(spectrum_of(features)) == pytest.approx(expected, rel=1e-12)


def test_directions_without_variance_are_left_out() -> None:
    curve = spectrum_of(np.ones((5, 3)))
    assert curve.places == (1,)
    assert curve.values == pytest.approx((1.0,))
    assert effective_rank(curve) == pytest.approx(1)


@pytest.mark.parametrize(
    ("value", "note"),
    [(np.nan, "features: 4 of 4 feature rows hold NaN or Inf"), (0, "no spectrum: all features are zero")],
)
def test_features_without_a_spectrum_say_why(value: float, note: str) -> None:
    curve = spectrum_of(np.full((4, 2), value))
    assert (curve.values, curve.notes) == ((None,), (note,))
    assert effective_rank(curve) is None
