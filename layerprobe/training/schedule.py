"""Learning rate over the run: warm-up, then steps down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """When the learning rate falls, in iterations from the start of the run.

    Args:
        milestones: the iterations from which the rate is lower by another `factor`, ascending.
        factor: what each milestone multiplies the rate by.
        warmup: the first iterations, in which pretrained parameters do not move.
        freeze: warm up by freezing them, their BatchNorm statistics too. Otherwise by learning rate 0, as paper 004's
            code does: statistics move and momentum fills, so that the first real step is no cold one.
    """

    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    warmup: int = 0
    freeze: bool = False

    def rate(self, iteration: int) -> float:
        """Share of the base learning rate at an iteration, counted from 0."""
        return float(self.factor ** sum(milestone <= iteration for milestone in self.milestones))

    def warming(self, iteration: int) -> bool:
        """Whether pretrained parameters stand still at an iteration."""
        return iteration < self.warmup

    def agrees(self, other: Schedule, iterations: int) -> bool:
        """Whether both give the same first iterations."""
        return all(
            self.rate(iteration) == other.rate(iteration) and self.warming(iteration) == other.warming(iteration)
            for iteration in range(iterations)
        ) and (self.freeze == other.freeze or self.warmup == other.warmup == 0)


def milestones(
    iterations_per_epoch: int,
    epochs: int,
    *,
    fractions: tuple[float, ...] = (),
    at_epochs: tuple[int, ...] = (),
    at_iterations: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Milestones in iterations from fractions of the run, from epochs done, or from iterations done."""
    total = iterations_per_epoch * epochs
    return tuple(
        sorted(
            [round(fraction * total) for fraction in fractions]
            + [epoch * iterations_per_epoch for epoch in at_epochs]
            + list(at_iterations)
        )
    )
