from __future__ import annotations

from dataclasses import replace

import pytest

from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.intervals import Interval, IntervalKind, SamplingUnits
from layerprobe.values.keys import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from layerprobe.values.seeds import facts_over_seeds, over_seeds, trainings
from tests.scores import with_layer

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
SCORE = Score("netA-s0", "abc", 0, 1, "test", FC6, "R@1", 0.5, Interval(0.4, 0.6), 100)


def seeds(*values: float | None, epoch: int = 1) -> list[Score]:
    """A score of each training."""
    return [replace(SCORE, run=f"netA-s{i}", seed=i, epoch=epoch, value=value) for i, value in enumerate(values)]


def test_trainings_of_one_experiment_become_their_mean_with_the_lowest_and_highest() -> None:
    (mean,) = over_seeds(seeds(0.5, 0.75, 0.25, 0.3))
    # (0.5 + 0.75 + 0.25 + 0.3) / 4
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.45, 0.25, 0.75), abs=1e-15)
    assert (mean.run, mean.experiment, mean.seed, mean.n) == ("netA-s* (4 seeds)", "abc", None, 4)


def test_a_mean_says_what_its_ends_are() -> None:
    (mean,) = over_seeds(seeds(0.5, 0.75))
    assert mean.all_notes == ("mean of 2 trainings", "interval: lowest to highest training")
    assert mean.units == SamplingUnits(IntervalKind(trainings=True), 2)


def test_a_single_training_and_other_experiments_stay_as_they_are() -> None:
    others = [SCORE, replace(SCORE, run="netA-softmax-s0", experiment="other")]
    assert over_seeds(others) == others


def test_a_number_that_not_all_have_is_left_out_with_a_note() -> None:
    late = seeds(0.5, 0.75, epoch=2)
    extra = with_layer(SCORE, layer="pool5")
    found = over_seeds([SCORE, extra, late[0], *seeds(0.25, 0.75)[1:]])
    assert [(s.epoch, s.ranked.layer.layer, s.value) for s in found] == [(1, "fc6", 0.625)]
    assert "left out, as not all trainings have them: epoch 2 and 1 number of 1 layer" in found[0].notes


def test_what_another_reduction_lacks_is_not_said_of_the_layers_as_they_are() -> None:
    found = over_seeds([*seeds(0.5, 0.75), with_layer(SCORE, reduction="l2")])
    assert found[0].notes == ("mean of 2 trainings",)


def test_without_a_number_in_common_runs_stay_apart() -> None:
    apart = [SCORE, replace(SCORE, run="netA-s1", epoch=2)]
    assert over_seeds(apart) == apart


def test_a_mean_over_an_invalid_value_has_none_and_the_reason() -> None:
    first, second = seeds(0.5, None)
    (mean,) = over_seeds([first, replace(second, notes=("NaN (3 rows)",))])
    assert (mean.value, mean.low, mean.high) == (None, None, None)
    assert mean.notes == ("netA-s1: NaN (3 rows)", "mean of 2 trainings")


def test_notes_of_all_are_kept_once_and_those_on_their_intervals_dropped() -> None:
    units = SamplingUnits(IntervalKind(), 17)
    own = [replace(score, notes=("held out",), units=units) for score in seeds(0.5, 0.75)]
    assert over_seeds(own)[0].remarks == ("held out", "mean of 2 trainings")


def test_runs_of_equal_seeds_are_called_trainings() -> None:
    folds = [SCORE, replace(SCORE, run="netA-f1")]
    assert list(trainings(folds)) == ["netA-* (2 trainings)"]


def test_two_experiments_of_one_name_are_told_apart() -> None:
    runs = [replace(SCORE, run=f"netA-s{i}", seed=i, experiment="abc" if i < 2 else "xyz") for i in range(4)]
    assert list(trainings(runs)) == ["netA-s* (2 seeds)", "xyz netA-s* (2 seeds)"]


def test_names_without_a_common_beginning_are_listed() -> None:
    assert list(trainings([SCORE, replace(SCORE, run="b", seed=1)])) == ["netA-s0, b (2 seeds)"]


def test_facts_are_those_that_all_trainings_have() -> None:
    train, test = SplitFacts(100, 10), SplitFacts(200, 20)
    data = {
        "netA-s0": DataFacts("glyphs", {"train": train, "test": test}),
        "netA-s1": DataFacts("glyphs", {"train": replace(train, queries=90), "test": test}),
    }
    found = facts_over_seeds(data, {"netA-s*": ("netA-s0", "netA-s1")})
    assert found == {"netA-s*": DataFacts("glyphs", {"test": test})}
