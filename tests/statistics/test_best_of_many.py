from __future__ import annotations

import numpy as np

from layerprobe.statistics.best_of_many import indistinguishable_from_best
from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.units import UnitSums


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
