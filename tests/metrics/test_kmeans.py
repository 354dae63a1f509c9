from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from layerprobe.metrics import kmeans as module
from layerprobe.metrics.kmeans import CentroidSearch, Clustering, Points, initial_rows, kmeans, points_of
from layerprobe.system.errors import NumericError


def blobs(count: int, dim: int, classes: int, spread: float, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, dim))
    return (centres[np.arange(count) % classes] + spread * rng.standard_normal((count, dim))).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Plain:
    labels: NDArray[np.int64]
    inertia: float
    iterations: int


def plain_lloyd(features: NDArray[np.floating], first: NDArray[np.int64], most: int = 100) -> Plain:
    """Lloyd's algorithm with nothing but float64 loops; no cluster may run empty."""
    rows = features.astype(np.float64)
    centroids, labels = rows[first], np.full(len(rows), -1)
    for iteration in range(1, most + 1):  # noqa: B007 - used below
        distances = ((rows[:, None] - centroids) ** 2).sum(2)
        before, labels = labels, distances.argmin(1)
        centroids = np.stack([rows[labels == j].mean(0) for j in range(len(first))])
        if (before == labels).all():
            break
    return Plain(labels, float(((rows - centroids[labels]) ** 2).sum()), iteration)


def same(first: Clustering, second: Clustering) -> bool:
    return (first.labels == second.labels).all() and (first.inertia, first.iterations, first.converged) == (
        second.inertia, second.iterations, second.converged,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "rows",
    [blobs(300, 8, 6, 0.05), blobs(400, 12, 9, 1.0), np.random.default_rng(1).random((350, 5), np.float32) + 100],
    ids=["separate", "overlapping", "offset"],
)
def test_labels_and_inertia_are_those_of_a_plain_float64_lloyd(
    rows: NDArray[np.float32], dtype: type[np.floating]
) -> None:
    rows = rows.astype(dtype)
    for seed, found in enumerate(kmeans(rows, 7, seeds=range(5))):
        expected = plain_lloyd(rows, initial_rows(rows, 7, seed))
        assert (found.labels == expected.labels).all()
        assert found.inertia == pytest.approx(expected.inertia, rel=1e-10)
        assert (found.iterations, found.converged) == (expected.iterations, True)


def test_inertia_is_that_of_sklearn_from_the_same_rows() -> None:
    rows = blobs(600, 16, 10, 0.8)
    for seed, found in enumerate(kmeans(rows, 10, seeds=range(4))):
        peer = KMeans(10, init=rows[initial_rows(rows, 10, seed)], n_init=1, tol=0, max_iter=100).fit(rows)
        assert found.inertia == pytest.approx(peer.inertia_, rel=1e-5)
        assert (found.labels == peer.labels_).all()


def test_a_limit_ends_a_restart_before_its_fixed_point() -> None:
    rows = blobs(400, 12, 9, 1.0)
    expected = plain_lloyd(rows, initial_rows(rows, 9, 0), 3)
    (found,) = kmeans(rows, 9, seeds=[0], iterations=3)
    assert (found.labels == expected.labels).all()
    assert found.inertia == pytest.approx(expected.inertia, rel=1e-10)
    assert (found.iterations, found.converged) == (3, False)


def test_a_restart_does_not_depend_on_those_beside_it() -> None:
    rows = blobs(700, 10, 12, 1.0)
    seeds = [5, 3, 11, 0, 8]
    together = kmeans(rows, 12, seeds=seeds)
    assert len({clustering.iterations for clustering in together}) > 1
    for seed, clustering in zip(seeds, together, strict=True):
        assert same(clustering, kmeans(rows, 12, seeds=[seed])[0])


