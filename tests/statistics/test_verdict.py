"""Whether to switch, and the gain on units that did not decide it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from layerprobe.statistics.choice import folds_of, pick
from layerprobe.statistics.units import UnitSums
from layerprobe.statistics.verdict import Advised, Judged, above, advise, growth_of_differences, judge

Array = NDArray[np.float64]


def cells_of(means: ArrayLike) -> UnitSums:
    units = np.array(means, np.float64)
    return UnitSums(20 * units, np.full(units.shape, 20.0))


def drawn(true: list[float], units: int, sd: float = 0.05, seed: int = 0) -> UnitSums:
    rng = np.random.default_rng(seed)
    return cells_of(
        np.array(true)[:, None] + rng.normal(0, 0.1, units) + rng.normal(0, sd / 2**0.5, (len(true), units))
    )


def judged(cells: UnitSums, within: float = 0.01, growth: float = 1.0) -> tuple[int, Judged]:
    picked = pick(cells, [(place,) for place in range(len(cells.sums))], [False] * len(cells.sums))
    return picked, judge(cells, picked, within=within, growth=growth)


def test_of_two_candidates_max_loss_is_the_one_sided_end_of_the_paired_t_interval() -> None:
    cells = drawn([0.5, 0.497], 200)
    picked, found = judged(cells)
    first, second = (cells.sums / cells.counts)[[picked, 1 - picked]]
    end = stats.ttest_rel(second, first).confidence_interval(0.9).high
    assert found.max_loss == pytest.approx(end, rel=0.1)
    assert found.lead is not None
    interval = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.lead.low, found.lead.high) == pytest.approx((interval.low, interval.high), rel=0.1)


def test_bands_of_many_candidates_are_wider_than_that_of_the_widest_alone() -> None:
    cells = drawn([0.5] * 14, 60)
    picked, found = judged(cells)
    alone = []
    for other in {*range(14)} - {picked}:
        first, second = (cells.sums / cells.counts)[[picked, other]]
        alone.append(stats.ttest_rel(second, first).confidence_interval(0.9).high)
    assert found.max_loss is not None
    assert found.max_loss > max(alone)


def test_one_that_is_better_than_each_other_is_clear_and_lacks_nothing() -> None:
    picked, found = judged(drawn([0.6, 0.5, 0.52], 60))
    assert (picked, found.verdict, found.max_loss, found.runner_up) == (0, "significant", 0.0, 2)
    assert found.units_needed is None
    assert found.lead is not None
    assert found.lead.low is not None
    assert found.lead.low > 0


def test_alike_candidates_are_conclusive_with_enough_units_and_inconclusive_with_few() -> None:
    true = [0.5, 0.5, 0.5]
    few, many = judged(drawn(true, 20))[1], judged(drawn(true, 2000))[1]
    assert (few.verdict, many.verdict) == ("inconclusive", "conclusive")
    assert (few.equivalent, many.equivalent) == ((), (0, 1, 2))
    assert few.max_loss is not None
    assert many.max_loss is not None
    assert few.max_loss > 0.01 >= many.max_loss > 0


def test_one_that_is_not_the_best_mean_is_never_clear() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(0.5, 0.1, 60)
    found = judge(cells_of([base - 0.004, base, base - 0.3]), 0, within=0.01)
    assert found.verdict == "conclusive"
    assert found.max_loss == pytest.approx(0.004)


def test_in_a_larger_gallery_the_bound_grows_and_what_is_conclusive_may_be_inconclusive() -> None:
    cells = drawn([0.5, 0.5, 0.5], 2000)
    same, grown = judged(cells)[1], judged(cells, growth=3.0)[1]
    assert same.max_loss is not None
    assert grown.max_loss == pytest.approx(3 * same.max_loss)
    assert (same.verdict, grown.verdict) == ("conclusive", "inconclusive" if 3 * same.max_loss > 0.01 else "conclusive")
    assert judged(cells, within=0.03, growth=3.0)[1].equivalent == judged(cells, within=0.01)[1].equivalent


def test_differences_grow_by_the_logit_of_misses_along_the_doublings_of_the_gallery() -> None:
    # From 5 other classes to 20 others are two doublings. Misses of 1 / 9 among half and 1 / 5: odds of 1 / 8 and 1 / 4
    # double once a doubling, to 1, misses of 1 / 2: (1/2 1/2) / (1/5 4/5) = 25 / 16.
    assert growth_of_differences(1 / 5, 1 / 9, 6, 21) == pytest.approx(25 / 16)
    assert growth_of_differences(0.1, 0.08, 21, 6) is None
    assert growth_of_differences(0.1, 0.0, 6, 21) is None
    assert growth_of_differences(1.0, 1.0, 6, 21) is None
    assert growth_of_differences(0.08, 0.1, 6, 21) is None


def test_the_more_misses_rise_the_more_differences_grow() -> None:
    halves = (0.019, 0.015, 0.01, 0.005, 0.002, 0.001, 1e-6)
    growths = [growth_of_differences(0.02, among_half, 20, 80) or 0.0 for among_half in halves]
    assert growths == sorted(growths)
    assert growths[-1] == pytest.approx(0.25 / (0.02 * 0.98))


def test_where_most_queries_miss_differences_do_not_grow() -> None:
    assert growth_of_differences(0.6, 0.5, 6, 21) == 1.0


def test_units_needed_scale_the_half_width_to_what_is_left_of_within() -> None:
    # Two candidates: half-width h, difference d, so 20 (h / (0.01 - d))^2.
    cells = drawn([0.5, 0.5], 20, seed=1)
    picked, found = judged(cells)
    means = cells.means
    d = float(means[1 - picked] - means[picked])
    assert found.max_loss is not None
    assert found.units_needed == math.ceil(20 * ((found.max_loss - d) / (0.01 - d)) ** 2 - 1e-6)
    assert judged(cells, within=0.0)[1].units_needed is None
    equal = cells_of([[0.4, 0.6] * 10, [0.6, 0.4] * 10])
    assert judged(equal, within=0.02)[1].units_needed is not None
    assert judged(equal, within=0.001)[1].units_needed is None  # more than 100 times as many


def test_fewer_than_ten_units_are_open_without_a_bound() -> None:
    assert judged(drawn([0.9, 0.1], 9))[1] == Judged("inconclusive", None)


def test_a_single_candidate_is_clear() -> None:
    assert judged(drawn([0.9], 12))[1] == Judged("significant", 0.0, (0,))


def test_a_constant_lead_is_clear() -> None:
    base = np.random.default_rng(0).uniform(0.3, 0.7, 12)
    _, found = judged(cells_of([base + 0.1, base]))
    assert (found.verdict, found.max_loss) == ("significant", 0.0)
    assert found.lead is not None
    assert found.lead.low == pytest.approx(0.1)


def test_of_eight_equal_candidates_the_choice_is_clear_in_at_most_5_percent() -> None:
    clear = sum(judged(drawn([0.5] * 8, 20, seed=seed))[1].verdict == "significant" for seed in range(100))
    assert clear <= 5


def test_max_loss_covers_what_the_chosen_one_lacks() -> None:
    true = np.array([0.5, 0.51, 0.52, 0.52, 0.5, 0.49])
    missed = 0
    for seed in range(200):
        picked, found = judged(drawn(true.tolist(), 30, seed=seed))
        assert found.max_loss is not None
        missed += true.max() - true[picked] > found.max_loss + 1e-12
    assert missed <= 17  # 5 % are 10 +- 3


def test_means_above_zero_are_told_from_those_that_are_not() -> None:
    rng = np.random.default_rng(0)
    cells = cells_of([rng.normal(mean, 0.05, 40) for mean in (0.2, 0.0, -0.2)])
    assert above(cells).tolist() == [True, False, False]
    assert above(cells_of([[0.0] * 12, [0.3] * 12])).tolist() == [False, True]
    assert above(cells_of([[-0.5] * 9])).tolist() == [True]  # too few classes to tell


def test_of_many_means_at_chance_hardly_any_is_above() -> None:
    sets = [cells_of(np.random.default_rng(seed).normal(0, 0.05, (20, 30))) for seed in range(100)]
    assert sum(above(cells).any() for cells in sets) <= 11  # 5 % are 5 +- 2


def gains_of(differences: NDArray[np.float64]) -> UnitSums:
    """Gains of units of 20 queries."""
    return UnitSums(20 * differences[None], np.full((1, len(differences)), 20.0))


def test_where_both_halves_decide_the_gain_is_that_of_all() -> None:
    differences = np.random.default_rng(0).normal(0.1, 0.05, 40)
    advised = advise(gains_of(differences), within=0.01)
    assert (advised.advice, advised.units, advised.decided_elsewhere) == ("switch", 40, True)
    assert advised.gain.difference == pytest.approx(differences.mean())


def test_where_one_half_decides_the_gain_is_that_of_the_other() -> None:
    halves = folds_of(np.arange(40), count=2, seed=0)
    noise = np.random.default_rng(1).normal(0, 0.02, 40)
    differences = np.where(halves == 0, 0.05, 0.0) + noise - np.where(halves == 0, noise[halves == 0].mean(), 0)
    differences[halves == 1] += 0.004 - differences[halves == 1].mean()
    advised = advise(gains_of(differences), within=0.01)
    assert (advised.advice, advised.units) == ("switch", 20)
    assert advised.gain.difference == pytest.approx(0.004)


def test_halves_that_contradict_each_other_cannot_tell() -> None:
    halves = folds_of(np.arange(40), count=2, seed=0)
    differences = np.where(halves == 0, 0.1, -0.1) + np.random.default_rng(2).normal(0, 0.03, 40)
    assert advise(gains_of(differences), within=0.01).advice == "inconclusive"


def test_a_worse_candidate_is_not_switched_to() -> None:
    differences = np.random.default_rng(0).normal(-0.1, 0.05, 40)
    assert advise(gains_of(differences), within=0.01).advice == "keep"


def test_a_gain_that_does_not_matter_is_either() -> None:
    differences = np.random.default_rng(0).normal(0.004, 0.004, 40)
    assert advise(gains_of(differences), within=0.01).advice == "either"
    assert advise(gains_of(np.zeros(12)), within=0.0).advice == "either"


def test_fewer_than_20_units_decide_and_report() -> None:
    differences = np.random.default_rng(0).normal(0.1, 0.05, 19)
    advised = advise(gains_of(differences), within=0.01)
    assert (advised.advice, advised.units, advised.decided_elsewhere) == ("switch", 19, False)
    assert advise(gains_of(np.full(9, 0.1)), within=0.01).advice == "inconclusive"


def test_the_reported_gain_is_unbiased_where_that_by_which_it_was_decided_is_not() -> None:
    true, rng = 0.025, np.random.default_rng(0)
    switched: list[tuple[Advised, float]] = []
    for seed in range(60):
        differences = rng.normal(true, 0.1, 40)
        advised = advise(gains_of(differences), within=0.01, seed=seed)
        if advised.advice == "switch":
            switched.append((advised, float(differences.mean())))
    reported = np.average([one.gain.difference for one, _ in switched], weights=[one.units for one, _ in switched])
    # 15 gains, whose mean has a standard error of 0.006; the means of all units are too high by 0.011.
    assert reported == pytest.approx(true, abs=0.01)
    assert np.mean([mean for _, mean in switched]) > true + 0.01
