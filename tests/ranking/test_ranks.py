from __future__ import annotations

import doctest
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import layerprobe
from layerprobe.ranking import nearest_positive_ranks, recall_at_k
from layerprobe.ranking import vectors as module
from layerprobe.ranking.ranks import recall_at_k as from_module
from layerprobe.system.errors import DataError, NumericError
from tests.ranking.conftest import KINDS, Array, clustered, counts, exponential_labels, loop, make

Similarity = Literal["cosine", "dot", "euclidean"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot", "euclidean")


def check(kind: str, similarity: Similarity, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d, classes = int(rng.integers(2, 40)), int(rng.integers(1, 12)), int(rng.integers(1, 9))
    labels = exponential_labels(rng, n, classes)
    features = make(kind, rng, labels, d)
    found = nearest_positive_ranks(features, labels, similarity=similarity)
    assert counts(found) == loop(features, labels, features, labels, list(range(n)), similarity)

    split = int(rng.integers(1, n))
    queries, gallery = slice(0, split), slice(split, n)
    found = nearest_positive_ranks(
        features[queries],
        labels[queries],
        gallery=features[gallery],
        gallery_labels=labels[gallery],
        similarity=similarity,
    )
    own = [-1] * split
    assert counts(found) == loop(
        features[queries], labels[queries], features[gallery], labels[gallery], own, similarity
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_counts_equal_a_loop_over_pairs(kind: str, similarity: Similarity, seed: int) -> None:
    check(kind, similarity, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_counts_equal_a_loop_over_pairs_in_many_cases(kind: str, similarity: Similarity, seed: int) -> None:
    check(kind, similarity, seed)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_blocks_join_to_the_counts_of_one(similarity: Similarity, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(37) % 6
    # Small whole numbers tie; lengths that grow with the row give every query a tie window of its own.
    features = rng.integers(-2, 3, (37, 4)) * 10.0 ** np.arange(37)[:, None]
    whole = counts(nearest_positive_ranks(features, labels, similarity=similarity))
    monkeypatch.setattr(module, "_BLOCK", 5 * 37)  # 8 blocks, the last of 2 rows
    assert counts(nearest_positive_ranks(features, labels, similarity=similarity)) == whole


# --- worked by hand
def on_circle(*degrees: float) -> Array:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def test_negatives_closer_than_the_nearest_positive_are_counted() -> None:
    # Classes 0 0 1 1 at 0, 10, 15, 90 degrees. From 90 the positive at 15 is nearest; from 15 it is 75 away, and both
    # others are nearer; from 10 the negative at 15 comes before the positive at 0.
    found = nearest_positive_ranks(on_circle(0, 10, 15, 90), [0, 0, 1, 1])
    assert counts(found) == [(0, 0, 1), (1, 0, 1), (2, 0, 1), (0, 0, 1)]


def test_similarities_order_vectors_of_different_length_differently() -> None:
    # From (1, 0): same class (3, 1), other class (0.9, 0) and (9, 6).
    features, labels = np.array([[1, 0], [3, 1], [0.9, 0], [9, 6]]), [0, 0, 1, 1]
    closer = {s: int(nearest_positive_ranks(features, labels, similarity=s).closer[0]) for s in SIMILARITIES}
    # cosine: 0.95 against 1 and 0.83; dot: 3 against 0.9 and 9; squared distance: 5 against 0.01 and 100.
    assert closer == {"cosine": 1, "dot": 1, "euclidean": 1}
    features[1] = 9.1, 0.1
    closer = {s: int(nearest_positive_ranks(features, labels, similarity=s).closer[0]) for s in SIMILARITIES}
    # cosine: 0.99994 against 1; dot: 9.1 against 9; squared distance: 66 against 0.01.
    assert closer == {"cosine": 1, "dot": 0, "euclidean": 1}


def test_collapsed_features_score_chance() -> None:
    # 10 classes of 10 equal vectors: 9 of the 99 others are right.
    found = nearest_positive_ranks(np.full((100, 8), 0.3), np.repeat(np.arange(10), 10))
    assert found.recall(1) == pytest.approx(9 / 99, abs=1e-12)
    assert (found.recall(1, "optimistic"), found.recall(1, "pessimistic"), found.tied_share) == (1, 0, 1)
    assert found.collapsed


def test_nearly_equal_vectors_tie_whatever_the_product_rounds() -> None:
    rng = np.random.default_rng(0)
    features = np.ones((60, 256)) * rng.normal(size=256) * (1 + 1e-15 * rng.normal(size=(60, 256)))
    found = nearest_positive_ranks(features, np.repeat(np.arange(6), 10))
    assert counts(found) == [(0, 50, 9)] * 60


def test_a_difference_above_the_window_is_no_tie() -> None:
    # cos(0.00001 rad) differs from 1 by 5e-11.
    angle = np.degrees(1e-5)
    assert counts(nearest_positive_ranks(on_circle(0, 0, angle), [0, 0, 1]))[0] == (0, 0, 1)
    assert counts(nearest_positive_ranks(on_circle(0, angle, 0), [0, 0, 1]))[0] == (1, 0, 1)


def test_the_window_of_products_grows_with_the_longest_vector() -> None:
    # Of length 1 the query, of 10^6 the longest: products of 1 and 1 + 5e-7 tie, those of 1 and 1 + 5e-6 do not.
    features = np.array([[1, 0], [1, 0], [1 + 5e-7, 0], [0, 1e6]])
    assert counts(nearest_positive_ranks(features, [0, 0, 1, 2], similarity="dot"))[0] == (0, 1, 1)
    features[2, 0] = 1 + 5e-6
    assert counts(nearest_positive_ranks(features, [0, 0, 1, 2], similarity="dot"))[0] == (1, 0, 1)


def test_a_duplicate_of_the_query_is_not_the_query() -> None:
    # Rows 0 and 1 are equal and of one class, row 2 equals them and is of the other: each is found by the others.
    found = nearest_positive_ranks(on_circle(0, 0, 0, 90), [0, 0, 1, 1])
    assert counts(found)[:3] == [(0, 1, 1), (0, 1, 1), (2, 0, 1)]
    assert found.hits(1)[:3].tolist() == [0.5, 0.5, 0]


def test_a_query_is_not_its_own_hit_where_all_are_equal() -> None:
    assert nearest_positive_ranks(np.ones((4, 3)), [0, 1, 2, 3]).recall(1) == 0


def test_a_query_without_another_of_its_class_is_lone() -> None:
    found = nearest_positive_ranks(on_circle(0, 10, 20), [0, 0, 5])
    assert counts(found)[2] == (2, 0, 0)
    assert found.lone == 1


def test_zero_vectors_have_similarity_zero_and_are_counted() -> None:
    # From row 0, the zero vector of its class ties with the orthogonal negative, before the opposite one.
    found = nearest_positive_ranks(np.array([[1, 0], [0, 0], [0, 2], [-1, 0]]), [0, 0, 1, 1])
    assert counts(found)[0] == (0, 1, 1)
    # From the zero vector everything ties.
    assert counts(found)[1] == (0, 2, 1)
    assert found.zeros == 1


def test_zero_vectors_of_queries_and_gallery_add_up() -> None:
    found = nearest_positive_ranks([[0], [1]], [0, 1], gallery=[[0], [0], [1]], gallery_labels=[0, 1, 1])
    assert found.zeros == 3


def test_nothing_is_excluded_from_a_gallery_without_ids() -> None:
    features = on_circle(0, 10)
    found = nearest_positive_ranks(features, [0, 1], gallery=features.copy(), gallery_labels=[0, 1])
    assert counts(found) == [(0, 0, 1), (0, 0, 1)]


def test_the_item_with_the_querys_id_is_excluded() -> None:
    found = nearest_positive_ranks(
        on_circle(0, 10),
        [0, 0],
        gallery=on_circle(10, 20, 0, 5),
        gallery_labels=[0, 0, 0, 1],
        ids=["a", "b"],
        gallery_ids=["x", "y", "a", "z"],
    )
    # Query a loses its own place: 10 degrees is its nearest positive, behind the negative at 5. Query b loses nothing.
    assert counts(found) == [(1, 0, 1), (0, 0, 1)]


def test_a_different_label_at_the_querys_id_is_no_negative() -> None:
    found = nearest_positive_ranks(
        on_circle(0), [0], gallery=on_circle(0, 30), gallery_labels=[1, 0], ids=["a"], gallery_ids=["a", "b"]
    )
    assert counts(found) == [(0, 0, 1)]


# --- inputs
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_arrays_and_tensors_give_the_same_counts(dtype: type) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 5
    features: NDArray[np.generic] = (20 * clustered(rng, labels, 6)).astype(dtype)
    array = counts(nearest_positive_ranks(features, labels))
    assert counts(nearest_positive_ranks(torch.from_numpy(features), torch.from_numpy(labels))) == array
    assert counts(nearest_positive_ranks(features.tolist(), labels.tolist())) == array


def test_a_tensor_with_a_gradient_is_taken_as_it_is() -> None:
    features = torch.tensor([[1.0, 0], [0, 1]], requires_grad=True)
    assert counts(nearest_positive_ranks(features, [0, 0])) == [(0, 0, 1)] * 2


def test_read_only_arrays_are_taken_without_a_warning() -> None:
    features = on_circle(0, 10)
    features.flags.writeable = False
    assert counts(nearest_positive_ranks(features, np.broadcast_to(3, 2))) == [(0, 0, 1)] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_gpu_gives_the_same_counts(similarity: Similarity) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 30
    features = clustered(rng, labels, 32)
    on_gpu = nearest_positive_ranks(torch.from_numpy(features).cuda(), labels, similarity=similarity)
    assert counts(on_gpu) == counts(nearest_positive_ranks(features, labels, similarity=similarity))


def test_labels_beyond_float32_stay_apart() -> None:
    # 2**24 and 2**24 + 1 are one number in float32.
    found = nearest_positive_ranks(on_circle(0, 1, 2), np.array([2**24, 2**24 + 1, 2**24]))
    assert counts(found)[0] == (1, 0, 1)


def test_labels_of_a_narrow_type_are_taken() -> None:
    found = nearest_positive_ranks(on_circle(0, 1, 2, 3), np.array([255, 0, 255, 0], np.uint8))
    assert counts(found) == [(1, 0, 1), (2, 0, 1), (2, 0, 1), (1, 0, 1)]


@pytest.mark.parametrize("scale", [1e-200, 1e200, 1e-300])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_very_long_and_very_short_vectors_are_ranked(scale: float, similarity: Similarity) -> None:
    labels = np.arange(12) % 3
    features = clustered(np.random.default_rng(0), labels, 4)
    scaled = nearest_positive_ranks(features * scale, labels, similarity=similarity)
    assert counts(scaled) == counts(nearest_positive_ranks(features, labels, similarity=similarity))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_set_of_zero_vectors_ties(similarity: Similarity) -> None:
    found = nearest_positive_ranks(np.zeros((6, 2)), [0, 0, 0, 1, 1, 1], similarity=similarity)
    assert (counts(found), found.zeros) == ([(0, 3, 2)] * 6, 6)


def test_an_offset_does_not_change_euclidean_neighbours() -> None:
    labels = np.arange(40) % 8
    features = np.round(clustered(np.random.default_rng(0), labels, 16), 4)
    far = nearest_positive_ranks(features + 1e6, labels, similarity="euclidean")
    assert counts(far) == counts(nearest_positive_ranks(features, labels, similarity="euclidean"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_counted_in_an_error(bad: float) -> None:
    features = np.ones((5, 3))
    features[1, 0] = features[1, 2] = features[4, 1] = bad
    with pytest.raises(NumericError, match=r"^2 of 5 feature rows hold NaN or Inf\.$"):
        nearest_positive_ranks(features, [0, 0, 1, 1, 1])


def test_bad_rows_of_queries_and_gallery_add_up() -> None:
    with pytest.raises(NumericError, match="^3 of 5 feature rows"):
        nearest_positive_ranks([[np.nan], [1.0]], [0, 1], gallery=[[1.0], [np.inf], [np.nan]], gallery_labels=[0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": np.ones(3)}, r"features: expected \(N, D\), neither 0, got \(3,\)"),
        ({"features": np.ones((0, 3))}, r"features: expected \(N, D\), neither 0, got \(0, 3\)"),
        ({"features": np.ones((3, 0))}, r"features: expected \(N, D\), neither 0, got \(3, 0\)"),
        ({"labels": [0, 1]}, r"labels of features: expected \(3,\), got \(2,\)"),
        ({"labels": [0.0, 1, 1]}, "labels of features: expected integers, got float64"),
        ({"similarity": "cosin"}, "unknown similarity 'cosin': cosine, dot, euclidean, hamming"),
        ({"similarity": "hamming"}, "features: hamming needs packed bits of uint8, got float64"),
        ({"gallery": np.ones((3, 2))}, "gallery needs labels"),
        ({"gallery_labels": [0, 1, 1]}, "gallery_labels need a gallery"),
        ({"gallery": np.ones((3, 5)), "gallery_labels": [0, 1, 1]}, "features have 2 dimensions, gallery 5"),
        ({"gallery": np.ones((2, 2)), "gallery_labels": [0, 1], "ids": ["a", "b", "c"]}, "ids and gallery_ids need"),
        (
            {"gallery": np.ones((2, 2)), "gallery_labels": [0, 1], "ids": ["a", "b", "c"], "gallery_ids": ["a", "a"]},
            "expected 3 ids and 2 different gallery_ids, got 3 and 2, 1 of them different",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, object], message: str) -> None:
    fitting: dict[str, object] = {"features": np.ones((3, 2)), "labels": [0, 1, 1]}
    with pytest.raises(ValueError, match=message):
        nearest_positive_ranks(**(fitting | arguments))  # type: ignore[arg-type] # wrong on purpose


ANGLES = np.radians([0, 10, 15, 90])
FEATURES = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
LABELS = [0, 0, 1, 1]
LENGTHS = np.array([[1, 0], [2, 0], [5, 1], [5, 2]])


def test_every_k_comes_from_one_count() -> None:
    # Closer negatives: 0, 1, 2, 0.
    assert recall_at_k(FEATURES, LABELS, [1, 2, 3]) == {1: 2 / 4, 2: 3 / 4, 3: 1.0}


def test_ks_may_be_any_iterable_and_keep_their_order() -> None:
    assert list(recall_at_k(FEATURES, LABELS, iter([3, 1]))) == [3, 1]


def test_a_gallery_is_searched_instead_of_the_queries() -> None:
    assert recall_at_k(FEATURES[:1], [0], [1, 2], gallery=FEATURES[1:], gallery_labels=[1, 1, 0]) == {1: 0.0, 2: 0.0}


def test_ids_similarity_ties_and_lone_queries_are_passed_on() -> None:
    features = [[1.0, 0], [1, 0], [5, 1]]
    gallery = {"gallery": [[1.0, 0], [1, 0]], "gallery_labels": [0, 1]}
    call = {"features": features, "labels": [0, 0, 7], "ks": [1], **gallery}
    fair = recall_at_k(**call)  # type: ignore[arg-type] # a dict of arguments
    assert fair == {1: pytest.approx(1 / 3)}
    assert recall_at_k(**call, ties="optimistic")[1] == pytest.approx(2 / 3)  # type: ignore[arg-type] # as above
    assert recall_at_k(**call, lone="exclude")[1] == pytest.approx(1 / 2)  # type: ignore[arg-type] # as above
    named = recall_at_k(**call, ids=["a", "b", "c"], gallery_ids=["a", "x"])  # type: ignore[arg-type] # as above
    assert named[1] == pytest.approx((0 + 1 / 2 + 0) / 3)
    with pytest.raises(DataError, match="1 of 3 queries"):
        recall_at_k(**call, lone="error")  # type: ignore[arg-type] # as above
    # From (1, 0), the longer vector (5, 1) of the other class has the larger product only.
    assert recall_at_k(LENGTHS, [0, 0, 1, 1], [1])[1] == 1
    assert recall_at_k(LENGTHS, [0, 0, 1, 1], [1], similarity="dot")[1] == 1 / 2


@pytest.mark.parametrize("k", [0, -1, 4, 10_000])
def test_k_stays_below_the_number_of_items(k: int) -> None:
    with pytest.raises(ValueError, match=f"K = {k}: must be at least 1 and below the gallery's size, 4"):
        recall_at_k(FEATURES, LABELS, [1, k])


def test_k_stays_below_the_gallerys_size() -> None:
    with pytest.raises(ValueError, match="below the gallery's size, 2"):
        recall_at_k(FEATURES, LABELS, [2], gallery=FEATURES[:2], gallery_labels=[0, 1])


def test_all_but_the_query_is_a_valid_k() -> None:
    assert recall_at_k(FEATURES, LABELS, [3]) == {3: 1.0}


def test_the_package_offers_the_function_itself() -> None:
    assert layerprobe.recall_at_k is from_module
    assert recall_at_k is from_module


def test_the_package_refuses_other_names() -> None:
    with pytest.raises(AttributeError, match=r"'layerprobe\.ranking' has no attribute 'recall_at'"):
        layerprobe.ranking.recall_at  # noqa: B018 - the look-up is the fact


def test_without_ks_they_are_those_of_the_papers_tables() -> None:
    features = np.random.default_rng(0).normal(size=(9, 2))
    assert list(recall_at_k(features, np.arange(9) % 2)) == [1, 2, 4, 8]


def test_the_docstrings_example_is_true() -> None:
    (example,) = doctest.DocTestFinder().find(recall_at_k, "recall_at_k", globs={})
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(failed=0, attempted=5)