@pytest.mark.parametrize("side", [2, 5, 16])
def test_blocks_do_not_change_a_clustering(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = blobs(70, 6, 12, 1.0)
    whole = kmeans(rows, 12, seeds=range(3))
    monkeypatch.setattr(Points, "side", side)
    assert all(same(*pair) for pair in zip(whole, kmeans(rows, 12, seeds=range(3)), strict=True))


def test_sums_in_parts_give_the_same_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = blobs(300, 6, 12, 1.0)
    (whole,) = kmeans(rows, 12, seeds=[0])
    monkeypatch.setattr(module, "_SUMMED_ROWS", 17)
    (parts,) = kmeans(rows, 12, seeds=[0])
    assert (whole.labels == parts.labels).all()
    assert parts.inertia == pytest.approx(whole.inertia, rel=1e-12)


def test_seeds_give_different_rows_again_and_again() -> None:
    rows = blobs(50, 4, 5, 1.0)
    first = initial_rows(rows, 8, 0)
    assert len(set(first.tolist())) == 8
    assert (first == initial_rows(torch.from_numpy(rows), 8, 0)).all()
    assert (first != initial_rows(rows, 8, 1)).any()


def test_first_rows_differ_in_value() -> None:
    # Rows 0-7 are equal, -0 is 0; 8 and 9 are the others.
    rows = np.array([[0.0, 0.0]] * 4 + [[-0.0, 0.0]] * 4 + [[1.0, 0.0], [2.0, 0.0]])
    for seed in range(10):
        assert sorted(rows[initial_rows(rows, 3, seed), 0].tolist()) == [0, 1, 2]
    assert len(initial_rows(rows, 5, 0)) == 3


def test_fewer_different_rows_than_clusters_are_a_cluster_each() -> None:
    rows = np.repeat(np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32), [5, 1, 4], axis=0)
    (found,) = kmeans(rows, 6, seeds=[0])
    assert len(set(zip(found.labels.tolist(), np.repeat([0, 1, 2], [5, 1, 4]).tolist(), strict=True))) == 3
    assert found.labels.max() == 2
    assert found.inertia == pytest.approx(0, abs=1e-12)
    assert found.converged


def test_collapsed_rows_are_one_cluster() -> None:
    (found,) = kmeans(np.full((9, 3), 0.1, np.float32), 4, seeds=[2])
    assert (found.labels.tolist(), found.inertia, found.converged) == ([0] * 9, 0.0, True)


def test_one_cluster_has_the_scatter_as_inertia() -> None:
    rows = blobs(40, 3, 4, 1.0).astype(np.float64)
    (found,) = kmeans(rows, 1, seeds=[0])
    assert found.inertia == pytest.approx(((rows - rows.mean(0)) ** 2).sum(), rel=1e-12)


def test_as_many_clusters_as_rows() -> None:
    for found in kmeans(blobs(12, 3, 4, 1.0), 12, seeds=range(20)):
        assert sorted(found.labels.tolist()) == list(range(12))
        assert 0 <= found.inertia < 1e-12


def emptied(monkeypatch: pytest.MonkeyPatch, values: list[float], firsts: list[float], iterations: int) -> Clustering:
    """Rows on a line, started from centroids that need not be rows."""
    rows = np.array(values)[:, None]
    monkeypatch.setattr(module, "initial_rows", lambda *given: np.arange(len(firsts)))
    start = module._Restarts.__init__

    def elsewhere(self: module._Restarts, points: Points, chosen: torch.Tensor) -> None:
        start(self, points, chosen)
        self.centroids = torch.tensor(firsts, dtype=torch.float64)[None, :, None]

    monkeypatch.setattr(module._Restarts, "__init__", elsewhere)
    return kmeans(rows, len(firsts), seeds=[0], iterations=iterations)[0]


def test_an_empty_cluster_takes_the_row_farthest_from_its_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    # 0, 1, 5 and 10, 11: the centroid at 100 has nothing; the means are 2 and 10.5, so that 5 is farthest.
    found = emptied(monkeypatch, [0, 1, 5, 10, 11], [100, 0, 10], 9)
    assert found.labels.tolist() == [1, 1, 0, 2, 2]
    assert found.inertia == pytest.approx(0.5 + 0 + 0.5)
    assert found.converged


def test_empty_clusters_leave_no_other_one_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    # Means 10 and 101: the pair 0, 20 is farthest, but taking both would empty it; then the first of 100 and 102.
    found = emptied(monkeypatch, [0, 20, 100, 102], [10, 101, 500, 600], 9)
    assert found.labels.tolist() == [2, 0, 3, 1]
    assert found.inertia == 0


