from __future__ import annotations

import math

import pytest

from layerprobe.training.schedule import Schedule, milestones


def test_the_rate_falls_by_the_factor_at_each_milestone() -> None:
    schedule = Schedule((10, 20), factor=0.1)
    assert [schedule.rate(iteration) for iteration in (0, 9, 10, 19, 20, 99)] == [
        1, 1, 0.1, 0.1, 0.1**2, 0.1**2,
    ]  # fmt: skip


def test_fractions_epochs_and_iterations_name_the_same_milestone() -> None:
    # 42 iterations an epoch, 30 epochs: 0.6 of 1260 = 756 = 18 epochs
    assert milestones(42, 30, fractions=(0.6,)) == (756,)
    assert milestones(42, 30, at_epochs=(18,)) == (756,)
    assert milestones(42, 30, at_iterations=(756,)) == (756,)


def test_warm_up_is_the_first_iterations() -> None:
    schedule = Schedule(warmup=100)
    assert [schedule.warming(iteration) for iteration in (0, 99, 100)] == [True, True, False]


def test_schedules_agree_until_their_milestones_differ() -> None:
    short, long = Schedule((60,)), Schedule((120,))
    assert short.agrees(long, 60)
    assert not short.agrees(long, 61)


def test_a_frozen_warm_up_is_not_one_at_rate_zero() -> None:
    assert not Schedule(warmup=5).agrees(Schedule(warmup=5, warmup_by="freeze"), 1)
    assert Schedule(warmup=0).agrees(Schedule(warmup=0, warmup_by="freeze"), 1)
    assert not Schedule(warmup=5, warmup_by="new_layers").agrees(Schedule(warmup=5, warmup_by="freeze"), 1)


def test_a_linear_warm_up_ends_at_the_whole_rate_and_holds_nobody() -> None:
    schedule = Schedule(warmup=4, warmup_by="linear")
    assert [schedule.rate(iteration) for iteration in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert not schedule.warming(0)


def test_a_cosine_falls_from_the_end_of_the_warm_up_to_zero() -> None:
    schedule = Schedule(warmup=10, cosine=100)
    assert [schedule.rate(iteration) for iteration in (0, 10, 60, 110, 500)] == pytest.approx([1, 1, 0.5, 0, 0])
    assert schedule.rate(35) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_heating_lowers_the_rate_with_the_scale() -> None:
    schedule = Schedule(heatings=(60,))
    assert [schedule.heats(iteration) for iteration in (59, 60, 61)] == [0, 1, 0]
    assert [schedule.rate(iteration) for iteration in (59, 60, 61)] == pytest.approx([1, 0.1, 0.1])


def test_schedules_that_heat_alike_but_by_another_factor_disagree() -> None:
    one, other = Schedule(heatings=(5,), heat_factor=0.25), Schedule(heatings=(5,), heat_factor=0.5)
    assert one.agrees(other, 5)
    assert not one.agrees(other, 6)
