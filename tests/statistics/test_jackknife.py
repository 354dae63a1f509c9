from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from layerprobe.ranking import recall_at_k
from layerprobe.ranking.left_out import left_out_recall
from layerprobe.statistics.jackknife import jackknife, jackknife_intervals, jackknife_over_seeds

Array = NDArray[np.float64]


def parts_of(sums: Array) -> Array:
    """What each unit adds to the mean of equal units without each unit; no unit changes another one's."""
    table = np.tile(sums / (len(sums) - 1), (len(sums), 1))
    np.fill_diagonal(table, 0)
    return table


def test_a_mean_over_units_has_students_interval() -> None:
    gains = np.random.default_rng(0).normal(0.1, 0.3, 12)
    found = jackknife([gains.mean()], [parts_of(gains)])[0]
    low, high = stats.t.interval(0.95, 11, gains.mean(), stats.sem(gains))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.p == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)


def test_an_interval_of_a_share_is_students_on_the_scale_of_the_logit() -> None:
    shares = np.random.default_rng(0).uniform(0.7, 1, 12)
    mean = shares.mean()
    found = jackknife_intervals([mean], [parts_of(shares)])[0]
    assert found is not None
    odds = np.log(mean / (1 - mean))
    reach = stats.t.ppf(0.975, 11) * stats.sem(shares) / (mean * (1 - mean))
    ends = [1 / (1 + np.exp(-end)) for end in (odds - reach, odds + reach)]
    assert (found.low, found.high) == pytest.approx(ends)
    assert 0 < found.low < mean < found.high < 1


def mean_over_pairs(table: Array) -> tuple[float, Array]:
    """The mean of numbers of pairs of units (U, U), its diagonal empty, and its parts without each unit."""
    units = len(table)
    left = np.array([table.sum(0) - table[u] for u in range(units)])  # [u, i]: what remains to unit i
    np.fill_diagonal(left, 0)
    return float(table.sum() / (units * (units - 1))), left / ((units - 1) * (units - 2))


def test_what_two_units_do_together_is_not_counted_twice() -> None:
    # Nothing but pairs: the mean of U (U - 1) independent numbers of variance 1 has the variance 1 / (U (U - 1)).
    rng, units = np.random.default_rng(0), 40
    errors = []
    for _ in range(200):
        table = rng.normal(size=(units, units))
        np.fill_diagonal(table, 0)
        value, parts = mean_over_pairs(table)
        found = jackknife([value], [parts])[0]
        assert found.high is not None
        errors.append((found.high - value) ** 2 / stats.t.ppf(0.975, units - 1) ** 2)
    jackknifed = 2 / (units * (units - 1))
    # 1 - 8 / 40 of one of the two is taken off.
    assert np.mean(errors) == pytest.approx(jackknifed * (1 - 0.8 / 2), rel=0.05)


def test_the_variance_is_a_third_of_the_jackknifes_at_least() -> None:
    # What one unit does to another is nearly undone by what the other does to it.
    rng, units = np.random.default_rng(1), 40
    table = rng.normal(size=(units, units))
    table += 0.2 * rng.normal(size=(units, units)) - table.T
    np.fill_diagonal(table, 0)
    value, parts = mean_over_pairs(table)
    jackknifed = (units - 1) / units * np.square(parts.sum(1) - parts.sum(1).mean()).sum()
    found = jackknife([value], [parts])[0]
    assert found.high is not None
    assert (found.high - value) ** 2 == pytest.approx(jackknifed / 3 * stats.t.ppf(0.975, units - 1) ** 2)


@pytest.mark.parametrize("units", [9, 10])
def test_an_interval_needs_ten_units(units: int) -> None:
    shares = np.linspace(0.3, 0.6, units)
    known = units >= 10
    assert (jackknife([shares.mean()], [parts_of(shares)])[0].low is not None) == known
    assert (jackknife_intervals([shares.mean()], [parts_of(shares)])[0] is not None) == known


