from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, combinations_with_replacement

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from layerprobe.statistics import bootstrap
from layerprobe.statistics.bootstrap import bands, between, differences, holm, indistinguishable_from_best, upper_ends
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.values.intervals import Difference, Interval

FloatArray = NDArray[np.float64]
Drawn = tuple[float, float]


def some_cells(cells: int, units: int = 20, seed: int = 0) -> UnitSums:
    """Shares of different sizes; no two units of a cell have the same."""
    rng = np.random.default_rng(seed)
    counts = np.tile(rng.integers(2, 12, units).astype(float), (cells, 1))
    return UnitSums(rng.beta(4, 2, (cells, units)) * counts, counts)


def one(cells: UnitSums, cell: int) -> UnitSums:
    return UnitSums(cells.sums[cell : cell + 1], cells.counts[cell : cell + 1])


def ends(interval: Interval | Difference | None) -> tuple[float, float]:
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def every_draw(sums: Sequence[float], counts: Sequence[float], floor: float) -> tuple[float, float, list[Drawn]]:
    """Mean, standard error and (t*, probability) of all draws of units, in plain loops."""
    units, mean = len(sums), sum(sums) / sum(counts)

    def error(drawn: Sequence[int], centre: float) -> float:
        return math.sqrt(sum((sums[u] - centre * counts[u]) ** 2 for u in drawn)) / sum(counts[u] for u in drawn)

    own = error(range(units), mean)
    found = []
    for drawn in combinations_with_replacement(range(units), units):
        drawn_mean = sum(sums[u] for u in drawn) / sum(counts[u] for u in drawn)
        ways = math.factorial(units) / math.prod(math.factorial(times) for times in Counter(drawn).values())
        found.append(((drawn_mean - mean) / max(error(drawn, drawn_mean), floor * own), ways / units**units))
    return mean, own, found


def point(drawn: Sequence[Drawn], share: float) -> float:
    ordered = sorted(drawn)
    return ordered[int(np.searchsorted(np.cumsum([chance for _, chance in ordered]), share))][0]


# Six units of 1 to 6 queries: 462 different draws of 46,656.
SUMS, COUNTS = [1, 1, 1, 3, 4.5, 2], [1, 2, 3, 4, 5, 6]


def test_the_band_of_a_single_mean_is_that_of_every_draw_of_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "FEWEST_UNITS", 6)
    found = bands(UnitSums(np.array([SUMS]), np.array([COUNTS], float)), resamples=40_000, bounds=(-9, 9))[0]
    mean, own, drawn = every_draw(SUMS, COUNTS, floor=0.3)
    expected = mean - point(drawn, 0.975) * own, mean - point(drawn, 0.025) * own
    assert ends(found) == pytest.approx(expected, abs=0.02)


def test_the_difference_is_that_of_every_draw_of_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "FEWEST_UNITS", 6)
    found = differences(UnitSums(np.array([SUMS]), np.array([COUNTS], float)), resamples=40_000)[0]
    mean, own, drawn = every_draw(SUMS, COUNTS, floor=1 - 2.2 / 12**0.5)
    half = own * point([(abs(t), chance) for t, chance in drawn], 0.95)
    assert ends(found) == pytest.approx((mean - half, mean + half), abs=0.02)
    assert found.p == pytest.approx(sum(chance for t, chance in drawn if abs(t) >= mean / own), abs=0.005)


def test_it_is_about_students_interval_where_units_are_normal_and_of_one_size() -> None:
    # 30 normal quantiles: mean 0.5, standard error s; Student's t of 29 degrees has its 97.5 % point at 2.045.
    from scipy.special import ndtri

    values = 0.5 + 0.1 * ndtri((np.arange(30) + 0.5) / 30)
    found = bands(UnitSums(values[None], np.ones((1, 30))), resamples=20_000)[0]
    half = 2.045 * values.std(ddof=1) / 30**0.5
    assert ends(found) == pytest.approx((0.5 - half, 0.5 + half), abs=0.05 * half)


def test_all_cells_are_made_from_the_same_draws() -> None:
    cells = some_cells(3)
    for cell, found in enumerate(differences(cells)):
        assert ends(found) == pytest.approx(ends(differences(one(cells, cell))[0]), abs=1e-12)


