from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import t

from layerprobe.statistics.pair_rates import rate_intervals
from layerprobe.values.intervals import Interval

UNITS = 20
Table = NDArray[np.int64]
PAIRS = np.triu(np.full((UNITS, UNITS), 16), 1)


def accepted() -> Table:
    """A unit that is often taken for others, and some pairs beside."""
    found = np.triu(np.random.default_rng(0).binomial(16, 0.02, (UNITS, UNITS)), 1)
    found[0, 1:] += 2
    return found


def by_loops(table: Table, pairs: Table, cells: float) -> list[float]:
    """Both ends, by plain loops over the equations, with a quarter of one of so many pairs added."""
    units, total, rate = len(pairs), pairs.sum(), table.sum() / pairs.sum()
    kinds = {(u, v): u == v and bool(pairs.diagonal().any()) for u in range(units) for v in range(u, units)}
    rates = {kind: mean_of([place for place in kinds if kinds[place] == kind], table, pairs) for kind in (True, False)}
    residual = {place: table[place] - rates[kind] * pairs[place] for place, kind in kinds.items()}
    sizes = [sum(pairs[place] for place in kinds if u in place) for u in range(units)]
    apart = sum(pairs[u, v] for u, v in kinds if u != v)
    of_unit = []
    for u in range(units):
        share = (sizes[u] - pairs[u, u]) / apart
        of_unit.append(sum(e for place, e in residual.items() if u in place) * (1 - 2 / units) / (1 - share))
    first = sum(e**2 for e in of_unit) / total**2
    twice = sum(e**2 for (u, v), e in residual.items() if u != v) / total**2
    variance = max(first - twice, first / 3)
    skewness = sum(e**3 for e in of_unit) / sum(e**2 for e in of_unit) ** 1.5
    assert 0.05 < skewness < 1
    effective = sum(sizes) ** 2 / sum(size**2 for size in sizes)
    reach = t.ppf(0.975, effective - 1)
    low = rate * np.exp(-reach * (1 - skewness / 4) * np.sqrt(variance) / rate)
    added, longer = 1 / 4 / cells, reach * (1 + 2 * skewness * units / effective)
    more = (rate + added) * np.exp(longer * np.sqrt(variance + added**2) / (rate + added))
    return [low, max(more, rate * np.exp(longer * np.sqrt(variance) / rate))]


def mean_of(places: list[tuple[int, int]], table: Table, pairs: Table) -> float:
    return float(sum(table[place] for place in places) / max(1, sum(pairs[place] for place in places)))


def test_the_interval_is_that_of_plain_loops() -> None:
    (found,) = rate_intervals(accepted()[None], PAIRS)
    assert found is not None
    assert [found.low, found.high] == pytest.approx(by_loops(accepted(), PAIRS, UNITS * (UNITS - 1) / 2))


def test_the_interval_of_classes_of_equal_size_has_not_changed() -> None:
    # as the version before unequal sizes were told apart had it, to the last digit
    (found,) = rate_intervals(accepted()[None], PAIRS)
    assert found == Interval(0.025618332481359148, 0.17982618447497478)


SIZES = np.array([10, 8, *[4] * (UNITS - 2)])


def test_units_of_unequal_size_count_by_their_pairs() -> None:
    pairs = np.triu(np.outer(SIZES, SIZES), 1)
    table = pairs * accepted() // 16
    upper = [pairs[u, v] for u in range(UNITS) for v in range(u + 1, UNITS)]
    cells = sum(upper) ** 2 / sum(pair**2 for pair in upper)
    (found,) = rate_intervals(table[None], pairs)
    assert found is not None
    assert [found.low, found.high] == pytest.approx(by_loops(table, pairs, cells))


def test_an_interval_is_wider_where_few_classes_have_most_pairs() -> None:
    # One or two in 50 pairs of every two classes are accepted. With 19 degrees of freedom for classes of any size, both
    # intervals were 1.23 times as high as low
    sizes = np.array([40, 20, *[4] * (UNITS - 2)])
    pairs = np.triu(np.outer(sizes, sizes), 1) * 50
    table = pairs // 50 * np.random.default_rng(1).integers(1, 3, pairs.shape)
    equal = np.triu(np.full((UNITS, UNITS), 800), 1)
    (uneven,) = rate_intervals(table[None], pairs)
    (even,) = rate_intervals((equal // 50 * np.random.default_rng(1).integers(1, 3, pairs.shape))[None], equal)
    assert uneven is not None
    assert even is not None
    assert uneven.high / uneven.low > 1.5 * even.high / even.low


def test_pairs_within_clusters_have_a_mean_of_their_own() -> None:
    within = np.eye(UNITS, dtype=int) * 40
    table, pairs = accepted() + within // 4 + np.diag(np.arange(UNITS)), PAIRS + within
    (found,) = rate_intervals(table[None], pairs, classes=3 * UNITS)
    assert found is not None
    # a quarter of a pair of a cluster and a class, of three in a cluster
    assert [found.low, found.high] == pytest.approx(by_loops(table, pairs, 3 * UNITS * (UNITS - 1) / 2))


def test_a_unit_that_is_taken_for_none_makes_no_half_longer_or_shorter() -> None:
    table = PAIRS // 2
    table[0, 1:] = 0
    (found,) = rate_intervals(table[None], PAIRS)
    assert found is not None
    rate = table.sum() / PAIRS.sum()
    assert found.high / rate == pytest.approx(rate / found.low, rel=0.01)  # but for the quarter of a pair


def test_a_pair_may_stand_at_either_place() -> None:
    table = accepted()
    (found,) = rate_intervals(table[None], PAIRS)
    (mixed,) = rate_intervals(np.stack([table.T]), PAIRS.T)
    assert found is not None
    assert mixed is not None
    assert [found.low, found.high] == pytest.approx([mixed.low, mixed.high])


def test_without_an_accepted_pair_the_rate_may_still_be_above_0() -> None:
    (found,) = rate_intervals(np.zeros((1, UNITS, UNITS), np.int64), PAIRS)
    # a quarter of a pair of 190, e^t times: t of 19 degrees of freedom
    assert found == Interval(0.0, pytest.approx(np.exp(2.093024) / 4 / 190))  # type: ignore[arg-type] # approx


def test_rates_do_not_leave_0_to_1() -> None:
    (found,) = rate_intervals(PAIRS[None], PAIRS)
    assert found is not None
    assert 0 < found.low <= found.high == 1


def test_few_units_have_no_interval() -> None:
    pairs = np.zeros((UNITS, UNITS), np.int64)
    pairs[:9, :9] = PAIRS[:9, :9]
    assert rate_intervals(np.stack([pairs // 2, pairs // 4]), pairs) == [None, None]
    pairs[:10, :10] = PAIRS[:10, :10]
    assert None not in rate_intervals(np.stack([pairs // 2, pairs // 4]), pairs)


def test_more_accepted_pairs_than_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="more accepted pairs than pairs"):
        rate_intervals(PAIRS[None] + 1, PAIRS)
    with pytest.raises(ValueError, match=r"expected \(T, U, U\) and \(U, U\)"):
        rate_intervals(PAIRS, PAIRS)
