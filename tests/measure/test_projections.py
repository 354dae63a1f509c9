from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.measure.projections import kept_neighbours, principal_coordinates, project, require_method
from layerprobe.system.errors import DataError, EnvironmentFault, NumericError
from layerprobe.values.retrieval import Similarity
from layerprobe.values.views import ProjectionMethod

Array = NDArray[np.float64]


def by_svd(features: Array) -> Array:
    """U S of NumPy's decomposition, in which the entry of each column that is farthest from 0 is positive."""
    left, values, _ = np.linalg.svd(features - features.mean(0), full_matrices=False)
    scores = left * values
    return np.asarray(scores * np.sign(scores[np.abs(scores).argmax(0), range(scores.shape[1])]))


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (12, 12), (5, 2)])
def test_principal_coordinates_are_those_of_numpys_svd(shape: tuple[int, int]) -> None:
    features = np.random.default_rng(0).normal(3, 1, shape) * np.arange(1, shape[1] + 1)
    coordinates, _ = principal_coordinates(features, 4)
    expected = by_svd(features)[:, :4]
    np.testing.assert_allclose(coordinates, expected, atol=1e-10 * np.abs(expected).max())


def test_shares_are_those_of_the_whole_variance() -> None:
    features = np.random.default_rng(0).normal(size=(30, 5))
    variances = np.linalg.svd(features - features.mean(0), compute_uv=False) ** 2
    np.testing.assert_allclose(principal_coordinates(features, 3)[1], variances[:3] / variances.sum(), rtol=1e-10)


def test_for_cosine_the_projection_is_of_vectors_of_length_1() -> None:
    features = np.random.default_rng(0).normal(size=(20, 6))
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    np.testing.assert_allclose(project(features, "pca", "cosine", 0)[0], by_svd(units)[:, :2], atol=1e-10)
    np.testing.assert_allclose(project(features, "pca", "euclidean", 0)[0], by_svd(features)[:, :2], atol=1e-10)


@pytest.mark.parametrize("offset", [1.0, 1e6])
def test_features_that_are_all_the_same_are_at_0(offset: float) -> None:
    features = np.tile(offset * np.random.default_rng(0).normal(size=33), (50, 1))
    for points, shares in (project(features, "pca", "cosine", 0), project(features, "pca", "euclidean", 0)):
        assert not points.any()
        assert not shares.any()


def test_features_on_a_line_have_a_second_coordinate_of_0() -> None:
    line = np.random.default_rng(0).normal(size=(9, 1))
    points, shares = project(line * np.ones(4), "pca", "euclidean", 0)
    np.testing.assert_allclose(np.abs(points[:, 0]), np.abs(line - line.mean())[:, 0] * 2)
    assert not points[:, 1].any()
    np.testing.assert_allclose(shares, [1, 0])
    assert project(line, "pca", "euclidean", 0)[0].shape == (9, 2)


def test_tsne_of_one_seed_is_one_picture() -> None:
    features = np.random.default_rng(0).normal(size=(24, 60)) + np.repeat(np.eye(60)[:3] * 9, 8, 0)
    first, again = (project(features, "tsne", "cosine", 3)[0] for _ in range(2))
    assert np.array_equal(first, again)
    centres = first.reshape(3, 8, 2).mean(1)
    assert np.linalg.norm(first.reshape(3, 8, 2) - centres[:, None], axis=2).max() < np.linalg.norm(
        centres[0] - centres[1]
    )


@pytest.mark.parametrize("method", ["tsne", "umap"])
def test_a_collapsed_layer_stays_in_one_place(method: ProjectionMethod) -> None:
    assert not project(np.ones((30, 8)), method, "cosine", 0)[0].any()


def test_umap_of_one_seed_is_one_picture() -> None:
    pytest.importorskip("umap")
    features = np.random.default_rng(0).normal(size=(24, 60)) + np.repeat(np.eye(60)[:3] * 9, 8, 0)
    first, again = (project(features, "umap", "cosine", 3)[0] for _ in range(2))
    assert first.shape == (24, 2)
    assert np.array_equal(first, again)


