from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from layerprobe.statistics.pair_rates import rate_intervals
from layerprobe.values.intervals import Interval

UNITS = 20
PAIRS = np.triu(np.full((UNITS, UNITS), 16), 1)


def accepted() -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """A unit that is often taken for others, and some pairs beside."""
    found = np.triu(np.random.default_rng(0).binomial(16, 0.02, (UNITS, UNITS)), 1)
    found[0, 1:] += 2
    return found


@pytest.mark.parametrize("within", [0, 40])
def test_the_interval_is_that_of_plain_loops(within: int) -> None:
    # pairs within a unit of several classes depend on that unit alone
    table, pairs = accepted() + np.eye(UNITS, dtype=int) * (within // 4), PAIRS + np.eye(UNITS, dtype=int) * within
    total, rate = pairs.sum(), table.sum() / pairs.sum()
    residual = {(u, v): table[u, v] - rate * pairs[u, v] for u in range(UNITS) for v in range(u, UNITS)}
    first = sum(sum(e for pair, e in residual.items() if u in pair) ** 2 for u in range(UNITS)) / total**2
    twice = sum(e**2 for (u, v), e in residual.items() if u != v) / total**2
    reach = t.ppf(0.975, UNITS - 1)
    variance = max(first - twice, first / 3)
    of_unit = [sum(e for pair, e in residual.items() if u in pair) for u in range(UNITS)]
    skewness = sum(e**3 for e in of_unit) / sum(e**2 for e in of_unit) ** 1.5
    assert 0.05 < skewness < 1
    low = rate * np.exp(-reach * (1 - skewness / 4) * np.sqrt(variance) / rate)
    added, longer = 1 / 4 / (UNITS * (UNITS - 1) / 2), reach * (1 + 2 * skewness)
    more = (rate + added) * np.exp(longer * np.sqrt(variance + added**2) / (rate + added))
    high = max(more, rate * np.exp(longer * np.sqrt(variance) / rate))
    (found,) = rate_intervals(table[None], pairs)
    assert found is not None
    assert [found.low, found.high] == pytest.approx([low, high])


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
