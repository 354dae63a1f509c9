from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from layerprobe.ranking import recall_at_k
from layerprobe.ranking.left_out import left_out_recall
from layerprobe.statistics.jackknife import jackknife, jackknife_over_seeds
from layerprobe.values.intervals import Difference

Array = NDArray[np.float64]


def parts_of(means: Array, queries: Array | None = None) -> Array:
    """What each unit adds to the mean over queries without each unit; no unit changes another one's."""
    sizes = np.ones(len(means)) if queries is None else queries
    table: Array = means * sizes / (sizes.sum() - sizes)[:, None]
    np.fill_diagonal(table, 0)
    return table


def of_equal_units(value: float, table: Array) -> Difference:
    return jackknife([value], [table], [np.ones(len(table))])[0]


def test_a_mean_over_units_has_students_interval() -> None:
    gains = np.random.default_rng(0).normal(0.1, 0.3, 12)
    found = of_equal_units(gains.mean(), parts_of(gains))
    low, high = stats.t.interval(0.95, 11, gains.mean(), stats.sem(gains))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.p == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)


def test_units_of_unequal_size_have_the_jackknifes_variance_and_kishs_degrees() -> None:
    rng = np.random.default_rng(0)
    gains, queries = rng.normal(0.1, 0.3, 12), rng.integers(1, 60, 12).astype(np.float64)
    value = (gains * queries).sum() / queries.sum()
    without = [np.delete(gains * queries, u).sum() / np.delete(queries, u).sum() for u in range(12)]
    error = (11 / 12 * np.square(without - np.mean(without)).sum()) ** 0.5
    degrees = queries.sum() ** 2 / np.square(queries).sum() - 1
    difference = jackknife([value], [parts_of(gains, queries)], [queries])[0]
    assert (difference.low, difference.high) == pytest.approx(stats.t.interval(0.95, degrees, value, error))
    assert difference.p == pytest.approx(2 * stats.t.sf(abs(value) / error, degrees))


def test_a_unit_of_nearly_all_queries_leaves_one_degree_of_freedom() -> None:
    gains, queries = np.linspace(0.1, 0.5, 12), np.array([1e6, *np.ones(11)])
    difference = jackknife([0.1], [parts_of(gains, queries)], [queries])[0]
    assert difference.p is not None
    assert difference.high is not None
    error = 0.1 / stats.t.isf(difference.p / 2, 1)
    assert difference.high == pytest.approx(0.1 + stats.t.ppf(0.975, 1) * error)


def test_a_unit_without_queries_counts_in_the_gallery_alone() -> None:
    rng = np.random.default_rng(0)
    gains, queries = rng.normal(0.1, 0.3, 13), np.array([0.0, *np.full(12, 5.0)])
    table = parts_of(gains, queries)
    table[0] -= 0.5 * table[1:].mean(0).mean()  # without it the others find less
    difference = jackknife([0.1], [table], [queries])[0]
    without = table.sum(1)
    error = (12 / 13 * np.square(without - without.mean()).sum()) ** 0.5
    assert (difference.low, difference.high) == pytest.approx(stats.t.interval(0.95, 11, 0.1, error))


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
        found = of_equal_units(value, parts)
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
    found = of_equal_units(value, parts)
    assert found.high is not None
    assert (found.high - value) ** 2 == pytest.approx(jackknifed / 3 * stats.t.ppf(0.975, units - 1) ** 2)


@pytest.mark.parametrize("units", [9, 10])
def test_an_interval_needs_ten_units(units: int) -> None:
    shares = np.linspace(0.3, 0.6, units)
    known = units >= 10
    assert (of_equal_units(shares.mean(), parts_of(shares)).low is not None) == known


def test_no_spread_is_no_interval() -> None:
    same = parts_of(np.full(12, 0.3))
    lacking = parts_of(np.linspace(0.3, 0.6, 12))
    lacking[3] = np.nan
    for found in jackknife([0.3, 0.5], [same, lacking], np.ones((2, 12))):
        assert (found.low, found.high, found.p) == (None, None, None)


def test_swapping_two_layers_mirrors_the_interval() -> None:
    rng = np.random.default_rng(0)
    tables = rng.random((2, 12, 12))
    there, back = jackknife(
        [0.1, -0.1], [tables[0] - tables[1], tables[1] - tables[0]], rng.integers(1, 9, (1, 12)).repeat(2, 0)
    )
    assert (there.value, there.low, there.high, there.p) == (-back.value, -(back.high or 0), -(back.low or 0), back.p)


def test_the_mean_over_trainings_has_two_intervals() -> None:
    rng = np.random.default_rng(0)
    gains = rng.normal(0.1, 0.3, 14) + rng.normal(0, 0.1, (3, 1))
    found = jackknife_over_seeds(gains.mean(1), [parts_of(row) for row in gains], np.ones(14))
    classes = of_equal_units(gains.mean(), parts_of(gains.mean(0)))
    assert (found.classes.low, found.classes.high) == pytest.approx((classes.low, classes.high))
    assert found.n == 3
    assert found.mean == pytest.approx(gains.mean())
    assert found.sd == pytest.approx(gains.mean(1).std(ddof=1))
    assert found.trainings.low is not None
    assert found.classes.low is not None
    assert found.trainings.low < found.classes.low
    alone = jackknife_over_seeds(gains[:1].mean(1), [parts_of(gains[0])], np.ones(14))
    assert (alone.sd, alone.trainings.low) == (None, None)
    assert alone.classes.low is not None


def test_tables_of_another_shape_are_refused() -> None:
    for values, tables in (([0.5], np.zeros((12, 12))), ([0.5], np.zeros((2, 12, 12))), ([], np.zeros((0, 12, 12)))):
        with pytest.raises(ValueError, match=r"expected \(C,\) values, \(C, U, U\)"):
            jackknife(values, tables, np.ones(tables.shape[:2]))
    with pytest.raises(ValueError, match=r"and \(1, 11\)"):
        jackknife([0.5], np.zeros((1, 12, 12)), np.ones((1, 11)))


def drawn(rng: np.random.Generator, sizes: NDArray[np.int64]) -> tuple[Array, Array, NDArray[np.int64]]:
    """Two layers of equal expected recall, on one draw of classes of some sizes."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centres, noise = rng.normal(size=(3, len(sizes), 8)), rng.normal(size=(3, len(labels), 8))
    first, second = ((0.9 * centres[0] + 0.4 * centres[i])[labels] + 0.7 * (noise[0] + noise[i]) for i in (1, 2))
    return first, second, labels


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_equal_layers_are_seldom_told_apart_on_another_draw_of_classes(spread: float) -> None:
    # 8 images a class, or lognormal numbers of them.
    rng, sets, differ = np.random.default_rng(0), 400, 0
    for _ in range(sets):
        sizes = np.clip(np.round(8 * np.exp(rng.normal(0, spread, 20))), 2, 300).astype(np.int64)
        *layers, labels = drawn(rng, sizes)
        recalls = [recall_at_k(layer, labels, ks=[1])[1] for layer in layers]
        tables = [left_out_recall(layer, labels, labels)[0] for layer in layers]
        difference = jackknife([recalls[0] - recalls[1]], [tables[0] - tables[1]], [sizes])[0]
        differ += difference.p is not None and difference.p < 0.05
    # Three standard errors of 400 sets around 5 %.
    assert differ / sets == pytest.approx(0.05, abs=0.033)
