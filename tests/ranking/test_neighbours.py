from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from layerprobe import nearest_neighbours
from layerprobe.ranking import neighbours as module
from layerprobe.ranking.rounded import Rounded
from layerprobe.system.errors import EnvironmentFault, NumericError
from layerprobe.values.retrieval import Neighbours
from tests.ranking.conftest import KINDS, Array, alike, make, window

Similarity = Literal["cosine", "dot", "euclidean", "hamming"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot", "euclidean", "hamming")
Backend = Literal["torch", "faiss"]


def brute(
    features: Array, gallery: Array, own: Sequence[int], k: int, similarity: Similarity
) -> tuple[list[list[int]], list[list[float]]]:
    """Every pair by itself in float64, sorted: the closest that is left and its ties, by index, and so on."""
    indices, values = [], []
    for query, itself in zip(features, own, strict=True):
        near = {j: alike(query, item, similarity) for j, item in enumerate(gallery) if j != itself}
        width, left, order = window(query, gallery, similarity), sorted(near, key=near.__getitem__, reverse=True), []
        while left:
            tied = [j for j in left if near[j] >= near[left[0]] - width]
            order += sorted(tied)
            left = left[len(tied) :]
        indices.append(order[:k])
        values.append([near[j] for j in order[:k]])
    return indices, values


def check(found: Neighbours, features: Array, gallery: Array, own: Sequence[int], similarity: Similarity) -> None:
    indices, values = brute(features, gallery, own, found.indices.shape[1], similarity)
    assert found.indices.tolist() == indices
    near = np.array(values)
    if similarity == "euclidean":
        near = -np.sqrt(-near)
    scale = np.abs(features).max() * np.abs(gallery).max() * features.shape[1] if similarity == "dot" else 1
    np.testing.assert_allclose(found.similarities, near, rtol=1e-9, atol=1e-12 * scale)
    assert [found.indices.dtype.name, found.similarities.dtype.name] == ["int64", "float64"]


def nearly_duplicated(rng: np.random.Generator, labels: NDArray[np.int64], d: int) -> Array:
    # float32 cannot tell the items of a cluster apart, float64 can.
    return KINDS["duplicated"](rng, labels, d) + 1e-9 * rng.normal(size=(len(labels), d))


def features_of(kind: str, similarity: Similarity, rng: np.random.Generator, n: int) -> NDArray[Any]:
    labels, d = np.arange(n) % 5, int(rng.integers(1, 12))
    features = nearly_duplicated(rng, labels, d) if kind == "nearly duplicated" else make(kind, rng, labels, d)
    return np.packbits(features > np.median(features), axis=1) if similarity == "hamming" else features


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("kind", [*KINDS, "nearly duplicated"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_neighbours_equal_a_sort_of_all_pairs(kind: str, similarity: Similarity, backend: Backend, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 26))
    features, split = features_of(kind, similarity, rng, n), int(rng.integers(1, n - 2))
    with pytest.MonkeyPatch.context() as patch:
        # Hardly a candidate to spare, and several blocks: the bound has to tell which queries need more.
        patch.setattr(module, "_SPARE", int(rng.integers(0, 3)))
        patch.setattr(module, "BLOCK_ROWS", int(rng.integers(3, 20)))
        patch.setattr(module, "_CELLS", int(rng.integers(1, 500)))

        found = nearest_neighbours(features, int(rng.integers(1, n)), backend=backend, similarity=similarity)
        check(found, features, features, range(n), similarity)
        assert (found.backend, found.similarity) == (backend, similarity)

        queries, gallery = features[:split], features[split:]
        k = int(rng.integers(1, n - split))
        found = nearest_neighbours(queries, k, gallery, backend, similarity=similarity)
        check(found, queries, gallery, [-1] * split, similarity)

        # Some queries are in the gallery, in another order.
        order = rng.permutation(n)[: n - split]
        names = [f"{i}.jpg" for i in range(n)]
        found = nearest_neighbours(
            queries,
            k,
            features[order],
            backend,
            similarity=similarity,
            ids=names[:split],
            gallery_ids=[names[i] for i in order],
        )
        own = [int(np.flatnonzero(order == i)[0]) if i in order else -1 for i in range(split)]
        check(found, queries, features[order], own, similarity)


# Images on a circle, at these angles.
ANGLES = np.radians([0, 10, 15, 90])
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_neighbours_on_a_circle(similarity: Similarity, backend: Backend) -> None:
    found = nearest_neighbours(CIRCLE, 2, backend=backend, similarity=similarity)
    assert found.indices.tolist() == [[1, 2], [2, 0], [1, 0], [2, 1]]
    between = np.radians([[10, 15], [5, 10], [5, 15], [75, 80]])
    expected = -2 * np.sin(between / 2) if similarity == "euclidean" else np.cos(between)
    np.testing.assert_allclose(found.similarities, expected, rtol=1e-13)


def test_a_duplicate_is_found_and_the_query_is_not(backend: Backend) -> None:
    # A position in the list would not tell them apart: rows 0 and 1 are equal.
    features = np.array([[1.0, 0], [1, 0], [0, 1]])
    assert nearest_neighbours(features, 1, backend=backend).indices[:2].tolist() == [[1], [0]]


def test_in_a_collapsed_set_the_smallest_indices_come(backend: Backend) -> None:
    found = nearest_neighbours(np.full((100, 7), 0.3, np.float32), 3, backend=backend)
    assert found.indices[:5].tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2], [0, 1, 2]]
    assert (found.indices[5:] == [0, 1, 2]).all()