def test_no_spread_is_no_interval() -> None:
    same = parts_of(np.full(12, 0.3))
    lacking = parts_of(np.linspace(0.3, 0.6, 12))
    lacking[3] = np.nan
    assert jackknife_intervals([0.3, 0.5], [same, lacking]) == [None, None]
    for found in jackknife([0.3, 0.5], [same, lacking]):
        assert (found.low, found.high, found.p) == (None, None, None)
    assert jackknife_intervals([1.0], [parts_of(np.linspace(0.9, 1, 12))]) == [None]


def test_swapping_two_layers_mirrors_the_interval() -> None:
    rng = np.random.default_rng(0)
    tables = rng.random((2, 12, 12))
    there, back = jackknife([0.1, -0.1], [tables[0] - tables[1], tables[1] - tables[0]])
    assert (there.value, there.low, there.high, there.p) == (-back.value, -(back.high or 0), -(back.low or 0), back.p)


def test_the_mean_over_trainings_has_two_intervals() -> None:
    rng = np.random.default_rng(0)
    gains = rng.normal(0.1, 0.3, 14) + rng.normal(0, 0.1, (3, 1))
    found = jackknife_over_seeds(gains.mean(1), [parts_of(row) for row in gains])
    classes = jackknife([gains.mean()], [parts_of(gains.mean(0))])[0]
    assert (found.classes.low, found.classes.high) == pytest.approx((classes.low, classes.high))
    assert found.n == 3
    assert found.mean == pytest.approx(gains.mean())
    assert found.sd == pytest.approx(gains.mean(1).std(ddof=1))
    assert found.trainings.low is not None
    assert found.classes.low is not None
    assert found.trainings.low < found.classes.low
    alone = jackknife_over_seeds(gains[:1].mean(1), [parts_of(gains[0])])
    assert (alone.sd, alone.trainings.low) == (None, None)
    assert alone.classes.low is not None


def test_tables_of_another_shape_are_refused() -> None:
    for values, tables in (([0.5], np.zeros((12, 12))), ([0.5], np.zeros((2, 12, 12))), ([], np.zeros((0, 12, 12)))):
        with pytest.raises(ValueError, match=r"expected \(C,\) values and \(C, U, U\)"):
            jackknife(values, tables)
    with pytest.raises(ValueError, match="outside"):
        jackknife_intervals([1.2], np.zeros((1, 12, 12)))


def drawn(rng: np.random.Generator, classes: int) -> tuple[Array, Array, NDArray[np.int64]]:
    """Two layers of equal expected recall, on one draw of classes."""
    labels = np.repeat(np.arange(classes), rng.integers(4, 13, classes))
    centres, noise = rng.normal(size=(3, classes, 8)), rng.normal(size=(3, len(labels), 8))
    first, second = ((0.9 * centres[0] + 0.4 * centres[i])[labels] + 0.7 * (noise[0] + noise[i]) for i in (1, 2))
    return first, second, labels


@pytest.mark.slow
def test_intervals_hold_for_another_draw_of_classes() -> None:
    rng, sets = np.random.default_rng(0), 400
    values, intervals, rejected = [], [], 0
    for _ in range(sets):
        *layers, labels = drawn(rng, 20)
        of_layers = [recall_at_k(layer, labels, ks=[1])[1] for layer in layers]
        tables = [left_out_recall(layer, labels, labels)[0] for layer in layers]
        difference = jackknife([of_layers[0] - of_layers[1]], [tables[0] - tables[1]])[0]
        rejected += difference.p is not None and difference.p < 0.05
        values.append(of_layers[0])
        intervals += jackknife_intervals(of_layers[:1], tables[:1])
    truth = np.mean(values)
    covered = sum(found is not None and found.low <= truth <= found.high for found in intervals)
    # Three standard errors of 400 sets around 95 and 5 %.
    assert covered / sets == pytest.approx(0.95, abs=0.033)
    assert rejected / sets == pytest.approx(0.05, abs=0.033)