def test_blocks_of_draws_and_cells_do_not_change_the_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = some_cells(5)
    whole = bands(cells, resamples=501), differences(cells, resamples=501)
    monkeypatch.setattr(bootstrap, "_BLOCK", 1002)  # two cells and 50 draws at a time
    parts = bands(cells, resamples=501), differences(cells, resamples=501)
    for before, after in zip(chain(*whole), chain(*parts), strict=True):
        assert ends(after) == pytest.approx(ends(before), abs=1e-12)


def test_the_seed_decides_the_draws() -> None:
    first, again, other = (differences(some_cells(2), resamples=200, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_cells_with_counts_of_their_own_have_the_same_intervals_as_alone() -> None:
    # A query left out in the second cell alone.
    rng = np.random.default_rng(0)
    values, units = rng.random((2, 60)), np.arange(60) % 15
    values[1, 7] = np.nan
    cells = unit_sums(values, units)
    for cell, found in enumerate(differences(cells)):
        assert ends(found) == pytest.approx(ends(differences(one(cells, cell))[0]), abs=1e-12)


def test_nine_units_have_no_interval_and_ten_have() -> None:
    assert differences(some_cells(1, units=9))[0].interval is None
    assert differences(some_cells(1, units=10))[0].interval is not None


def test_units_without_a_query_of_a_mean_do_not_count() -> None:
    cells = some_cells(1, units=10)
    cells.sums[0, 3] = cells.counts[0, 3] = 0
    assert differences(cells)[0].interval is None


@pytest.mark.parametrize("share", [0.0, 1 / 3, 1.0])
def test_the_same_mean_in_every_unit_has_no_interval(share: float) -> None:
    counts = np.arange(1.0, 31)[None] * 3
    found = differences(UnitSums(counts * share, counts))[0]
    assert found.value == pytest.approx(share)
    assert (found.low, found.high, found.p) == (None, None, None)
    assert bands(UnitSums(counts * share, counts)) == [None]


def test_a_band_ends_at_the_bounds() -> None:
    # All units at 100 % but one at 90 %.
    sums = np.ones((1, 12))
    sums[0, 0] = 0.9
    low, high = ends(bands(UnitSums(sums, np.ones((1, 12))))[0])
    assert (low < 0.99, high) == (True, 1.0)


def test_many_queries_of_a_unit_are_no_more_certain_than_one() -> None:
    few, times = some_cells(1), 100
    many = UnitSums(few.sums * times, few.counts * times)
    assert ends(differences(many)[0]) == pytest.approx(ends(differences(few)[0]))


def test_swapping_the_layers_mirrors_the_difference() -> None:
    cells = some_cells(2)
    a, b = one(cells, 0), one(cells, 1)
    there, back = differences(a.minus(b))[0], differences(b.minus(a))[0]
    assert (back.value, *ends(back)) == pytest.approx((-there.value, *(-end for end in reversed(ends(there)))))
    assert back.p == there.p


def test_p_is_below_5_percent_exactly_where_the_interval_leaves_out_0() -> None:
    rng = np.random.default_rng(0)
    cells = UnitSums(rng.normal(rng.uniform(-1, 1, (300, 1)), 1, (300, 15)), np.ones((300, 15)))
    for resamples in (199, 200, 2000):
        found = differences(cells, resamples=resamples)
        outside = [not low <= 0 <= high for low, high in map(ends, found)]
        assert outside == [difference.p is not None and difference.p < 0.05 for difference in found]
        assert 0.2 < np.mean(outside) < 0.8


def test_p_is_never_0_and_small_enough_for_14_comparisons() -> None:
    found = differences(UnitSums(np.arange(11.0, 31)[None], np.ones((1, 20))))[0]
    assert found.p == 1 / 10_001 < 0.05 / 14


def test_identical_layers_have_a_difference_of_0_without_an_interval() -> None:
    cells = some_cells(1)
    assert differences(cells.minus(cells)) == [Difference(0.0)]


def test_bands_of_many_means_are_wider_and_equal_ones_cost_nothing() -> None:
    cells = some_cells(8)
    alone, together = [bands(one(cells, cell))[0] for cell in range(8)], bands(cells)
    for narrow, wide in zip(alone, together, strict=True):
        assert ends(wide)[0] < ends(narrow)[0] < ends(narrow)[1] < ends(wide)[1]
    same = UnitSums(np.tile(cells.sums[:1], (8, 1)), cells.counts)
    assert [ends(found) for found in bands(same)] == [pytest.approx(ends(alone[0]))] * 8


def test_the_gap_between_different_units_is_as_uncertain_as_both() -> None:
    # Student's interval with Welch's degrees of freedom, on normal quantiles. As many units, so that the same draws
    # for both would show.
    from scipy.special import ndtri
    from scipy.stats import ttest_ind

    first = 0.8 + 0.1 * ndtri((np.arange(40) + 0.5) / 40)
    second = 0.7 + 0.2 * ndtri((np.arange(40) + 0.5) / 40)
    found = between(
        UnitSums(first[None], np.ones((1, 40))), UnitSums(second[None], np.ones((1, 40))), resamples=20_000
    )[0]
    welch = ttest_ind(first, second, equal_var=False)
    expected = welch.confidence_interval()
    assert found.value == pytest.approx(0.1)
    assert ends(found) == pytest.approx((expected.low, expected.high), abs=0.006)
    assert found.p == pytest.approx(welch.pvalue, abs=0.006)


def test_a_gap_to_a_constant_side_is_as_uncertain_as_the_other() -> None:
    full, some = UnitSums(np.full((1, 12), 3.0), np.full((1, 12), 3.0)), some_cells(1)
    found = ends(between(full, some, resamples=2000)[0])
    alone = ends(differences(some, resamples=2000)[0])
    assert found == pytest.approx((1 - alone[1], 1 - alone[0]), abs=0.01)
    assert between(full, full) == [Difference(0.0)]


def test_a_gap_needs_ten_units_on_both_sides() -> None:
    found = between(some_cells(1, units=9), some_cells(1, seed=1))[0]
    assert (found.low, found.high, found.p) == (None, None, None)


def test_means_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="2 means cannot be paired with 3"):
        between(some_cells(2), some_cells(3))


def test_at_least_a_hundred_resamples() -> None:
    with pytest.raises(ValueError, match="resamples = 99: must be at least 100"):
        differences(some_cells(1), resamples=99)


@pytest.mark.parametrize("units", [10, 20, 60])
@pytest.mark.parametrize("logit", [0.0, 3.0])
def test_layers_of_equal_recall_are_told_apart_in_5_percent(units: int, logit: float) -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(5, 41, (600, units))
    shared = logit + rng.normal(0, 1, counts.shape)
    a, b = (rng.binomial(counts, 1 / (1 + np.exp(-shared - rng.normal(0, 0.7, counts.shape)))) for _ in range(2))
    found = differences(UnitSums((a - b).astype(float), counts.astype(float)), resamples=1000)
    assert 0.015 <= np.mean([one.p is not None and one.p < 0.05 for one in found]) <= 0.07


def test_bands_hold_all_means_at_once() -> None:
    # 8 layers of 30 classes whose effects the layers share in part: all intervals hold in about 80 % of the sets.
    rng = np.random.default_rng(0)
    true, sets = np.linspace(0.4, 0.8, 8), 200
    all_hold = 0
    for seed in range(sets):
        effects = rng.normal(0, 0.1, 30) + rng.normal(0, 0.1, (8, 30))
        found = bands(UnitSums(true[:, None] + effects, np.ones((8, 30))), resamples=500, seed=seed)
        all_hold += all(low <= at <= high for (low, high), at in zip(map(ends, found), true, strict=True))
    # At least 93 %, less one standard error of 200 sets.
    assert all_hold / sets >= 0.915


def test_the_upper_end_of_one_difference_is_students_one_sided_one() -> None:
    values = np.random.default_rng(0).normal(0.02, 0.1, (1, 400))
    cells = UnitSums(values, np.ones_like(values))
    expected = stats.ttest_1samp(values[0], 0).confidence_interval(0.9).high
    assert upper_ends(cells, resamples=20_000)[0] == pytest.approx(expected, abs=0.0007)


def test_upper_ends_of_many_hold_together_in_95_percent_of_the_sets() -> None:
    missed = 0
    for seed in range(200):
        values = np.random.default_rng(seed).normal(0, 0.1, (13, 40))
        missed += bool((upper_ends(UnitSums(values, np.ones_like(values)), resamples=500, seed=seed) < 0).any())
    assert 2 <= missed <= 20  # 10 +- 3; of single ends 0.95 ** 13 = 51 % hold together


def test_upper_ends_need_ten_units_and_have_no_width_without_a_spread() -> None:
    assert upper_ends(UnitSums(np.ones((2, 9)), np.ones((2, 9)))).tolist() == [np.inf, np.inf]
    assert upper_ends(UnitSums(np.full((1, 12), 0.25), np.ones((1, 12)))).tolist() == [0.25]


def cells_of(units: np.ndarray[tuple[int, int], np.dtype[np.float64]], size: int = 4) -> UnitSums:
    """Means of which each unit's own is given, all units of one size."""
    return UnitSums(size * units, np.full(units.shape, float(size)))


def noise(cells: int, units: int, seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(0, 0.1, (cells, units))


def test_only_means_that_differ_by_more_than_their_noise_are_told_apart() -> None:
    # sd of a difference 0.14 / sqrt(40) = 0.022: 0.5 is 22 of them; the second and last differ from the best by luck
    values = np.array([[0.1], [0.6], [0.6], [0.6]]) + noise(4, 40)
    best = int(values.mean(1).argmax())
    assert indistinguishable_from_best(cells_of(values), best) == tuple(place for place in (1, 2, 3) if place != best)


def test_what_units_have_in_common_does_not_hide_a_difference() -> None:
    # Units differ by far more than the two layers do, but in both alike.
    hard = 10 * noise(1, 40)
    layers = np.array([[0.0], [0.3]]) + noise(2, 40, 1)
    assert indistinguishable_from_best(cells_of(hard + layers), 1) == ()


def test_layers_that_hit_the_same_queries_are_not_told_apart() -> None:
    same = noise(1, 12)
    assert indistinguishable_from_best(cells_of(np.concatenate([same, same])), 0) == (1,)


def test_nothing_is_said_of_a_single_layer_or_of_fewer_than_10_units() -> None:
    assert indistinguishable_from_best(cells_of(noise(1, 40)), 0) is None
    assert indistinguishable_from_best(cells_of(noise(2, 9)), 0) is None
    assert indistinguishable_from_best(cells_of(noise(2, 10)), 0) is not None


def test_the_luck_of_the_best_of_eight_equals_tells_none_of_them_apart() -> None:
    wrong = 0
    for seed in range(100):
        values = noise(8, 60, seed)
        near = indistinguishable_from_best(cells_of(values), int(values.mean(1).argmax()), resamples=1000)
        wrong += near is not None and len(near) < 7
    # 5 of 100 are expected; bands of the differences to the best alone are wrong 16 times
    assert wrong <= 9


def test_two_layers_are_told_apart_where_their_difference_says_so() -> None:
    rng, told = np.random.default_rng(0), set()
    for _ in range(60):
        # Some units gain much: a skewed difference of about what it takes to be told apart.
        cells = cells_of(np.stack([rng.exponential(0.1, 20) - 0.05, np.zeros(20)]))
        of_first, of_second = (UnitSums(cells.sums[[row]], cells.counts[[row]]) for row in (0, 1))
        p = differences(of_first.minus(of_second))[0].p
        assert p is not None
        assert (indistinguishable_from_best(cells, 0, resamples=10_000) == ()) == (p < 0.05)
        told.add(p < 0.05)
    assert told == {True, False}


def test_a_case_by_hand() -> None:
    # In order: .005 x 4 = .02, .01 x 3 = .03, .03 x 2 = .06, .04 x 1 = .04, which is raised to .06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_nothing_exceeds_one() -> None:
    assert holm([0.6, 0.9]) == [1, 1]


def test_a_comparison_without_p_does_not_count() -> None:
    assert holm([None, 0.02, 0.03]) == [None, 0.04, 0.04]


def test_a_single_comparison_stays() -> None:
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\]"):
        holm([0.5, wrong])