def test_three_images_are_too_few_for_tsne() -> None:
    with pytest.raises(DataError, match="tsne of 3 images: it needs 4. Draw them by pca"):
        project(np.eye(3), "tsne", "cosine", 0)


def test_umap_that_is_not_installed_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(EnvironmentFault, match=r"umap is not installed. pip install 'umap-learn>="):
        require_method("umap")


def test_nan_is_refused() -> None:
    with pytest.raises(NumericError, match="1 of 4 feature rows hold NaN or Inf"):
        project(np.array([[1, 2], [np.nan, 0], [3, 4], [5, 6]]), "pca", "cosine", 0)


def brute_force(features: Array, points: Array, similarity: Similarity) -> tuple[list[float], float]:
    """Every pair by itself: the probability of each item to be among the k nearest of an image, in both; summed."""
    count = len(features)
    k = min(10, count - 1)

    def closeness(a: Array, b: Array, how: str) -> float:
        if how == "cosine":
            lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
            return float(a @ b) / lengths if lengths else 0.0
        return float(a @ b) if how == "dot" else -float(((a - b) ** 2).sum())

    def chances(rows: Array, query: int, how: str) -> dict[int, float]:
        others = {i: round(closeness(rows[query], rows[i], how), 9) for i in range(count) if i != query}
        last = sorted(others.values(), reverse=True)[k - 1]
        values = list(others.values())
        at_last = (k - sum(value > last for value in values)) / values.count(last)
        return {i: 1.0 if value > last else at_last if value == last else 0.0 for i, value in others.items()}

    shares = []
    for query in range(count):
        layer, picture = chances(features, query, similarity), chances(points, query, "euclidean")
        shares.append(sum(layer[i] * picture[i] for i in layer) / k)
    return shares, k / (count - 1)


GRID = np.random.default_rng(1).integers(-2, 3, (40, 3)).astype(float)  # many ties and duplicates, some zero vectors
CASES = {
    "ties and duplicates": GRID,
    "no ties": np.random.default_rng(2).normal(size=(35, 8)),
    "a collapsed layer": np.ones((30, 4)),
    "fewer than 11": np.random.default_rng(3).normal(size=(7, 4)),
    "11": np.random.default_rng(3).normal(size=(11, 4)),
    "12": np.random.default_rng(3).normal(size=(12, 4)),
    "2": np.array([[1.0, 0.0], [0.0, 1.0]]),
    "an image apart": np.concatenate([GRID, [[50.0, -70.0, 3.0]]]),
}


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("features", CASES.values(), ids=CASES)
def test_the_share_of_neighbours_kept_is_that_of_brute_force(features: Array, similarity: Similarity) -> None:
    points = project(features, "pca", similarity, 0)[0]
    shares, chance = kept_neighbours(features, points, similarity)
    expected, level = brute_force(features, points, similarity)
    np.testing.assert_allclose(shares, expected, atol=1e-12)
    assert chance == level


def test_a_collapsed_layer_is_at_chance() -> None:
    # each of 29 others is among the 10 nearest with a probability of 10 / 29, in layer and picture: 29 (10 / 29)^2 / 10
    shares, chance = kept_neighbours(np.ones((30, 4)), np.zeros((30, 2)), "cosine")
    np.testing.assert_allclose(shares, 10 / 29)
    assert chance == 10 / 29


def test_a_layer_of_two_dimensions_keeps_all() -> None:
    features = np.random.default_rng(0).normal(size=(50, 2))
    np.testing.assert_allclose(kept_neighbours(features, features, "euclidean")[0], 1)


def test_one_image_has_no_neighbours() -> None:
    shares, chance = kept_neighbours(np.ones((1, 4)), np.zeros((1, 2)), "cosine")
    assert (len(shares), chance) == (0, 0)
