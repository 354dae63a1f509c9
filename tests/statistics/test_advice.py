"""Whether to switch, and the gain on units that did not decide it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.statistics.advice import Advised, advise
from layerprobe.statistics.choice import folds_of
from layerprobe.statistics.units import UnitSums


def gains_of(differences: NDArray[np.float64]) -> UnitSums:
    """Gains of units of 20 queries."""
    return UnitSums(20 * differences[None], np.full((1, len(differences)), 20.0))


def test_where_both_halves_decide_the_gain_is_that_of_all() -> None:
    differences = np.random.default_rng(0).normal(0.1, 0.05, 40)
    advised = advise(gains_of(differences), within=0.01)
    assert (advised.advice, advised.units, advised.decided_elsewhere) == ("switch", 40, True)
    assert advised.gain.value == pytest.approx(differences.mean())


def test_where_one_half_decides_the_gain_is_that_of_the_other() -> None:
    halves = folds_of(np.arange(40), count=2, seed=0)
    noise = np.random.default_rng(1).normal(0, 0.02, 40)
    differences = np.where(halves == 0, 0.05, 0.0) + noise - np.where(halves == 0, noise[halves == 0].mean(), 0)
    differences[halves == 1] += 0.004 - differences[halves == 1].mean()
    advised = advise(gains_of(differences), within=0.01)
    assert (advised.advice, advised.units) == ("switch", 20)
    assert advised.gain.value == pytest.approx(0.004)


def test_halves_that_contradict_each_other_cannot_tell() -> None:
    halves = folds_of(np.arange(40), count=2, seed=0)
    differences = np.where(halves == 0, 0.1, -0.1) + np.random.default_rng(2).normal(0, 0.03, 40)
    assert advise(gains_of(differences), within=0.01).advice == "unknown"


def test_a_worse_candidate_is_not_switched_to() -> None:
    differences = np.random.default_rng(0).normal(-0.1, 0.05, 40)
    assert advise(gains_of(differences), within=0.01).advice == "keep"


def test_a_gain_that_does_not_matter_is_either() -> None:
    differences = np.random.default_rng(0).normal(0.004, 0.004, 40)
    assert advise(gains_of(differences), within=0.01).advice == "either"
    assert advise(gains_of(np.zeros(12)), within=0.0).advice == "either"


def test_fewer_than_20_units_decide_and_report() -> None:
    differences = np.random.default_rng(0).normal(0.1, 0.05, 19)
    advised = advise(gains_of(differences), within=0.01)
    assert (advised.advice, advised.units, advised.decided_elsewhere) == ("switch", 19, False)
    assert advise(gains_of(np.full(9, 0.1)), within=0.01).advice == "unknown"


def test_the_reported_gain_is_unbiased_where_that_by_which_it_was_decided_is_not() -> None:
    true, rng = 0.025, np.random.default_rng(0)
    switched: list[tuple[Advised, float]] = []
    for seed in range(60):
        differences = rng.normal(true, 0.1, 40)
        advised = advise(gains_of(differences), within=0.01, seed=seed)
        if advised.advice == "switch":
            switched.append((advised, float(differences.mean())))
    reported = np.average([one.gain.value for one, _ in switched], weights=[one.units for one, _ in switched])
    # 15 gains, whose mean has a standard error of 0.006; the means of all units are too high by 0.011.
    assert reported == pytest.approx(true, abs=0.01)
    assert np.mean([mean for _, mean in switched]) > true + 0.01
