from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from layerprobe.statistics.class_differences import (
    PairedCounts,
    chance_of_losing,
    paired_counts,
    paired_intervals,
    shrink_means,
    sign_tests,
)


def counts(*tables: tuple[int, int, int, int], undecided: int = 0) -> PairedCounts:
    """Of classes with (both, a alone, b alone, neither)."""
    both, a_alone, b_alone, neither = np.array(tables).T
    return PairedCounts(both, a_alone, b_alone, neither, np.full(len(tables), undecided))


def test_images_are_counted_by_class_and_tied_hits_apart() -> None:
    a = np.array([1, 1, 0, 0, 0.5, 1, 0])
    b = np.array([1, 0, 1, 0, 1, 0, 1 / 3])
    found = paired_counts(a, b, np.array([7, 7, 7, 7, 7, 3, 3]))
    assert found.both.tolist() == [0, 1]  # of classes 3 and 7
    assert found.a_alone.tolist() == [1, 1]
    assert found.b_alone.tolist() == [0, 1]
    assert found.neither.tolist() == [0, 1]
    assert found.undecided.tolist() == [1, 1]


@pytest.mark.parametrize("alone", [(0, 0), (5, 0), (0, 6), (3, 9), (4, 4)])
def test_p_is_that_of_scipys_binomial_test(alone: tuple[int, int]) -> None:
    expected = stats.binomtest(alone[0], sum(alone)).pvalue if sum(alone) else 1.0
    assert sign_tests(counts((2, *alone, 1))) == [pytest.approx(expected, abs=1e-12)]


def test_a_class_with_an_undecided_image_has_no_p_and_no_interval() -> None:
    undecided = counts((10, 5, 0, 10), undecided=1)
    assert (sign_tests(undecided), paired_intervals(undecided)) == ([None], [None])


def newcombe(both: int, a_alone: int, b_alone: int, neither: int) -> tuple[float, float]:
    """Method 10, with Wilson's intervals by scipy."""
    n = both + a_alone + b_alone + neither
    hits = (both + a_alone, both + b_alone)
    p = [hit / n for hit in hits]
    ends = [stats.binomtest(hit, n).proportion_ci(method="wilson") for hit in hits]
    product = both * neither - a_alone * b_alone
    corrected = max(product - n / 2, 0) if product > 0 else product
    margins = math.prod((hits[0], n - hits[0], hits[1], n - hits[1]))
    phi = corrected / math.sqrt(margins) if margins else 0
    below, above = [x - e.low for x, e in zip(p, ends, strict=True)], [e.high - x for x, e in zip(p, ends, strict=True)]
    low = math.sqrt(below[0] ** 2 - 2 * phi * below[0] * above[1] + above[1] ** 2)
    high = math.sqrt(below[1] ** 2 - 2 * phi * below[1] * above[0] + above[0] ** 2)
    return p[0] - p[1] - low, p[0] - p[1] + high


@pytest.mark.parametrize(
    "table", [(4, 8, 0, 8), (0, 0, 10, 0), (20, 0, 0, 0), (5, 3, 3, 9), (1, 6, 7, 2), (0, 0, 0, 10)]
)
def test_the_interval_is_newcombes(table: tuple[int, int, int, int]) -> None:
    (found,) = paired_intervals(counts(table))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(newcombe(*table), abs=1e-12)


def test_fewer_than_ten_images_have_no_interval() -> None:
    assert paired_intervals(counts((3, 3, 3, 0), (3, 3, 3, 1)))[0] is None
    assert paired_intervals(counts((3, 3, 3, 0), (3, 3, 3, 1)))[1] is not None


@pytest.mark.parametrize(("gain", "loss"), [(0.05, 0.05), (0.3, 0.1), (0.0, 0.2), (0.5, 0.2)])
@pytest.mark.parametrize("n", [10, 20])
def test_the_interval_covers_the_difference_often_enough(gain: float, loss: float, n: int) -> None:
    # the probability of every table, where half of the other images are hit by both
    both = neither = (1 - gain - loss) / 2
    tables = [
        (hit, a, b, n - hit - a - b) for a in range(n + 1) for b in range(n + 1 - a) for hit in range(n + 1 - a - b)
    ]
    chances = stats.multinomial.pmf(np.array(tables), n, [both, gain, loss, neither])
    covers = [x is not None and x.low <= gain - loss <= x.high for x in paired_intervals(counts(*tables))]
    assert chances[covers].sum() > 0.92


def by_hand(values: list[list[float]]) -> list[float]:
    """Bühlmann and Straub's estimate by loops, of the values of each class."""
    number, images = len(values), sum(map(len, values))
    means = [sum(x) / len(x) for x in values]
    mean = sum(map(sum, values)) / images
    within = sum((v - m) ** 2 for x, m in zip(values, means, strict=True) for v in x) / (images - number)
    between = sum(len(x) * (m - mean) ** 2 for x, m in zip(values, means, strict=True)) - (number - 1) * within
    between /= images - sum(len(x) ** 2 for x in values) / images
    if between <= 0:
        return [mean] * number
    weights = [len(x) * between / (len(x) * between + within) for x in values]
    centre = sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)
    return [w * m + (1 - w) * centre for w, m in zip(weights, means, strict=True)]


def flat(values: list[list[float]]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    return np.concatenate(values), np.repeat(np.arange(len(values)), [len(x) for x in values])


def test_means_are_shrunk_by_moments() -> None:
    values = [[-1.0, -1, -1, 0], [1.0, 1, 1, 1, 0, 1], [1.0], [0.0, 0, -1]]
    shrunk = shrink_means(*flat(values))
    assert shrunk == pytest.approx(by_hand(values), abs=1e-12)
    assert shrunk is not None
    assert 1 - shrunk[2] > abs(shrunk[1] - 5 / 6)  # a single image says less than six


def test_classes_that_differ_by_chance_are_shrunk_to_the_mean_of_all() -> None:
    assert shrink_means(*flat([[1.0, -1], [-1.0, 1], [1.0, 1, -1, -1]])).tolist() == [0, 0, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("values", [[[1.0], [0.0]], [[1.0, 0.0]]])
def test_without_a_spread_to_estimate_nothing_is_shrunk(values: list[list[float]]) -> None:
    assert shrink_means(*flat(values)) is None


def test_how_many_classes_lose_by_chance() -> None:
    # two classes of two: the losses meet in one class in 1 of 3 pairings, and then it alone loses
    found = chance_of_losing(np.array([-1.0, 1, -1, 1]), np.array([0, 0, 1, 1]))
    assert (found.low, found.high, found.p) == (0, 1, 1.0)  # none loses, which is reached always


def test_losses_that_meet_in_few_classes_lose_more_than_chance() -> None:
    classes = np.repeat(np.arange(20), 10)
    differences = np.where(classes < 3, -1.0, 1.0)
    found = chance_of_losing(differences, classes)
    assert (found.high, found.p) == (0, 0.001)


def test_equal_differences_leave_nothing_to_chance() -> None:
    found = chance_of_losing(np.full(6, -1.0), np.repeat([0, 1, 2], 2))
    assert (found.low, found.high, found.p) == (3, 3, 1)