def test_tied_items_come_by_index_also_where_the_list_ends(backend: Backend) -> None:
    # Differences from 0: 2, 1, 2, 1, 2, 3; the last of two places among the 2 goes to index 2, not 4.
    gallery = np.array([[2.0], [-1], [-2], [1], [2], [3]])
    found = nearest_neighbours([[0.0]], 4, gallery, backend, similarity="euclidean")
    assert found.indices.tolist() == [[1, 3, 0, 2]]
    assert found.similarities.tolist() == [[-1, -1, -2, -2]]


def test_an_item_that_was_not_proposed_may_be_tied(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    # Less than a window apart, and further than the bound: the two best proposed are 1 and 2, but 0 has their rank.
    step = 2.0**-42
    monkeypatch.setattr(module, "_SPARE", 0)
    gallery = np.array([[1 - 2 * step], [1], [1 - step]])
    assert nearest_neighbours([[1.0]], 1, gallery, backend, similarity="dot").indices.tolist() == [[0]]


def test_ties_are_with_the_closest_that_is_left() -> None:
    # 0.6 windows apart: 0 ties with 1 and 1 with 2, but 0 with 2 not, which begins the next group.
    similarities = torch.tensor([[0.0, 0.6, 1.2, -9]], dtype=torch.float64)
    assert module._closest(similarities, torch.ones(1), 3).tolist() == [[1, 2, 0]]


def test_in_a_gallery_the_query_is_left_out_by_its_id_alone(backend: Backend) -> None:
    assert nearest_neighbours(CIRCLE, 1, CIRCLE, backend).indices[:, 0].tolist() == [0, 1, 2, 3]
    found = nearest_neighbours(CIRCLE[:2], 1, CIRCLE, backend, ids=["a", "x"], gallery_ids=["a", "b", "c", "d"])
    assert found.indices[:, 0].tolist() == [1, 1]


def test_ids_need_each_other() -> None:
    with pytest.raises(ValueError, match="ids and gallery_ids need each other"):
        nearest_neighbours(CIRCLE, 1, CIRCLE, ids=["a", "b", "c", "d"])


@pytest.mark.parametrize("k", [0, -1, 4, 5])
@pytest.mark.parametrize("gallery", [None, CIRCLE])
def test_k_is_below_the_gallerys_size(k: int, gallery: Array | None) -> None:
    with pytest.raises(ValueError, match=f"k = {k}: must be at least 1 and below the gallery's size, 4"):
        nearest_neighbours(CIRCLE, k, gallery)


def test_rows_that_are_not_finite_are_counted(backend: Backend) -> None:
    bad = CIRCLE.copy()
    bad[1, 0], bad[2] = np.nan, np.inf
    with pytest.raises(NumericError, match="2 of 4 feature rows hold NaN or Inf"):
        nearest_neighbours(bad, 1, backend=backend)
    with pytest.raises(NumericError, match="2 of 8 feature rows"):
        nearest_neighbours(CIRCLE, 1, bad, backend)


@pytest.mark.parametrize(
    ("similarity", "backend", "message"),
    [
        ("manhattan", "auto", "unknown similarity 'manhattan': cosine, dot, euclidean, hamming"),
        ("cosine", "annoy", "unknown backend 'annoy': auto, torch or faiss"),
        ("hamming", "auto", "features: hamming needs packed bits of uint8, got float64"),
    ],
)
def test_names_that_are_unknown_are_said(similarity: Any, backend: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nearest_neighbours(CIRCLE, 1, backend=backend, similarity=similarity)


@pytest.mark.parametrize("features", [CIRCLE, np.ones((4, 0)), np.float64(1), [[1.0, 2], [3, 4]]], ids=np.shape)
def test_shapes_must_fit(features: Any) -> None:
    with pytest.raises(ValueError, match=r"expected \(N, D\)|dimensions"):
        nearest_neighbours(features, 1, np.ones((3, 5)))


def test_hamming_counts_the_bits_that_differ() -> None:
    codes = np.array([[0b1111_0000, 0], [0b1111_0000, 1], [0, 0]], np.uint8)
    found = nearest_neighbours(codes, 2, similarity="hamming")
    assert found.similarities.tolist() == [[-1, -4], [-1, -5], [-4, -5]]


def test_a_common_offset_costs_no_digits(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    near = rng.normal(size=(50, 8))
    near[7] = near[3]
    found = nearest_neighbours(near + 2.0**20, 5, backend=backend, similarity="euclidean")
    # 2**20 leaves 32 bits after the point.
    plain = nearest_neighbours((near + 2.0**20) - 2.0**20, 5, backend=backend, similarity="euclidean")
    assert (found.indices == plain.indices).all()
    np.testing.assert_allclose(found.similarities, plain.similarities, rtol=1e-14)
    assert found.similarities[3, 0] == found.similarities[7, 0] == 0


def test_no_cosine_is_above_1() -> None:
    features = np.random.default_rng(0).normal(size=(99, 7))
    assert nearest_neighbours(features, 1, features).similarities.max() == 1


def test_dot_products_are_those_of_the_features_as_they_are() -> None:
    found = nearest_neighbours(CIRCLE * 3e5, 1, CIRCLE[:2] * 7e-9, similarity="dot")
    np.testing.assert_allclose(found.similarities[0], 3e5 * 7e-9, rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_features_of_any_real_type_are_taken(dtype: torch.dtype, backend: Backend) -> None:
    features = (torch.from_numpy(CIRCLE) * 100).to(dtype)
    assert nearest_neighbours(features, 1, backend=backend).indices[:, 0].tolist() == [1, 2, 1, 2]


def test_separate_items_are_never_compared_with_the_whole_gallery(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.NeighbourSearch, "_of_all", None)
    features = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)
    nearest_neighbours(features + 10, 5, backend=backend)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_the_bound_is_what_makes_the_result_exact(similarity: Similarity, monkeypatch: pytest.MonkeyPatch) -> None:
    features = nearly_duplicated(np.random.default_rng(1), np.arange(60), 16)
    exact, _ = brute(features, features, range(60), 3, similarity)
    monkeypatch.setattr(module, "_SPARE", 0)
    assert nearest_neighbours(features, 3, similarity=similarity).indices.tolist() == exact
    monkeypatch.setattr(Rounded, "tolerance", lambda self, *_: self.errors * 0)
    assert nearest_neighbours(features, 3, similarity=similarity).indices.tolist() != exact


def test_neighbours_are_those_of_scikit_learn(backend: Backend) -> None:
    from sklearn.neighbors import NearestNeighbors

    rng = np.random.default_rng(3)
    queries, gallery = rng.normal(size=(30, 24)), rng.normal(size=(400, 24))
    distances, indices = NearestNeighbors(n_neighbors=10, algorithm="brute").fit(gallery).kneighbors(queries)
    found = nearest_neighbours(queries, 10, gallery, backend, similarity="euclidean")
    assert (found.indices == indices).all()
    np.testing.assert_allclose(-found.similarities, distances, rtol=1e-12)


# --- faiss that is absent, broken, on a GPU; its threads


def break_faiss(patch: pytest.MonkeyPatch, how: str) -> None:
    if how == "absent":
        patch.setitem(sys.modules, "faiss", None)
        return
    if how == "empty":
        patch.setitem(sys.modules, "faiss", type(sys)("faiss"))
        return

    class Loader:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name == "faiss":
                raise OSError("libcudart.so.12: cannot open\nshared object file")

    patch.delitem(sys.modules, "faiss", raising=False)
    patch.setattr(sys, "meta_path", [Loader, *sys.meta_path])


@pytest.mark.parametrize(
    ("how", "reason"), [("absent", "faiss"), ("empty", "IndexFlatIP"), ("broken", r"\(libcudart.so.12: cannot open\)")]
)
def test_without_faiss_torch_serves_unless_faiss_was_asked_for(
    how: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_faiss(monkeypatch, how)
    assert nearest_neighbours(CIRCLE, 1).backend == "torch"
    with pytest.raises(EnvironmentFault, match=f"^faiss cannot be imported .*{reason}") as caught:
        nearest_neighbours(CIRCLE, 1, backend="faiss")
    assert "\n" not in str(caught.value)
    assert "pip install faiss-cpu" in str(caught.value)


def test_auto_takes_faiss(faiss: Any) -> None:
    assert nearest_neighbours(CIRCLE, 1).backend == "faiss"


def test_torch_serves_features_on_a_gpu_that_faiss_has_not(faiss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    assert module._library("auto", torch.device("cuda")) is None
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    assert module._library("auto", torch.device("cuda")) is faiss


def test_faiss_takes_as_many_threads_as_torch_and_gives_them_back(faiss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, search = [], faiss.knn

    def knn(*arguments: Any, **options: Any) -> Any:
        seen.append(faiss.omp_get_max_threads())
        return search(*arguments, **options)

    monkeypatch.setattr(faiss, "knn", knn)
    # A torch with an OpenMP of its own.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    before = faiss.omp_get_max_threads()
    nearest_neighbours(CIRCLE, 1, backend="faiss")
    assert (seen, faiss.omp_get_max_threads()) == ([3], before)


@pytest.mark.parametrize(("k", "on_gpu"), [(1, True), (2040, False)])
def test_faiss_searches_on_its_gpu_up_to_what_that_can(
    k: int, on_gpu: bool, faiss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class OnGpu:
        def __init__(self, _: object, width: int) -> None:
            self.index = faiss.IndexFlatIP(width)
            self.add = self.index.add

        def search(self, queries: Any, count: int) -> Any:
            asked.append(count)
            return self.index.search(queries, count)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "GpuIndexFlatIP", OnGpu, raising=False)
    angles = np.linspace(0, 1, 2100)
    gallery = np.stack([np.cos(angles), np.sin(angles)], 1)
    found = nearest_neighbours(gallery[:1], k, gallery, "faiss")
    assert (found.indices == np.arange(k)).all()
    assert bool(asked) is on_gpu


def test_the_processor_serves_where_the_gpu_fails(faiss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", full, raising=False)  # faiss-cpu has neither
    monkeypatch.setattr(faiss, "GpuIndexFlatIP", None, raising=False)
    assert nearest_neighbours(CIRCLE, 1, backend="faiss").indices[:, 0].tolist() == [1, 2, 1, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_gpu_gives_the_same_neighbours(similarity: Similarity, backend: Backend) -> None:
    features = features_of("nearly duplicated", similarity, np.random.default_rng(0), 3000)
    here = nearest_neighbours(features, 10, backend="torch", similarity=similarity)
    there = nearest_neighbours(torch.from_numpy(features).cuda(), 10, backend=backend, similarity=similarity)
    assert (here.indices == there.indices).all()
