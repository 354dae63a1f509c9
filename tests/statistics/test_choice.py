from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from layerprobe.statistics.choice import cross_fitted, folds_of, greedy, optimism, pick, shares
from layerprobe.statistics.units import UnitSums
from layerprobe.system.errors import NumericError

Array = NDArray[np.float64]


def cells_of(means: ArrayLike, size: int = 20) -> UnitSums:
    """Means of which each unit's own is given, all units of one size."""
    units = np.array(means, np.float64)
    return UnitSums(size * units, np.full(units.shape, float(size)))


def costs(count: int) -> list[tuple[int, ...]]:
    """The first is the cheapest."""
    return [(place,) for place in range(count)]


def noise(rng: np.random.Generator, count: int, units: int, sd: float = 0.1) -> Array:
    return rng.normal(0, sd, (count, units))


def qualifies_by_scipy(first: Array, second: Array, within: float) -> bool:
    """Whether means of units of one size differ by at most `within`, by scipy's paired t-test."""
    return bool(stats.ttest_rel(first, second).confidence_interval(0.9).high <= within)


def test_the_rule_is_the_paired_t_test_where_differences_are_not_skewed() -> None:
    rng, seen = np.random.default_rng(0), Counter[bool]()
    for _ in range(100):
        apart = noise(rng, 1, 6, 0.02)[0]
        cheap = noise(rng, 1, 12, 0.3)[0]
        dear = cheap + 0.015 + np.concatenate([apart, -apart])
        expected = qualifies_by_scipy(dear, cheap, 0.025)
        assert pick(cells_of([cheap, dear]), costs(2), within=0.025).place == (0 if expected else 1)
        seen[expected] += 1
    assert min(seen[True], seen[False]) > 20


def test_the_end_is_where_the_cubic_of_the_linearised_ratio_reaches_students_t() -> None:
    # Hits gained in units of 1 to 12 queries: d = 10 / 78, e = (gained - d * count) / 78; its root found by search.
    counts = np.arange(1.0, 13)
    gained = np.array([1.0, 0, 2, 0, 0, 1, 3, 0, 0, 2, 0, 1])
    d = 10 / 78
    e = [(g - d * n) / 78 for g, n in zip(gained, counts, strict=True)]
    s = (12 / 11 * sum(x**2 for x in e)) ** 0.5
    k = float(144 / (11 * 10) * sum(x**3 for x in e) / s**3)
    assert k > 0.1

    def cubic(t: float) -> float:
        return t + k * t**2 / 3 + k**2 * t**3 / 27 + k / 6 + 1.795885  # Student's t of 11 degrees at 95 %

    upper = d - s * float(optimize.brentq(cubic, -20, 5))
    cells = UnitSums(np.stack([np.zeros(12), gained]), np.stack([counts, counts]))
    assert pick(cells, costs(2), within=upper + 1e-6).place == 0
    assert pick(cells, costs(2), within=upper - 1e-6).place == 1


def test_what_units_have_in_common_does_not_hide_that_two_are_alike() -> None:
    rng = np.random.default_rng(0)
    hard, own = noise(rng, 1, 30, 0.5), noise(rng, 2, 30, 0.001)
    assert pick(cells_of(hard + own), costs(2), within=0.01).place == 0


def test_one_that_is_much_better_is_taken_whatever_it_costs() -> None:
    means = np.array([[0.5], [0.5], [0.9]]) + noise(np.random.default_rng(0), 3, 20, 0.02)
    assert pick(cells_of(means), costs(3), within=0.01).equivalent == (2,)


def test_of_identical_candidates_the_cheapest_is_taken_at_within_0() -> None:
    row = np.random.default_rng(0).uniform(size=15)
    picked = pick(cells_of([row, row, row]), [(3, 0), (1, 9), (1, 2)], within=0.0)
    assert (picked.place, picked.best, picked.equivalent) == (2, 2, (2, 1, 0))


def test_of_candidates_of_one_cost_the_first_is_taken() -> None:
    row = np.random.default_rng(0).uniform(size=15)
    assert pick(cells_of([row, row]), [(1,), (1,)], within=0.01).place == 0


