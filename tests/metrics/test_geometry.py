from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import entropy, skew
from torch.nn.functional import pdist

from layerprobe.metrics import geometry
from layerprobe.metrics.geometry import Alignment, EffectiveRank, Hubness, IntraInter, SpectralDecay, TwoNN, Uniformity
from layerprobe.ranking import retrieval
from layerprobe.system.errors import DataError, NumericError

ALL = (IntraInter, Alignment, Uniformity, SpectralDecay, EffectiveRank)


def measured(metric: Any, features: ArrayLike, labels: ArrayLike | None = None, **more: Any) -> float:
    features = np.asarray(features)
    labels = np.arange(len(features)) % 2 if labels is None else labels
    (value,) = metric()(retrieval(features, labels, **more)).values()
    assert isinstance(value, float)
    return value


def rows(count: int, dim: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(count, dim)) + 0.5


def unit(features: NDArray[Any]) -> NDArray[np.float64]:
    vectors: NDArray[np.float64] = features / np.linalg.norm(features, axis=1, keepdims=True)
    return vectors


def on_circle(*degrees: float) -> NDArray[np.float64]:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


@pytest.mark.parametrize(
    ("metric", "name"),
    [*zip(ALL, ["intra-inter", "alignment", "uniformity", "rho", "effective-rank"], strict=True)],
)
def test_the_name(metric: Any, name: str) -> None:
    assert list(metric()(retrieval(rows(6, 2), [0, 0, 0, 1, 1, 1]))) == [name]


@pytest.mark.parametrize("metric", ALL)
def test_lengths_do_not_matter(metric: Any) -> None:
    features = rows(12, 3)
    scaled = features * np.random.default_rng(1).uniform(0.1, 9, (12, 1))
    assert measured(metric, scaled) == pytest.approx(measured(metric, features), abs=1e-12)


@pytest.mark.parametrize("metric", ALL)
def test_the_order_of_the_items_does_not_matter(metric: Any) -> None:
    features, labels, order = rows(12, 3), np.arange(12) % 3, np.random.default_rng(1).permutation(12)
    assert measured(metric, features[order], labels[order]) == pytest.approx(
        measured(metric, features, labels), abs=1e-12
    )


@pytest.mark.parametrize("metric", ALL)
def test_tensors_of_float32_are_summed_in_float64(metric: Any) -> None:
    features = rows(5000, 3).astype(np.float32)
    (value,) = metric()(retrieval(torch.from_numpy(features), np.arange(5000) % 7)).values()
    assert value == pytest.approx(measured(metric, features.astype(np.float64), np.arange(5000) % 7), rel=1e-11)


@pytest.mark.parametrize("metric", ALL)
def test_a_gallery_changes_nothing(metric: Any) -> None:
    searched = measured(metric, rows(12, 3), gallery=rows(4, 3, 9), gallery_labels=[0, 0, 1, 1])
    assert searched == measured(metric, rows(12, 3))


@pytest.mark.parametrize("metric", ALL)
def test_the_features_are_left_as_they_are(metric: Any) -> None:
    features = unit(rows(12, 3))
    before = features.copy()
    measured(metric, features)
    assert (features == before).all()


@pytest.mark.parametrize("metric", ALL)
def test_nan_is_an_error(metric: Any) -> None:
    with pytest.raises(NumericError, match="1 of 2 feature rows hold NaN or Inf"):
        measured(metric, [[1.0, 2.0], [np.nan, 1.0]], [0, 0])


@pytest.mark.parametrize("metric", ALL)
def test_packed_bits_are_an_error(metric: Any) -> None:
    with pytest.raises(DataError, match="packed bits have no geometry. Measure it before the features are made binary"):
        measured(metric, np.ones((4, 1), np.uint8), similarity="hamming")


def intra_inter_of_pairs(features: NDArray[Any], labels: NDArray[Any]) -> float:
    vectors, within, centres = unit(features), [], []
    for label in np.unique(labels):
        items = vectors[labels == label]
        centres.append(items.mean(0) / np.linalg.norm(items.mean(0)))
        if len(items) > 1:
            within.append(np.mean([1 - a @ b for a, b in combinations(items, 2)]))
    return float(np.mean(within) / np.mean([1 - a @ b for a, b in combinations(centres, 2)]))


