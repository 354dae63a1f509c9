from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from layerprobe.metrics.recall import chance_recall
from layerprobe.values.retrieval import SearchRules


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 0, 1, 2], [3, 3, 3, 3, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_chance_is_the_mean_over_every_order(labels: list[int], k: int) -> None:
    hits = [
        any(labels[j] == label for j in order[:k])
        for i, label in enumerate(labels)
        for order in permutations([j for j in range(len(labels)) if j != i])
    ]
    assert chance_recall(labels, k) == pytest.approx(np.mean(hits), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2])
def test_chance_in_a_gallery_is_the_mean_over_every_order(k: int) -> None:
    # Class 9 is not in the gallery, class 0 once, class 1 twice.
    queries, gallery = [0, 1, 9], [1, 0, 1]
    hits = [any(item == label for item in order[:k]) for label in queries for order in permutations(gallery)]
    assert chance_recall(queries, k, gallery) == pytest.approx(np.mean(hits), abs=1e-12)


def test_chance_leaves_out_the_query_itself_and_what_rules_take_out() -> None:
    queries, gallery, ids, names = [0, 1, 1], [0, 0, 1, 1, 2], ["a", "b", "c"], ["a", "x", "y", "c", "z"]
    assert chance_recall(queries, 1, gallery, ids=ids, gallery_ids=names) == pytest.approx(
        np.mean([1 / 4, 2 / 5, 1 / 4])
    )
    rules = SearchRules(
        groups=np.array([7, 8, 8]), gallery_groups=np.array([7, 7, 8, 9, 8]), ignored=np.array([[1, 4], [2, 0], [2, 3]])
    )
    # a: both of its class are of its group. b: y is of its group, z ignored. c: y is of its group, a ignored.
    by_rules = chance_recall(queries, 1, gallery, ids=ids, gallery_ids=names, rules=rules)
    assert by_rules == pytest.approx(np.mean([0, 1 / 3, 0]))


def test_chance_of_equal_classes_at_one() -> None:
    # 9 of the 99 others.
    assert chance_recall(np.repeat(np.arange(10), 10), 1) == pytest.approx(9 / 99, abs=1e-12)


def test_chance_matches_random_orders() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(20, 300, p=np.arange(1, 21) / 210)
    hits = []
    for _ in range(40):
        for i, label in enumerate(labels):
            others = rng.choice(299, 8, replace=False)
            hits.append((labels[others + (others >= i)] == label).any())
    # 12,000 draws: four standard errors are below 0.02.
    assert chance_recall(labels, 8) == pytest.approx(np.mean(hits), abs=0.02)


def test_a_gallery_equal_to_the_queries_is_still_a_gallery() -> None:
    # Nothing is excluded: each finds itself or the other.
    assert chance_recall([0, 0, 1], 1, [0, 0, 1]) == pytest.approx((2 / 3 + 2 / 3 + 1 / 3) / 3, abs=1e-12)


@pytest.mark.parametrize("k", [0, 3])
def test_k_stays_below_the_gallerys_size(k: int) -> None:
    with pytest.raises(ValueError, match=f"K = {k}: must be at least 1 and below the gallery's size, 3"):
        chance_recall([0, 0, 1], k)


def test_labels_are_vectors() -> None:
    with pytest.raises(ValueError, match=r"labels: expected vectors, got \(2, 1\)"):
        chance_recall([[0], [1]], 1)
