from __future__ import annotations

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
    assert not Schedule(warmup=5).agrees(Schedule(warmup=5, freeze=True), 1)
    assert Schedule(warmup=0).agrees(Schedule(warmup=0, freeze=True), 1)
