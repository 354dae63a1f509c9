from __future__ import annotations

import numpy as np
import pytest

from layerprobe.statistics.units import UnitSums, effective_number, mean_of, side_by_side, unit_sums


def test_values_are_summed_over_their_units() -> None:
    found = unit_sums(np.array([[1, 0, 1, 1], [0, 0, 1, 0.5]]), [7, 7, 2, 7])
    assert found.sums.tolist() == [[1, 2], [1, 0.5]]  # units 2 and 7
    assert found.counts.tolist() == [[1, 3], [1, 3]]
    assert found.means.tolist() == [3 / 4, 1.5 / 4]


def test_a_query_that_is_left_out_counts_in_no_unit() -> None:
    found = unit_sums([1, np.nan, 0], [0, 0, 1])
    assert (found.sums.tolist(), found.counts.tolist(), found.means.tolist()) == ([[1, 0]], [[1, 1]], [0.5])


def test_a_unit_without_a_query_is_none() -> None:
    assert unit_sums([np.nan, 1, 0], [0, 1, 2]).units == 2


def test_the_difference_of_means_of_the_same_queries() -> None:
    a, b = unit_sums([1, 0, 1], [0, 0, 1]), unit_sums([0, 0, 0.5], [0, 0, 1])
    assert a.minus(b).means.tolist() == [1.5 / 3]
    with pytest.raises(ValueError, match="other queries"):
        a.minus(unit_sums([0, np.nan, 0.5], [0, 0, 1]))


@pytest.mark.parametrize(
    ("values", "units", "message"),
    [
        ([1, 0], [0, 1, 2], "a value and unit for each query"),
        ([1, np.inf], [0, 1], "must not be infinite"),
        ([np.nan, np.nan], [0, 1], "no query at all"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(values: list[float], units: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unit_sums(values, units)


def test_tables_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        UnitSums(np.zeros((1, 2)), np.ones((1, 3)))


def test_the_mean_over_trainings_keeps_the_queries() -> None:
    parts = [unit_sums([[1, 0, 1], [0, 0, 0]], [3, 3, 5]), unit_sums([[0, 0, 1], [1, 1, 0]], [3, 3, 5])]
    found = mean_of(parts)
    assert found.sums.tolist() == [[0.5, 1], [1, 0]]
    assert found.counts.tolist() == [[2, 1], [2, 1]]
    with pytest.raises(ValueError, match="other queries"):
        mean_of([parts[0], unit_sums([[1, 0], [0, 0]], [3, 5])])


def test_units_of_several_folds_stand_side_by_side() -> None:
    found = side_by_side([unit_sums([[1, 0, 1]], [3, 3, 5]), unit_sums([[0.5]], [0])])
    assert (found.sums.tolist(), found.counts.tolist()) == ([[1, 1, 0.5]], [[2, 1, 1]])


def test_the_effective_number_counts_unequal_units_as_fewer() -> None:
    # (6 + 3 + 1)^2 / (36 + 9 + 1) = 100 / 46
    assert effective_number(np.array([6.0, 3.0, 1.0])) == pytest.approx(100 / 46)
    assert effective_number(np.array([[4.0, 4.0, 4.0], [4.0, 0.0, 0.0]])).tolist() == [3.0, 1.0]