def test_intra_inter_is_the_ratio_of_the_means_over_pairs() -> None:
    features, labels = rows(40, 5), np.random.default_rng(2).choice(6, 40, p=np.arange(1, 7) / 21)
    assert measured(IntraInter, features, labels) == pytest.approx(intra_inter_of_pairs(features, labels), abs=1e-12)


def test_intra_inter_by_hand() -> None:
    # Pairs 60 and 0 degrees apart, 1 - cosine 1/2 and 0; centres at 30 and 90 degrees, 1 - cosine 1/2.
    assert measured(IntraInter, on_circle(0, 60, 90, 90), [0, 0, 1, 1]) == pytest.approx(0.25 / 0.5)


def test_a_class_of_one_item_has_a_centre_only() -> None:
    # Within class 0 only, 1/2; centres at 30, 90 and 150 degrees, 1/2, 1/2 and 3/2 apart.
    assert measured(IntraInter, on_circle(0, 60, 90, 150), [0, 0, 1, 2]) == pytest.approx(0.5 / (2.5 / 3))


def test_a_class_that_cancels_out_has_its_centre_at_zero() -> None:
    # Within 2 and 0; the centres are half a squared unit apart.
    assert measured(IntraInter, on_circle(20, 200, 7, 7), [0, 0, 1, 1]) == pytest.approx(1 / 0.5)


def test_tight_classes_keep_their_digits() -> None:
    # The pair's 1 - cosine is that of 1e-6 radians, the centres' 1.
    features = np.array([[1, 5e-7], [1, -5e-7], [0, 1], [0, 1]])
    assert measured(IntraInter, features, [0, 0, 1, 1]) == pytest.approx(1e-12 / 4, rel=1e-9)


# One direction, and the rounding of different lengths.
COLLAPSED = np.outer(np.linspace(0.1, 7, 6), [0.1, 0.2, 0.3])


@pytest.mark.parametrize("features", [np.zeros((6, 3)), np.full((6, 3), 0.1), COLLAPSED])
def test_intra_inter_of_collapsed_features_is_an_error(features: NDArray[np.float64]) -> None:
    with pytest.raises(NumericError, match="the centres of all classes coincide"):
        measured(IntraInter, features, [0, 0, 0, 1, 1, 1])


def test_intra_inter_needs_two_classes() -> None:
    with pytest.raises(DataError, match="intra-inter needs two classes, there is one"):
        measured(IntraInter, rows(4, 2), [3, 3, 3, 3])


@pytest.mark.parametrize("metric", [IntraInter, Alignment])
def test_singletons_alone_are_an_error(metric: Any) -> None:
    with pytest.raises(DataError, match="needs a class of two items, all have one. Give a class two items"):
        measured(metric, rows(3, 2), [0, 1, 2])


def test_alignment_is_the_mean_over_pairs_of_a_class() -> None:
    features, labels = rows(40, 5), np.random.default_rng(2).choice(6, 40, p=np.arange(1, 7) / 21)
    pairs = [
        np.square(a - b).sum() for (a, i), (b, j) in combinations(zip(unit(features), labels, strict=True), 2) if i == j
    ]
    assert measured(Alignment, features, labels) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_alignment_by_hand() -> None:
    # Squared distances 2 - 2 cos: 1 at 60 degrees, 2 at 90, 3 at 120, 4 at 180.
    assert measured(Alignment, on_circle(0, 60, 7, 187), [0, 0, 1, 1]) == pytest.approx((1 + 4) / 2)
    assert measured(Alignment, on_circle(0, 60, 180, 5, 95), [0, 0, 0, 1, 1]) == pytest.approx((1 + 3 + 4 + 2) / 4)


def test_alignment_of_one_class_and_of_duplicates() -> None:
    assert measured(Alignment, on_circle(0, 0, 90), [4, 4, 4]) == pytest.approx(4 / 3)
    assert measured(Alignment, on_circle(0, 0, 90, 90), [0, 0, 1, 1]) == 0


