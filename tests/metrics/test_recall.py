from __future__ import annotations

from fractions import Fraction
from itertools import combinations, permutations
from math import comb

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.metrics.recall import chance_recall, positives_and_negatives, require_gallery_size, thinned_hits
from layerprobe.ranking import nearest_positive_ranks
from layerprobe.system.errors import RecipeError
from layerprobe.values.retrieval import Ranks, SearchRules


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


Counts = NDArray[np.int64]


def ranks_of(closer: list[int], tied_negatives: list[int], tied_positives: list[int]) -> Ranks:
    exact = np.array(closer, np.int32)
    return Ranks(exact, exact, np.array(tied_negatives, np.int32), np.array(tied_positives, np.int32))


def whole(*numbers: int) -> Counts:
    return np.array(numbers, np.int64)


def over_all_galleries(closer: int, tied: int, right: int, negatives: int, drawn: int, k: int) -> float:
    """The mean over every choice of negatives and every order of the tied, in whole numbers."""
    total = Fraction(0)
    for kept in combinations(range(negatives), drawn):
        nearer = sum(i < closer for i in kept)
        equal = sum(closer <= i < closer + tied for i in kept)
        places = k - nearer
        if places > 0:
            # orders of the tied in which the first places are all wrong
            missed = Fraction(comb(equal, places), comb(equal + right, places)) if places <= equal else 0
            total += 1 - missed
    return float(total / comb(negatives, drawn))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("positives", [3, 5])
def test_hits_are_the_mean_over_every_gallery(k: int, positives: int) -> None:
    cases = [(0, 0, 1), (2, 0, 1), (4, 0, 2), (1, 3, 1), (2, 3, 2), (0, 7, 3), (7, 0, 1), (0, 6, 1), (5, 2, 1)]
    ranks, ones = ranks_of(*map(list, zip(*cases, strict=True))), np.ones(len(cases), np.int64)
    for drawn in range(k, 8):
        found = thinned_hits(ranks, k, positives + drawn, positives * ones, 7 * ones)
        wanted = [over_all_galleries(*case, 7, drawn, k) for case in cases]
        assert found == pytest.approx(wanted, abs=1e-12)


def test_queries_of_unequal_numbers_are_each_thinned_to_the_same_size() -> None:
    # Of 6 items, the first query draws 4 of its 5 negatives, the second 3 of 7.
    found = thinned_hits(ranks_of([2, 1], [1, 3], [1, 2]), 1, 6, whole(2, 3), whole(5, 7))
    assert found == pytest.approx([over_all_galleries(2, 1, 1, 5, 4, 1), over_all_galleries(1, 3, 2, 7, 3, 1)])


def brute_force(
    similar: NDArray[np.float64], right: NDArray[np.bool_], size: int, k: int, rng: np.random.Generator
) -> float:
    """One query's hit in a gallery drawn at random, by sorting it; ties in a random order."""
    wrong = rng.choice(np.flatnonzero(~right), size - right.sum(), replace=False)
    kept = rng.permutation(np.concatenate([np.flatnonzero(right), wrong]))
    nearest = kept[np.argsort(-similar[kept], kind="stable")[:k]]
    return float(right[nearest].any())


@pytest.mark.parametrize("k", [1, 4])
def test_recall_is_that_of_random_galleries_under_groups_and_ignored_pairs(k: int) -> None:
    rng = np.random.default_rng(3)
    labels, groups = np.repeat(np.arange(6), [2, 3, 5, 8, 8, 4]), rng.integers(0, 3, 30)
    features = rng.integers(-1, 2, (30, 4)).astype(float) + 0.5  # duplicates, and many ties
    features[labels == 4] += 2
    ignored = np.array([[0, 20], [0, 21], [5, 7], [29, 0]])
    rules = SearchRules(groups=groups, ignored=ignored)
    ranks = nearest_positive_ranks(features, labels, similarity="euclidean", rules=rules)
    positives, negatives = positives_and_negatives(labels, rules=rules)
    size = 14
    found = thinned_hits(ranks, k, size, positives, negatives)
    out = (labels[:, None] == labels) & (groups[:, None] == groups)
    out[ignored[:, 0], ignored[:, 1]] = True
    similar = -((features[:, None] - features) ** 2).sum(2)
    draws, lone = 400, 0
    for query in range(30):
        left = np.flatnonzero(~out[query])
        right = labels[left] == labels[query]
        if not right.any():
            lone += 1
            assert found[query] == 0
            continue
        hits = [brute_force(similar[query, left], right, size, k, rng) for _ in range(draws)]
        # five standard errors of a share of 400
        assert found[query] == pytest.approx(np.mean(hits), abs=5 * np.sqrt(0.25 / draws))
    assert lone == 3


def test_the_whole_gallery_gives_the_hits_that_the_ranks_give() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 5)
    ranks = nearest_positive_ranks(rng.integers(0, 3, (50, 3)).astype(float), labels)
    positives, negatives = positives_and_negatives(labels)
    for k in (1, 2, 10):
        assert thinned_hits(ranks, k, 49, positives, negatives) == pytest.approx(ranks.hits(k), abs=1e-12)


@pytest.mark.parametrize("k", [1, 8])
def test_a_collapsed_layer_is_at_chance_in_the_smaller_gallery(k: int) -> None:
    ranks = ranks_of([0], [5805], [59])
    found = thinned_hits(ranks, k, 1000, whole(59), whole(5805))
    assert found == pytest.approx(1 - comb(941, k) / comb(1000, k), rel=1e-11)


def test_many_ties_before_a_large_k_are_summed_to_the_end() -> None:
    # 1 positive among 3,000 tied, of whom 1,500 are searched: it is among the first 1,000 with 1,000 in 1,500.
    found = thinned_hits(ranks_of([0], [2999], [1]), 1000, 1500, whole(1), whole(2999))
    assert found == pytest.approx(2 / 3, rel=1e-11)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (11, r"query 1 keeps its 10 positives, so that R@4 needs at least 14 items. Choose a size from 14 to 20"),
        (21, r"query 0 has 2 positives and 18 negatives, fewer than 21. Choose a size from 14 to 20"),
    ],
)
def test_a_size_that_a_query_does_not_allow_is_refused(size: int, message: str) -> None:
    positives, negatives = whole(2, 10, 2), whole(18, 11, 18)
    with pytest.raises(RecipeError, match=f"a gallery of {size}: {message}"):
        require_gallery_size(size, [1, 4], positives, negatives)
    ranks = ranks_of([0, 0, 0], [0, 0, 0], [1, 1, 1])
    with pytest.raises(ValueError, match=message.partition(". Choose")[0]):
        thinned_hits(ranks, 4, size, positives, negatives)
    for right in (14, 20):
        require_gallery_size(right, [1, 4], positives, negatives)


def test_no_size_is_right_where_one_query_has_more_positives_than_another_has_items() -> None:
    with pytest.raises(RecipeError, match="No size is right for all queries: leave it out"):
        require_gallery_size(10, [1], whole(2, 10), whole(6, 11))


def test_open_counts_are_refused() -> None:
    exact = ranks_of([0], [0], [1])
    open_ = Ranks(exact.closer, exact.closer + 2, exact.tied_negatives, exact.tied_positives)
    with pytest.raises(ValueError, match="the counts of 1 queries are open"):
        thinned_hits(open_, 1, 5, whole(1), whole(9))


def test_items_of_another_search_are_refused() -> None:
    with pytest.raises(ValueError, match="a query has fewer items than its ranks count"):
        thinned_hits(ranks_of([5], [5], [1]), 1, 5, whole(1), whole(9))
