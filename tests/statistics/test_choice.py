from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from layerprobe.statistics.choice import cross_fit, folds_of, optimism, pick, resample_choice
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


def test_a_finer_measure_decides_within_half_a_paired_standard_error_of_the_best_mean() -> None:
    # 16 units whose differences to the best are d -+ s: a mean of d, and a standard error of s sqrt(16 / 15) / 4.
    best, spread = np.full(16, 0.9), np.tile([1.0, -1.0], 8)
    error = 0.04 * np.sqrt(16 / 15) / 4
    near, far = best - 0.499 * error + 0.04 * spread, best - 0.501 * error + 0.04 * spread
    asked: list[list[int]] = []

    def finer(places: Sequence[int]) -> UnitSums:
        asked.append(list(places))
        return cells_of([[0.9 - 0.1 * place] * 16 for place in places])  # the first is the best

    cells = cells_of([near, far, best])
    assert pick(cells, costs(3), [True] * 3, finer) == 0
    assert asked == [[0, 2]]
    assert pick(cells, costs(3), [True] * 3) == 2
    assert pick(cells, costs(3), [True] * 3, lambda _: None) == 2
    assert pick(cells_of([far, best]), costs(2), [True] * 2, finer) == 1
    assert len(asked) == 1


def test_equal_by_the_finer_measure_too_the_raw_one_is_picked() -> None:
    best, spread = np.full(16, 0.9), np.tile([1.0, -1.0], 8)
    cells = cells_of([best, best - 0.002 + 0.04 * spread])
    equal = cells_of([[0.5] * 16] * 2)
    assert pick(cells, costs(2), [False, True], lambda _: equal) == 1


def test_of_equal_means_a_raw_one_is_the_best_then_the_cheapest_then_the_first() -> None:
    row = np.random.default_rng(0).uniform(size=15)
    assert pick(cells_of([row, row, row]), [(3, 0), (1, 9), (1, 2)], [True] * 3) == 2
    assert pick(cells_of([row, row, row]), [(3, 0), (1, 9), (1, 2)], [True, True, False]) == 1
    assert pick(cells_of([row, row]), [(1,), (1,)], [True] * 2) == 0


def test_with_fewer_than_ten_units_the_best_mean_is_picked() -> None:
    rows = [[0.899] * 8 + [0.8], [0.9] * 8 + [0.7]]
    assert pick(cells_of(rows), costs(2), [False, True]) == 0
    worse = cells_of([[0.9] * 9, [0.1] * 9])
    rows = [[0.9] * 5 + [0.8] * 4, [0.8] * 5 + [0.94] * 4]
    assert pick(cells_of(rows), costs(2), [True, False], lambda _: worse) == 1


def test_a_candidate_with_nan_is_never_picked() -> None:
    cells = cells_of([[np.nan] * 12, [0.5] * 12, [0.9] * 11 + [np.nan]])
    assert pick(cells, costs(3), [True] * 3) == 1
    assert resample_choice(cells, costs(3), [True] * 3)[1].tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(NumericError, match="no candidate has a valid number"):
        pick(cells_of([[np.nan] * 12]), costs(1), [True])


def test_a_cost_is_needed_for_each_candidate() -> None:
    with pytest.raises(ValueError, match="2 candidates have 1 costs"):
        pick(cells_of([[0.5] * 12] * 2), costs(1), [True])


def test_a_resample_chooses_the_best_mean_of_copies_of_the_drawn_units() -> None:
    rng = np.random.default_rng(0)
    counts = np.broadcast_to(rng.integers(5, 30, 20).astype(np.float64), (4, 20))
    cells = UnitSums(counts * (0.5 + noise(rng, 1, 20) + noise(rng, 4, 20, 0.05)), counts)
    picks, raw = Counter[int](), [True, False, True, False]
    for _ in range(4000):
        drawn = rng.integers(20, size=20)
        picks[pick(UnitSums(cells.sums[:, drawn], counts[:, drawn]), costs(4), raw)] += 1
    expected = [picks[place] / 4000 for place in range(4)]
    assert max(expected) < 0.95
    expected_loss, shares = resample_choice(cells, costs(4), raw, resamples=4000)
    assert shares == pytest.approx(expected, abs=0.03)
    assert expected_loss == pytest.approx(float((cells.means.max() - cells.means) @ shares))


def test_two_units_give_shares_by_hand() -> None:
    # The first wins only if the first unit is drawn twice: 1/4 of the draws, and then lacks 0.35.
    expected_loss, shares = resample_choice(cells_of([[0.6, 0.1], [0.5, 0.9]]), costs(2), [False] * 2, resamples=4000)
    assert shares[0] == pytest.approx(0.25, abs=0.03)
    assert expected_loss == pytest.approx(0.35 * shares[0])


def test_a_single_candidate_loses_nothing() -> None:
    for seed in range(8):  # sums round otherwise for each
        expected_loss, shares = resample_choice(cells_of(noise(np.random.default_rng(seed), 1, 20)), costs(1), [True])
        assert (expected_loss, shares.tolist()) == (0.0, [1.0])


def test_folds_are_of_equal_size_up_to_one_and_follow_the_seed() -> None:
    folds = folds_of(np.repeat(np.arange(100, 113), 4), count=5, seed=3)
    assert sorted(Counter(folds.tolist()).values()) == [2, 2, 3, 3, 3]
    assert np.array_equal(folds, folds_of(np.arange(13), count=5, seed=3))
    assert not np.array_equal(folds, folds_of(np.arange(13), count=5, seed=4))


def test_cross_fitting_scores_each_fold_by_what_was_chosen_on_the_others() -> None:
    # On units 2 and 3 the second is best (0.9), on units 0 and 1 the first (0.8): each is scored where it is not.
    cells = cells_of([[0.8, 0.8, 0.1, 0.3], [0.2, 0.4, 0.9, 0.9]], size=10)
    places, crossed = cross_fit(cells, [0, 0, 1, 1], lambda others, _: int(others.means.argmax()))
    assert places == (1, 0)
    assert crossed.sums.tolist() == [[2, 4, 1, 3]]
    assert crossed.means[0] == pytest.approx(10 / 40)


def test_cross_fitting_never_shows_the_choice_the_fold_it_is_for() -> None:
    shown: list[list[float]] = []

    def first(others: UnitSums, fold: int) -> int:
        shown.append([fold, *others.sums[0].tolist()])
        return 0

    cross_fit(cells_of([np.arange(6) / 10], size=10), [0, 1, 2, 0, 1, 2], first)
    assert shown == [[0, 1, 2, 4, 5], [1, 0, 2, 3, 5], [2, 0, 1, 3, 4]]


def test_cross_fitting_needs_two_folds_and_a_fold_for_each_unit() -> None:
    cells = cells_of([[0.5] * 4])
    with pytest.raises(ValueError, match="1 folds: at least 2"):
        cross_fit(cells, [0] * 4, lambda *_: 0)
    with pytest.raises(ValueError, match="3 units have folds, 4 have sums"):
        cross_fit(cells, [0, 1, 1], lambda *_: 0)


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