def test_a_zero_vector_is_at_distance_1() -> None:
    assert measured(Alignment, [[0.0, 0.0], [3.0, 4.0]], [0, 0]) == pytest.approx(1)
    assert measured(Uniformity, [[0.0, 0.0], [3.0, 4.0]]) == pytest.approx(-2)


def test_uniformity_is_over_all_pairs_of_different_items(monkeypatch: pytest.MonkeyPatch) -> None:
    features = rows(23, 4)
    expected = pdist(torch.from_numpy(unit(features))).square().mul(-2).exp().mean().log()
    for tile in (1, 5, 8, 23, 2048):
        monkeypatch.setattr(geometry, "_TILE", tile)
        assert measured(Uniformity, features) == pytest.approx(float(expected), abs=1e-12)


def test_uniformity_by_hand() -> None:
    # Squared distances 2, 2 and 4.
    expected = math.log((2 * math.exp(-4) + math.exp(-8)) / 3)
    assert measured(Uniformity, on_circle(0, 90, 180)) == pytest.approx(expected)
    assert measured(Uniformity, on_circle(0, 180)) == pytest.approx(-8)


@pytest.mark.parametrize("features", [np.zeros((6, 3)), np.full((6, 3), 0.1), COLLAPSED])
def test_uniformity_of_collapsed_features_is_0_and_not_above(features: NDArray[np.float64]) -> None:
    assert -1e-12 < measured(Uniformity, features) <= 0


def test_rounding_does_not_bring_uniformity_above_0() -> None:
    # Of some vectors the product with themselves rounds to more than their squares' sum.
    assert all(measured(Uniformity, np.repeat(rows(1, 50, seed), 6, 0)) <= 0 for seed in range(10))


def test_uniformity_needs_two_items() -> None:
    with pytest.raises(DataError, match="uniformity needs two items, there is one"):
        measured(Uniformity, [[1.0, 2.0]])


@pytest.mark.parametrize("shape", [(50, 6), (6, 6), (5, 30), (1, 4), (4, 1)])
def test_the_spectrum_is_that_of_a_whole_decomposition(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    features = rows(*shape)
    values = np.linalg.svd(unit(features), compute_uv=False)
    shares = values / values.sum()
    for block in (1, 7, 4096):
        monkeypatch.setattr(geometry, "_ROWS", block)
        assert measured(SpectralDecay, features) == pytest.approx(
            entropy(np.full(len(values), 1 / len(values)), shares), abs=1e-12
        )
        assert measured(EffectiveRank, features) == pytest.approx(np.exp(entropy(shares)), abs=1e-10)


def test_equal_singular_values_have_no_decay_and_full_rank() -> None:
    features = np.tile(np.eye(4), (3, 1))
    assert measured(SpectralDecay, features) == pytest.approx(0, abs=1e-12)
    assert measured(EffectiveRank, features) == pytest.approx(4)


def test_decay_and_rank_by_hand() -> None:
    # Singular values 2 and 1: shares 2/3 and 1/3.
    features = np.array([[1.0, 0], [1, 0], [1, 0], [1, 0], [0, 1]])
    assert measured(SpectralDecay, features) == pytest.approx(math.log(3 / 4) / 2 + math.log(3 / 2) / 2)
    assert measured(EffectiveRank, features) == pytest.approx(3 / 2 ** (2 / 3))


def test_small_singular_values_count() -> None:
    # 1e-10 of the largest: a product of the features with themselves would have lost it.
    features = np.array([[1, 1e-10], [1, -1e-10]])
    assert measured(SpectralDecay, features) == pytest.approx(-math.log(2) - math.log(1e-10) / 2, rel=1e-6)


@pytest.mark.parametrize("dead", [np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])])
def test_an_unused_dimension_makes_rho_infinite(dead: NDArray[np.float64]) -> None:
    rank = int(dead.sum())
    with pytest.raises(NumericError, match=f"rho is infinite: the features have rank {rank}, not 3"):
        measured(SpectralDecay, rows(20, 3) * dead)


def test_dependent_dimensions_make_rho_infinite() -> None:
    features = rows(20, 2)
    with pytest.raises(NumericError, match="the features have rank 2, not 3"):
        measured(SpectralDecay, np.column_stack([features, features.sum(1)]))


