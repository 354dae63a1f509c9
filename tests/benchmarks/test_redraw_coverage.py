"""The measure of the redraw intervals itself, on problems small enough to see through."""

import numpy as np
import pytest

from benchmarks.redraw_coverage import drawn, fixed, halve, simulate, tukey


def test_clusters_hold_three_classes_each() -> None:
    first, second, labels, units = drawn("clusters", 12, np.random.default_rng(0))
    assert first.shape == second.shape == (len(labels), 16)
    assert [len(set(labels[units == unit])) for unit in range(12)] == [3] * 12


def test_variances_are_those_of_means_over_equal_classes() -> None:
    # Six classes of two queries with no say in each other's hits: the variance of a mean of six numbers.
    hits = np.array([[1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0.0]])
    of_classes = hits.reshape(6, 2).mean(1)
    table = np.tile(of_classes / 5, (1, 6, 1))
    table[:, range(6), range(6)] = 0
    assert fixed(hits, np.repeat(np.arange(6), 2)) == pytest.approx(of_classes.var(ddof=1) / 6)
    assert tukey(table) == pytest.approx(of_classes.var(ddof=1) / 6)


def test_a_few_sets_and_halves_have_a_row_for_each_k() -> None:
    cells = [row.split() for row in simulate("uneven", 10, 2)]
    assert [[*row[:2], row[3]] for row in cells] == [["uneven", "10", "R@1"], ["uneven", "10", "R@8"]]
    first, second, labels, _ = drawn("even", 20, np.random.default_rng(0))
    rows = halve({"first": first, "second": second}, labels, 2)
    assert [row.rsplit("R@", 1)[0].strip() for row in rows] == ["first"] * 2 + ["second"] * 2 + ["first - second"] * 2