def test_no_cluster_is_left_empty() -> None:
    rng = np.random.default_rng(0)
    # Few rows that are much alike in many clusters run empty now and then.
    rows = np.round(rng.standard_normal((300, 2)), 1).astype(np.float32)
    for found in kmeans(rows, 100, seeds=range(20)):
        assert np.bincount(found.labels, minlength=100).min() > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_counted(bad: float) -> None:
    rows = blobs(30, 4, 3, 1.0)
    rows[3, 1] = rows[7, 0] = rows[7, 2] = bad
    with pytest.raises(NumericError, match="2 of 30 feature rows hold NaN or Inf"):
        kmeans(rows, 3, seeds=[0])


@pytest.mark.parametrize("k", [0, 31])
def test_k_out_of_range(k: int) -> None:
    with pytest.raises(ValueError, match=f"k = {k}: must be at least 1 and at most the number of rows, 30"):
        kmeans(blobs(30, 4, 3, 1.0), k, seeds=[0])


def test_no_iterations() -> None:
    with pytest.raises(ValueError, match="iterations = 0"):
        kmeans(blobs(30, 4, 3, 1.0), 2, seeds=[0], iterations=0)


def test_features_must_be_a_matrix() -> None:
    with pytest.raises(ValueError, match=r"expected \(N, D\), neither 0, got \(4,\)"):
        kmeans(np.zeros(4), 2, seeds=[0])


def test_no_seeds_no_clusterings() -> None:
    assert kmeans(blobs(30, 4, 3, 1.0), 2, seeds=[]) == ()


def test_features_stay_as_they_are() -> None:
    rows = torch.from_numpy(blobs(60, 4, 3, 1.0))
    before = rows.clone()
    kmeans(rows, 5, seeds=[0])
    assert torch.equal(rows, before)


@pytest.mark.gpu
def test_cuda_gives_the_labels_of_the_cpu() -> None:
    rows = torch.from_numpy(blobs(900, 20, 30, 1.0))
    on_cpu, on_cuda = kmeans(rows, 30, seeds=range(3)), kmeans(rows.cuda(), 30, seeds=range(3))
    assert all((first.labels == second.labels).all() for first, second in zip(on_cpu, on_cuda, strict=True))


def brute_force(rows: NDArray[np.floating], centroids: NDArray[np.float64]) -> NDArray[np.int64]:
    """(N, R) by all float64 distances."""
    wide = rows.astype(np.float64)
    return np.stack([((wide[:, None] - one) ** 2).sum(2).argmin(1) for one in centroids], 1)


def nearest(rows: NDArray[np.floating], centroids: NDArray[np.float64]) -> NDArray[np.int64]:
    search = CentroidSearch(points_of(torch.from_numpy(rows)), *centroids.shape[:2])
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
    settle, settled = CentroidSearch._settle, []

    def counted(search: CentroidSearch, places: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        settled.append(len(places))
        return settle(search, places, *rest)

    monkeypatch.setattr(CentroidSearch, "_settle", counted)
    nearest(rows, centroids)
    assert sum(settled) < 25


@pytest.mark.parametrize("kept", [0, 2**24])
@pytest.mark.parametrize("moving", [0, 1, 7, 24])
def test_a_search_goes_on_from_the_last(moving: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    monkeypatch.setattr(module, "_KEPT", kept)
    monkeypatch.setattr(Points, "side", 16)
    rows, centroids = rng.standard_normal((90, 4)), rng.standard_normal((3, 8, 4))
    search = CentroidSearch(points_of(torch.from_numpy(rows)), 3, 8)
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

    search = CentroidSearch(replace(points, product=replace(points.product, multiply=multiply)), 2, 6)
    centroids = torch.from_numpy(rng.standard_normal((2, 6, 4)))
    search.nearest(centroids)
    moved = centroids.clone()
    moved[1, 3:5] += 0.5
    search.nearest(moved)
    assert widths == [12, 2]


def test_sets_can_leave_a_search() -> None:
    rng = np.random.default_rng(9)
    rows, centroids = rng.standard_normal((90, 4)), rng.standard_normal((3, 8, 4))
    search = CentroidSearch(points_of(torch.from_numpy(rows)), 3, 8)
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