def test_an_unused_dimension_does_not_change_the_effective_rank() -> None:
    features = rows(20, 3)
    wider = np.concatenate([features, np.zeros((20, 2))], 1)
    assert measured(EffectiveRank, wider) == pytest.approx(measured(EffectiveRank, features), abs=1e-12)


def test_collapsed_features_have_effective_rank_1() -> None:
    assert measured(EffectiveRank, COLLAPSED) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("metric", [SpectralDecay, EffectiveRank])
def test_zero_features_have_no_spectrum(metric: Any) -> None:
    with pytest.raises(NumericError, match="has no value: all features are zero"):
        measured(metric, np.zeros((4, 3)))


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize("similarity", ["euclidean", "dot"])
def test_the_similarity_of_a_search_does_not_matter(metric: Any, similarity: str) -> None:
    features = rows(40, 5) * np.random.default_rng(1).uniform(0.1, 10, (40, 1))
    assert measured(metric, features, similarity=similarity) == measured(metric, features)


def intrinsic_dimension(features: Any, similarity: Any = "cosine") -> float:
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
    assert intrinsic_dimension(sphere(dim, 3000)) == pytest.approx(dim, rel=within)


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
    assert intrinsic_dimension(features) == pytest.approx(slope, rel=1e-9)


def test_duplicates_and_lengths_change_nothing() -> None:
    features = sphere(2, 100)
    again = np.concatenate([features, features[:40], 4 * features[:40]])
    assert intrinsic_dimension(again) == pytest.approx(intrinsic_dimension(features), rel=1e-9)


def test_a_collapsed_layer_has_one_different_item() -> None:
    with pytest.raises(DataError, match="two-nn needs 10 different items, there are 1"):
        intrinsic_dimension(np.ones((30, 4)))


def test_items_that_are_all_equally_far_have_no_dimension() -> None:
    with pytest.raises(NumericError, match="the two nearest of every item are equally far"):
        intrinsic_dimension(np.eye(12))


def test_packed_bits_are_refused() -> None:
    with pytest.raises(DataError, match="packed bits have no geometry"):
        intrinsic_dimension(np.zeros((12, 2), np.uint8), "hamming")


def test_two_nn_refuses_a_row_that_is_not_finite() -> None:
    features = np.eye(12)
    features[3, 3] = np.nan
    with pytest.raises(NumericError, match="1 of 12"):
        intrinsic_dimension(features)


def hubness_of(features: Any, similarity: Any = "cosine") -> float:
    values = np.asarray(features)
    return Hubness()(retrieval(values, np.zeros(len(values), int), similarity=similarity))["hubness"]


def test_a_hub_by_hand() -> None:
    # The middle of 20 axes is the nearest of each axis; the other 9 places are shared by the 19 other axes, 9/19 each.
    # The middle's 10 places are shared by the 20 axes. So N is 20 for the middle and 19 * 9/19 + 10/20 = 9.5 for an
    # axis, 10 on average: the second moment is (10^2 + 20 * 0.5^2) / 21 = 5, the third (10^3 - 20 * 0.5^3) / 21 = 47.5.
    features = np.concatenate([np.eye(20), np.ones((1, 20))])
    assert hubness_of(features) == pytest.approx(47.5 / 5**1.5)


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
    assert hubness_of(features, similarity) == pytest.approx(skew(counts))


def test_packed_bits_have_the_hubs_of_their_signs() -> None:
    bits = np.random.default_rng(1).integers(2, size=(40, 24))
    assert hubness_of(np.packbits(bits, axis=1), "hamming") == pytest.approx(hubness_of(2.0 * bits - 1))


@pytest.mark.parametrize("count", [11, 30])
def test_items_that_are_equally_often_neighbours_have_none(count: int) -> None:
    with pytest.raises(NumericError, match="all items are equally often neighbours"):
        hubness_of(np.ones((count, 3)))


def test_ten_items_are_too_few_for_hubs() -> None:
    with pytest.raises(DataError, match="hubness needs more than 10 items, there are 10"):
        hubness_of(np.eye(10))


def test_hubness_of_a_row_that_is_not_finite_is_refused() -> None:
    features = np.eye(12)
    features[3, 3] = np.nan
    with pytest.raises(NumericError, match="1 of 12"):
        hubness_of(features)