def test_equal_means_that_differ_by_units_are_tied_as_best_but_only_the_cheaper_passes() -> None:
    # Means 1/2 each, 5 units the one way and 5 the other: the difference is 0 with an error of 1/3.
    one = [1.0, 0.0] * 5
    picked = pick(cells_of([one, one[::-1]]), costs(2), within=0.01)
    assert (picked.best, picked.equivalent) == (0, (0,))


def test_three_units_leave_the_best_mean_alone() -> None:
    # means by hand: (0.5 + 0.5 + 0.8) / 3 = 0.6, (0.6 + 0.6 + 0.7) / 3 = 0.633, 0.63
    cells = cells_of([[0.5, 0.5, 0.8], [0.6, 0.6, 0.7], [0.63, 0.63, 0.63]])
    assert pick(cells, costs(3), within=0.5).equivalent == (1,)


def test_units_without_queries_do_not_count_among_the_ten() -> None:
    cells = UnitSums(np.array([[0.5] * 9 + [0.0], [0.6] * 9 + [0.0]]), np.array([[1.0] * 9 + [0.0]] * 2))
    assert pick(cells, costs(2), within=0.5).equivalent == (1,)


def test_a_single_candidate_is_taken_always() -> None:
    cells = cells_of(noise(np.random.default_rng(0), 1, 20))
    assert pick(cells, costs(1), within=0.01).equivalent == (0,)
    assert shares(cells, costs(1), within=0.01).tolist() == [1.0]


def test_two_units_give_a_choice_and_shares() -> None:
    # The second wins unless the first unit is drawn twice: 1/4 of the draws.
    cells = cells_of([[0.6, 0.1], [0.5, 0.9]])
    assert pick(cells, costs(2), within=0.5).place == 1
    assert shares(cells, costs(2), within=0.5, resamples=4000)[0] == pytest.approx(0.25, abs=0.03)


def test_a_candidate_with_nan_never_qualifies() -> None:
    cells = cells_of([[np.nan] * 12, [0.5] * 12, [0.9] * 11 + [np.nan]])
    assert pick(cells, costs(3), within=1.0).equivalent == (1,)
    assert shares(cells, costs(3), within=1.0).tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(NumericError, match="no candidate has a valid number"):
        pick(cells_of([[np.nan] * 12]), costs(1), within=1.0)


def test_a_cost_is_needed_for_each_candidate() -> None:
    with pytest.raises(ValueError, match="2 candidates have 1 costs"):
        pick(cells_of([[0.5] * 12] * 2), costs(1), within=0.01)


def test_shares_are_how_often_the_rule_picks_each_in_draws_of_units() -> None:
    rng = np.random.default_rng(0)
    counts = np.broadcast_to(rng.integers(5, 30, 20).astype(np.float64), (4, 20))
    cells = UnitSums(counts * (0.5 + noise(rng, 1, 20) + noise(rng, 4, 20, 0.05)), counts)
    picks = Counter[int]()
    for _ in range(1000):
        # The plain way: copies of the drawn units, and the rule on them.
        drawn = rng.integers(20, size=20)
        picks[pick(UnitSums(cells.sums[:, drawn], counts[:, drawn]), costs(4), within=0.02).place] += 1
    expected = [picks[place] / 1000 for place in range(4)]
    assert max(expected) < 0.9
    assert shares(cells, costs(4), within=0.02) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("skewed", [False, True])
def test_a_worse_candidate_passes_beside_the_best_in_at_most_5_percent_of_the_draws(skewed: bool) -> None:
    # The cheap one is worse by 3 points on average, all that is allowed: in every class, or by 30 in one of ten.
    rng, wrong, sets = np.random.default_rng(0), 0, 1000
    for _ in range(sets):
        lost = rng.normal(0.03, 0.03, 30) if not skewed else 0.3 * (rng.uniform(size=30) < 0.1)
        dear = rng.binomial(20, 0.95, 30) / 20
        picked = pick(cells_of([dear - lost, dear]), costs(2), within=0.03)
        wrong += picked.best == 1 and 0 in picked.equivalent
    # 5 % are 50 +- 7; with Student's t alone, 126 of the skewed ones pass
    assert wrong <= 71


def test_folds_are_of_equal_size_up_to_one_and_follow_the_seed() -> None:
    folds = folds_of(np.repeat(np.arange(100, 113), 4), count=5, seed=3)
    assert sorted(Counter(folds.tolist()).values()) == [2, 2, 3, 3, 3]
    assert np.array_equal(folds, folds_of(np.arange(13), count=5, seed=3))
    assert not np.array_equal(folds, folds_of(np.arange(13), count=5, seed=4))


