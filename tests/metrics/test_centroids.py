from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.metrics import centroids as module
from layerprobe.metrics.centroids import Points, Search, points_of


def brute_force(rows: NDArray[np.floating], centroids: NDArray[np.float64]) -> NDArray[np.int64]:
    """(N, R) by all float64 distances."""
    wide = rows.astype(np.float64)
    return np.stack([((wide[:, None] - one) ** 2).sum(2).argmin(1) for one in centroids], 1)


def nearest(rows: NDArray[np.floating], centroids: NDArray[np.float64]) -> NDArray[np.int64]:
    search = Search(points_of(torch.from_numpy(rows)), *centroids.shape[:2])
    return search.nearest(torch.from_numpy(centroids)).numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_nearest_is_float64_brute_force(dtype: type[np.floating], offset: float) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((500, 16)) + offset).astype(dtype)
    centroids = rng.standard_normal((3, 40, 16)) + offset
    assert (nearest(rows, centroids) == brute_force(rows, centroids)).all()


@pytest.mark.parametrize("scale", [1e-140, 1e-30, 1e25, 1e140])
def test_any_scale_of_float64(scale: float) -> None:
    rng = np.random.default_rng(1)
    rows, centroids = rng.standard_normal((200, 8)), rng.standard_normal((1, 20, 8))
    assert (nearest(rows * scale, centroids * scale) == brute_force(rows, centroids)).all()


def test_float32_scores_alone_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    rows, middle = rng.standard_normal((300, 6)), rng.standard_normal(6)
    centroids = middle + 1e-7 * rng.standard_normal((1, 30, 6))
    right = brute_force(rows, centroids)
    assert (nearest(rows, centroids) == right).all()
    monkeypatch.setattr(Points, "windows", lambda points, lengths, best, longest: torch.zeros_like(best))
    assert (nearest(rows, centroids) != right).any()


def test_the_first_of_those_that_tie() -> None:
    rows = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]])
    centroids = np.array([[[9.0, 9.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]])
    assert nearest(rows, centroids).ravel().tolist() == [1, 1, 1]


def test_rounding_within_the_tie_window_is_a_tie() -> None:
    for far, expected in ((1 + 1e-13, 0), (1 + 1e-10, 1)):
        assert nearest(np.zeros((1, 1)), np.array([[[far], [-1.0]]])).item() == expected


@pytest.mark.parametrize("side", [1, 3, 7, 8, 64])
def test_tiles_do_not_change_the_answer(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    rows = rng.integers(-2, 3, (60, 3)).astype(np.float32)
    centroids = rng.integers(-2, 3, (1, 8, 3)).astype(np.float64)
    monkeypatch.setattr(Points, "side", side)
    assert (nearest(rows, centroids) == brute_force(rows, centroids)).all()


def test_pairs_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    rows = rng.integers(-1, 2, (50, 3)).astype(np.float32)
    centroids = rng.integers(-1, 2, (2, 9, 3)).astype(np.float64)
    monkeypatch.setattr(module, "_GATHERED", 21)
    assert (nearest(rows, centroids) == brute_force(rows, centroids)).all()


def test_collapsed_rows_have_a_nearest_centroid() -> None:
    rows = np.full((5, 3), 0.1, np.float32)
    assert (nearest(rows, np.array([[[0.0, 0, 0], [0.1, 0.1, 0.2]]])) == 1).all()


def test_scatter_is_the_squared_distance_to_the_centre() -> None:
    rows = np.random.default_rng(6).standard_normal((50, 4)) * 37
    points = points_of(torch.from_numpy(rows))
    assert points.scatter == pytest.approx(((rows - points.centre.numpy()) ** 2).sum(), rel=1e-13)


def with_outliers(bulk: float) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """500 rows close together and 5 far away; 40 of them, 3 far away, as centroids."""
    rng = np.random.default_rng(10)
    rows = (1 + bulk * rng.standard_normal((505, 32))).astype(np.float32)
    rows[:5] = rng.standard_normal((5, 32))
    return rows, rows[None, 2:42].astype(np.float64)


@pytest.mark.parametrize("bulk", [1e-1, 1e-3, 1e-5])
def test_nearest_beside_outliers_is_float64_brute_force(bulk: float) -> None:
    rows, centroids = with_outliers(bulk)
    assert (nearest(rows, centroids) == brute_force(rows, centroids)).all()


@pytest.mark.parametrize("bulk", [1e-1, 1e-3, 1e-5])
def test_outliers_leave_little_to_float64(bulk: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, centroids = with_outliers(bulk)
    settle, settled = Search._settle, []

    def counted(search: Search, places: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        settled.append(len(places))
        return settle(search, places, *rest)

    monkeypatch.setattr(Search, "_settle", counted)
    nearest(rows, centroids)
    assert sum(settled) < 25


@pytest.mark.parametrize("kept", [0, 2**24])
@pytest.mark.parametrize("moving", [0, 1, 7, 24])
def test_a_search_goes_on_from_the_last(moving: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    monkeypatch.setattr(module, "_KEPT", kept)
    monkeypatch.setattr(Points, "side", 16)
    rows, centroids = rng.standard_normal((90, 4)), rng.standard_normal((3, 8, 4))
    search = Search(points_of(torch.from_numpy(rows)), 3, 8)
    assert bool(search.keeps) == bool(kept)
    for _ in range(3):
        found = search.nearest(torch.from_numpy(centroids)).numpy()
        assert (found == brute_force(rows, centroids)).all()
        centroids = centroids.copy()
        centroids.reshape(24, 4)[rng.permutation(24)[:moving]] += rng.standard_normal((moving, 4))


def test_only_centroids_that_moved_are_multiplied_again() -> None:
    rng = np.random.default_rng(8)
    points = points_of(torch.from_numpy(rng.standard_normal((50, 4))))
    widths = []

    def multiply(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        widths.append(len(second))
        return first @ second.T

    search = Search(replace(points, product=replace(points.product, multiply=multiply)), 2, 6)
    centroids = torch.from_numpy(rng.standard_normal((2, 6, 4)))
    search.nearest(centroids)
    moved = centroids.clone()
    moved[1, 3:5] += 0.5
    search.nearest(moved)
    assert widths == [12, 2]


def test_sets_can_leave_a_search() -> None:
    rng = np.random.default_rng(9)
    rows, centroids = rng.standard_normal((90, 4)), rng.standard_normal((3, 8, 4))
    search = Search(points_of(torch.from_numpy(rows)), 3, 8)
    search.nearest(torch.from_numpy(centroids))
    search.keep([0, 2])
    centroids = centroids[[0, 2]]
    centroids[1, 5] -= 1
    assert (search.nearest(torch.from_numpy(centroids)).numpy() == brute_force(rows, centroids)).all()


def test_sets_at_once_fill_a_product_and_keep_their_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    points = points_of(torch.zeros(100, 2))
    monkeypatch.setattr(Points, "side", 64)
    monkeypatch.setattr(module, "_KEPT", 8 * 100 * 5)
    # 16 sets of 8 are two products wide, 5 can be kept; of 41 centroids none can; of 200 one must do.
    assert [points.sets_at_once(k) for k in (8, 41, 200)] == [5, 3, 1]
