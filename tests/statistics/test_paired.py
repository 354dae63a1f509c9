from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from layerprobe.statistics.paired import _tail, paired_difference


def test_the_value_is_the_mean_difference_over_queries() -> None:
    assert paired_difference([1, 0, 1, 1], [0, 0, 1, 0], [0, 0, 1, 2]).value == 2 / 4


def test_no_spread_between_classes_is_no_interval() -> None:
    # Every class gains one of its two queries.
    found = paired_difference([1, 0, 1, 0, 1, 0], [0] * 6, [0, 0, 1, 1, 2, 2])
    assert (found.value, found.low, found.high) == (1 / 2, 1 / 2, 1 / 2)


def test_the_interval_is_that_of_every_draw_of_classes() -> None:
    # Three classes of 1, 2 and 4 queries gain 1, 1 and -2: all 27 draws, each weighed by its queries.
    a, b, labels = [1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0], [5, 3, 3, 8, 8, 8, 8]
    gains, sizes = np.array([1, 1, -2]), np.array([1, 2, 4])
    draws = [gains[list(drawn)].sum() / sizes[list(drawn)].sum() for drawn in product(range(3), repeat=3)]
    found = paired_difference(a, b, labels, resamples=20_000)
    # With three classes next to nothing is cut off: the ends are the extremes.
    assert (found.low, found.high) == (min(draws), max(draws)) == (-1 / 2, 1)


def test_swapping_the_layers_mirrors_the_interval() -> None:
    rng = np.random.default_rng(0)
    a, b, labels = rng.random(60), rng.random(60), np.arange(60) % 12
    there, back = paired_difference(a, b, labels), paired_difference(b, a, labels)
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low), abs=1e-12)


def test_queries_of_one_class_do_not_count_as_independent() -> None:
    # 8 classes of 100 queries that all gain or all lose: as uncertain as 8 queries.
    gains = np.array([1, 1, 1, 0, 0, 0, 1, 0.0])
    many = paired_difference(np.repeat(gains, 100), np.zeros(800), np.repeat(np.arange(8), 100))
    few = paired_difference(gains, np.zeros(8), np.arange(8))
    assert (many.low, many.high) == (few.low, few.high)
    assert many.high - many.low > 0.5


@pytest.mark.parametrize("classes", [10, 40])
def test_the_interval_covers_the_truth_as_often_as_it_says(classes: int) -> None:
    rng = np.random.default_rng(0)
    covered, trials = 0, 600
    for _ in range(trials):
        labels = np.repeat(np.arange(classes), rng.integers(2, 12, classes))
        gain = rng.normal(0.1, 0.3, classes)[labels] + rng.normal(0, 0.3, len(labels))
        found = paired_difference(gain, np.zeros_like(gain), labels, resamples=2000)
        covered += found.low <= 0.1 <= found.high
    # Near 94 %, give or take two standard errors of 600 trials, 2 points; plain percentiles give 87 % at 10.
    assert 0.905 <= covered / trials <= 0.97


def test_the_percentiles_approach_those_of_many_classes() -> None:
    # Student's t at 9 degrees, 2.2622, times sqrt(10 / 9) is 2.3845, the normal's 0.86 % point.
    assert _tail(10) == pytest.approx(0.0086, abs=5e-5)
    assert _tail(100_000) == pytest.approx(0.025, abs=1e-5)


def test_blocks_of_resamples_cover_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from layerprobe.statistics import paired

    rng = np.random.default_rng(0)
    a, labels = rng.random(60), np.arange(60) % 12
    whole = paired_difference(a, np.zeros(60), labels, resamples=1001)
    monkeypatch.setattr(paired, "_BLOCK", 12 * 10)
    assert paired_difference(a, np.zeros(60), labels, resamples=1001) == whole


def test_the_seed_decides_the_resampling() -> None:
    rng = np.random.default_rng(0)
    a, b, labels = rng.random(60), rng.random(60), np.arange(60) % 12
    first, again, other = (paired_difference(a, b, labels, resamples=100, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("a", "labels", "message"),
    [
        ([1, 0, 1], [0, 1], r"expected three vectors of one length, got \(3,\), \(3,\), \(2,\)"),
        ([1, 0], [0, 1], r"got \(2,\), \(3,\), \(2,\)"),
        ([1, 0, np.nan], [0, 1, 1], "a and b must be finite"),
        ([1, 0, 1], [4, 4, 4], "an interval over classes needs two classes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(a: list[float], labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_difference(a, [0, 0, 0], labels)


def test_at_least_one_resample() -> None:
    with pytest.raises(ValueError, match="resamples = 0: must be at least 1"):
        paired_difference([1, 0], [0, 0], [0, 1], resamples=0)