def test_cross_fitting_scores_each_fold_by_what_was_chosen_on_the_others() -> None:
    # On units 2 and 3 the second is best (0.9), on units 0 and 1 the first (0.8): each is scored where it is not.
    cells = cells_of([[0.8, 0.8, 0.1, 0.3], [0.2, 0.4, 0.9, 0.9]], size=10)
    crossed = cross_fitted(cells, [0, 0, 1, 1], lambda others: int(others.means.argmax()))
    assert crossed.places == (1, 0)
    assert crossed.cells.sums.tolist() == [[2, 4, 1, 3]]
    assert crossed.cells.means[0] == pytest.approx(10 / 40)


def test_cross_fitting_takes_what_was_fitted_without_the_fold() -> None:
    tables = [cells_of([[1, 1, 0, 0]], size=1), cells_of([[0, 1, 1, 1]], size=1)]
    asked = []

    def without(fold: int) -> UnitSums:
        asked.append(fold)
        return tables[fold]

    crossed = cross_fitted(without, [0, 1, 0, 1], lambda others: 0)
    assert asked == [0, 1]
    assert crossed.cells.sums.tolist() == [[1, 1, 0, 1]]


def test_cross_fitting_never_shows_the_choice_the_fold_it_is_for() -> None:
    shown: list[list[float]] = []

    def first(others: UnitSums) -> int:
        shown.append(others.sums[0].tolist())
        return 0

    cross_fitted(cells_of([np.arange(6) / 10], size=10), [0, 1, 2, 0, 1, 2], first)
    assert shown == [[1, 2, 4, 5], [0, 2, 3, 5], [0, 1, 3, 4]]


def test_cross_fitting_needs_two_folds_and_a_fold_for_each_unit() -> None:
    cells = cells_of([[0.5] * 4])
    with pytest.raises(ValueError, match="1 folds: at least 2"):
        cross_fitted(cells, [0] * 4, lambda others: 0)
    with pytest.raises(ValueError, match="3 units have folds, 4 have sums"):
        cross_fitted(cells, [0, 1, 1], lambda others: 0)


def test_optimism_is_the_luck_of_the_best_of_14_equals() -> None:
    # The best of 14 equals of error 0.1 / sqrt(13) lies 1.703 of these above the truth: 0.0472.
    rng = np.random.default_rng(0)
    found = [optimism(cells_of(0.5 + noise(rng, 14, 13)), folds_of(range(13), seed=seed)) for seed in range(400)]
    assert np.mean([value for value in found if value is not None]) == pytest.approx(0.0472, abs=0.005)


def test_optimism_is_0_where_one_is_much_better() -> None:
    means = np.array([[0.3], [0.9]]) + noise(np.random.default_rng(0), 2, 12, 0.02)
    assert optimism(cells_of(means), folds_of(range(12))) == pytest.approx(0, abs=1e-12)


def test_optimism_needs_ten_units_and_leaves_nan_out() -> None:
    assert optimism(cells_of([[0.5] * 9] * 2), folds_of(range(9))) is None
    assert optimism(cells_of([[np.nan] * 12]), folds_of(range(12))) is None
    assert optimism(cells_of([[np.nan] * 12, [0.5] * 12]), folds_of(range(12))) == pytest.approx(0)


VALUES = {(1,): 0.5, (1, 0): 0.6, (1, 2): 0.7, (1, 3): float("nan"), (1, 2, 0): 0.65, (1, 2, 3): 0.8}


def test_greedy_adds_what_raises_the_value_most_and_stops_at_the_most_members() -> None:
    assert greedy((1,), [0, 1, 2, 3], VALUES.__getitem__) == [(1, 2), (1, 2, 3)]
    assert greedy((1,), [0, 1, 2, 3], VALUES.__getitem__, most=2) == [(1, 2)]


def test_greedy_ends_where_nothing_raises_the_value() -> None:
    assert greedy((1,), [0, 2], VALUES.__getitem__) == [(1, 2)]
    assert greedy((1,), [3], VALUES.__getitem__) == []
    assert greedy((1,), [0], lambda members: 0.5) == []
