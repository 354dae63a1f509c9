from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.seeds import further_interval, mean_interval, over_seeds, statements
from layerprobe.statistics.units import UnitSums
from layerprobe.values.intervals import Difference


def trainings(means: NDArray[np.float64]) -> UnitSums:
    return UnitSums(means, np.ones_like(means))


@pytest.fixture
def three() -> UnitSums:
    return trainings(np.random.default_rng(0).normal(0.1, 0.2, (3, 40)))


def test_mean_and_spread_over_the_trainings() -> None:
    # 2, 4 and 9 of 10 classes hit: mean 0.5, deviations -0.3, -0.1 and 0.4, sd sqrt(0.26 / 2).
    found = over_seeds(trainings(np.array([[1.0] * n + [0.0] * (10 - n) for n in (2, 4, 9)])))
    assert found.n == 3
    assert (found.mean, found.sd) == pytest.approx((0.5, 0.13**0.5))


def test_these_networks_are_as_uncertain_as_their_mean_over_classes(three: UnitSums) -> None:
    mean = trainings(three.sums.mean(0, keepdims=True))
    assert over_seeds(three).classes == differences(mean)[0]


def test_trainings_of_one_value_leave_students_interval_over_classes() -> None:
    classes = np.random.default_rng(0).normal(0.1, 0.2, 40)
    found = over_seeds(trainings(np.tile(classes, (3, 1)))).trainings
    t = stats.ttest_1samp(classes, 0)
    assert (found.low, found.high) == pytest.approx(tuple(t.confidence_interval()))
    assert found.p == pytest.approx(t.pvalue)


def test_trainings_that_differ_much_leave_students_interval_over_trainings() -> None:
    # Means 1, 2 and 6; the classes differ by a thousandth.
    means = np.array([1.0, 2.0, 6.0])
    found = over_seeds(trainings(means[:, None] + 0.001 * np.arange(-10, 11))).trainings
    t = stats.ttest_1samp(means, 0)
    assert (found.low, found.high) == pytest.approx(tuple(t.confidence_interval()), rel=1e-4)
    assert found.p == pytest.approx(t.pvalue, rel=1e-4)


KNOWN = Difference(1.0, 0.9, 1.1, 0.01)
THREE = np.array([0.7, 1.0, 1.3])  # sd 0.3


def test_the_mean_over_trainings_by_hand() -> None:
    # Variances 0.04 of 11 classes and 0.09 / 3 of trainings: degrees 0.07^2 / (0.04^2 / 10 + 0.03^2 / 2) = 8.03.
    found = statements(KNOWN, 0.04, 11, THREE).trainings
    half = stats.t.ppf(0.975, 0.0049 / 0.00061) * 0.07**0.5
    assert (found.value, found.low, found.high) == pytest.approx((1, 1 - half, 1 + half))
    assert found.p == pytest.approx(2 * stats.t.sf(1 / 0.07**0.5, 0.0049 / 0.00061))


def test_one_further_training_by_hand() -> None:
    found = statements(KNOWN, 0.04, 11, THREE)
    half = stats.t.ppf(0.975, 2) * 0.3 * (4 / 3) ** 0.5
    assert found.same_classes is not None
    assert (found.same_classes.low, found.same_classes.high) == pytest.approx((1 - half, 1 + half))
    # A = 4/3 0.09 = 0.12 with 2 degrees, B = 2 0.04 = 0.08 with 10: 0.2^2 / (0.12^2 / 2 + 0.08^2 / 10) = 5.10
    half = stats.t.ppf(0.975, 0.04 / (0.0072 + 0.00064)) * 0.2**0.5
    assert found.other_classes is not None
    assert (found.other_classes.low, found.other_classes.high) == pytest.approx((1 - half, 1 + half))


def test_units_of_unequal_size_have_the_jackknifes_variance_and_kishs_degrees() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 20, 12).astype(float)
    sums = rng.normal(0.1, 0.3, (3, 12)) * counts
    found = over_seeds(UnitSums(sums, np.tile(counts, (3, 1))))
    mean = sum(sums.mean(0)) / sum(counts)
    without = [np.delete(sums.mean(0), u).sum() / np.delete(counts, u).sum() for u in range(12)]
    variance = 11 / 12 * sum((value - mean) ** 2 for value in without)
    effective = sum(counts) ** 2 / sum(counts**2)
    expected = statements(found.classes, variance, effective, sums.sum(1) / sum(counts))
    assert found.other_classes is not None
    assert expected.other_classes is not None
    assert found.trainings.low == pytest.approx(expected.trainings.low)
    assert found.other_classes.low == pytest.approx(expected.other_classes.low)


