from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from layerprobe.statistics.all_pairs import groups_of, significant_pairs
from layerprobe.statistics.bootstrap import differences, holm
from layerprobe.statistics.units import UnitSums

UNITS, QUERIES = 60, 6


def sums_of(hits: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> UnitSums:
    return UnitSums(hits, np.full(hits.shape, float(QUERIES)))


def maximal_sets(count: int, different: set[tuple[int, int]]) -> list[tuple[int, ...]]:
    """By trying every set of places."""
    alike = [
        set(places)
        for size in range(1, count + 1)
        for places in combinations(range(count), size)
        if not any(pair in different for pair in combinations(places, 2))
    ]
    return sorted(tuple(sorted(places)) for places in alike if not any(places < other for other in alike))


@pytest.mark.parametrize("seed", range(40))
def test_groups_are_the_largest_sets_without_a_significant_difference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    pairs = list(combinations(range(count), 2))
    different = [pair for pair in pairs if rng.random() < rng.choice([0.1, 0.5, 0.9])]
    groups = groups_of(count, different)
    assert groups == maximal_sets(count, set(different))
    for pair in pairs:
        assert any(set(pair) <= set(group) for group in groups) is (pair not in different)


def test_the_best_and_the_worst_of_three_share_the_middle_one() -> None:
    assert groups_of(3, [(0, 2)]) == [(0, 1), (1, 2)]
    assert groups_of(3, []) == [(0, 1, 2)]
    assert groups_of(3, [(0, 1), (0, 2), (1, 2)]) == [(0,), (1,), (2,)]


def test_pairs_are_those_of_each_comparison_alone_after_holm() -> None:
    rng = np.random.default_rng(0)
    easy = rng.random((1, UNITS))
    rates = np.array([[0.05], [0.0], [-0.04], [-0.3]]) + 0.2 + 0.6 * easy
    hits = rng.binomial(QUERIES, rates.clip(0, 1)).astype(float)
    p = [differences(sums_of(hits[[a]] - hits[[b]]))[0].p for a, b in combinations(range(4), 2)]
    alone = [pair for pair, value in zip(combinations(range(4), 2), holm(p), strict=True) if value and value < 0.05]
    assert significant_pairs(sums_of(hits)) == alone
    assert {(0, 3), (1, 3), (2, 3)} <= set(alone) != set(combinations(range(4), 2))


def test_means_that_differ_alike_in_every_class_differ_and_equal_ones_do_not() -> None:
    hits = np.full((3, UNITS), 3.0)
    hits[2] = 4.0
    assert significant_pairs(sums_of(hits)) == [(0, 2), (1, 2)]


def test_fewer_than_ten_classes_tell_nothing_and_one_mean_has_no_pair() -> None:
    hits = np.random.default_rng(0).random((3, 9))
    assert significant_pairs(sums_of(hits)) is None
    assert significant_pairs(sums_of(np.random.default_rng(0).random((1, UNITS)))) == []


def test_models_that_are_alike_are_mostly_one_group() -> None:
    # Six models that hit at random, 200 times: at most 5 % of the sets may have two groups; 5 % + 3 standard errors.
    rng, divided = np.random.default_rng(0), 0
    for draw in range(200):
        rates = rng.beta(2, 3, UNITS)
        pairs = significant_pairs(sums_of(rng.binomial(QUERIES, rates, (6, UNITS)).astype(float)), seed=draw)
        divided += bool(pairs)
    assert divided <= 200 * (0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5)