def test_two_trainings_predict_no_further_one(three: UnitSums) -> None:
    found = over_seeds(trainings(three.sums[:2]))
    assert found.trainings.low is not None
    assert (found.same_classes, found.other_classes) == (None, None)


@pytest.mark.parametrize("effects", ["normal", "t3"])
def test_the_prediction_holds_a_further_training_on_other_classes(effects: str) -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        classes = rng.normal(size=120) if effects == "normal" else rng.standard_t(3, 120) / 3**0.5
        means = rng.normal(0, 0.01, (6, 1)) + 0.1 * classes + rng.normal(0, 0.03, (6, 120))
        found = over_seeds(trainings(means[:5, :60]), resamples=100).other_classes
        assert found is not None
        held += found.low <= means[5, 60:].mean() <= found.high
    assert held >= 270  # 95 % are 285 +- 4


def test_trainings_of_one_value_predict_nothing_on_these_classes() -> None:
    # 0.1 + 0.1 + 0.1 is not 3 x 0.1: the standard deviation of the three is 1.7e-17.
    found = statements(KNOWN, 0.04, 11, np.full(3, 0.1))
    assert found.same_classes is None
    assert found.other_classes is not None


def test_a_single_training_says_nothing_of_another(three: UnitSums) -> None:
    found = over_seeds(trainings(three.sums[:1]))
    assert (found.sd, found.n, found.trainings) == (None, 1, Difference(found.mean))
    assert found.classes.low is not None


def test_nine_classes_have_no_interval() -> None:
    found = over_seeds(trainings(np.random.default_rng(0).random((3, 9))))
    assert found.classes == found.trainings == Difference(found.mean)


def test_a_clear_difference_has_a_p_above_0() -> None:
    found = statements(Difference(1e9, 9e8, 2e9, 0.0), 1e-9, 100_000, np.full(3, 1e9)).trainings
    assert found.p is not None
    assert 0 < found.p < 1e-300


def test_trainings_on_other_queries_are_refused(three: UnitSums) -> None:
    counts = three.counts.copy()
    counts[1, 5] = 2
    with pytest.raises(ValueError, match="measured on different queries"):
        over_seeds(UnitSums(three.sums, counts))


def test_draws_of_equal_size_may_hold_a_unit_more_or_less_often() -> None:
    # 12 units, each drawn 3 times and once, or once and 3 times: means (3 a + b) / 4 and (a + 3 b) / 4 of the halves.
    often = np.array([[3.0] * 6 + [1.0] * 6, [1.0] * 6 + [3.0] * 6])
    values = np.linspace(0, 1, 12)
    found = over_seeds(UnitSums(often * values, often))
    a, b = values[:6].mean(), values[6:].mean()
    assert found.mean == pytest.approx((a + b) / 2)
    assert found.sd == pytest.approx(abs(a - b) / 2 / 2**0.5)


def test_the_mean_of_trainings_has_students_interval() -> None:
    each = np.array([0.5, 0.6, 0.4, 0.8])
    found = mean_interval(each)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(tuple(stats.ttest_1samp(each, 0).confidence_interval()))


@pytest.mark.parametrize("each", [[0.5], [0.5, 0.5, 0.5]])
def test_trainings_that_do_not_differ_have_no_interval(each: list[float]) -> None:
    assert mean_interval(np.array(each)) is None


def test_a_further_training_has_students_prediction_interval() -> None:
    each = np.array([0.5, 0.6, 0.4, 0.8])
    # Mean 0.575, sd 0.170783; t of 3 degrees of freedom at 0.975 is 3.182446.
    half = 3.182446 * 0.170783 * np.sqrt(1.25)
    found = further_interval(each)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.575 - half, 0.575 + half), abs=1e-5)


@pytest.mark.parametrize("each", [[0.5, 0.6], [0.5, 0.5, 0.5]])
def test_two_trainings_or_equal_ones_predict_no_further_one(each: list[float]) -> None:
    assert further_interval(np.array(each)) is None
