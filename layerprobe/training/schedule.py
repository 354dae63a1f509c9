"""Learning rate over the run: warm-up, then steps or a cosine down; and when a loss is heated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """When the learning rate changes, in iterations (steps of the optimiser) from the start of the run.

    Args:
        milestones: the iterations from which the rate is lower by another `factor`, ascending.
        warmup: how many first iterations keep pretrained parameters still or, with `linear`, all learning rates low.
        warmup_by: "freeze" freezes pretrained parameters and their BatchNorm statistics. "zero_rate" gives pretrained
            parameters the learning rate 0, as the code of Vo & Hays 2019 does: statistics move and momentum builds up
            before the first real step. "new_layers" trains new layers alone, as the code of Zhai & Wu 2019 does in its
            first epoch: statistics move, and the optimiser starts anew after it. "linear" raises every rate from
            1 / warmup of it to the whole.
        cosine: iterations from the end of the warm-up until the rate is 0, along half a cosine; None: no cosine.
        heatings: the iterations before which the loss's `scale` is multiplied by `heat_factor` and from which the rate
            is lower by another `heat_rate`, ascending (Zhang et al. 2018, section 3.4).
        heat_factor: of the loss's scale; 16 -> 4 in section 5.1.
    """

    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    warmup: int = 0
    warmup_by: Literal["zero_rate", "freeze", "new_layers", "linear"] = "zero_rate"
    cosine: int | None = None
    heatings: tuple[int, ...] = ()
    heat_factor: float = 0.25
    heat_rate: float = 0.1

    def rate(self, iteration: int) -> float:
        """Share of the base learning rate at an iteration, counted from 0."""
        share = float(self.factor ** sum(milestone <= iteration for milestone in self.milestones))
        share *= float(self.heat_rate ** sum(heating <= iteration for heating in self.heatings))
        if self.warmup_by == "linear" and iteration < self.warmup:
            share *= (iteration + 1) / self.warmup
        if self.cosine is not None:
            done = min(max(0, iteration - self.warmup) / self.cosine, 1.0)
            share *= (1 + math.cos(math.pi * done)) / 2
        return share

    def warming(self, iteration: int) -> bool:
        """Whether the warm-up keeps pretrained parameters still at an iteration."""
        return self.warmup_by != "linear" and iteration < self.warmup

    def heats(self, iteration: int) -> int:
        """How many times the loss is heated before an iteration."""
        return self.heatings.count(iteration)

    @property
    def freeze(self) -> bool:
        """Whether the warm-up takes the gradient from pretrained parameters."""
        return self.warmup_by in ("freeze", "new_layers")

    def agrees(self, other: Schedule, iterations: int) -> bool:
        """Whether the first iterations of both schedules are the same."""

        def first(schedule: Schedule) -> list[tuple[float, bool, float]]:
            return [
                (schedule.rate(i), schedule.warming(i), schedule.heat_factor ** schedule.heats(i))
                for i in range(iterations)
            ]

        same_kind = self.warmup_by == other.warmup_by or self.warmup == other.warmup == 0
        return first(self) == first(other) and same_kind


def milestones(
    iterations_per_epoch: int,
    epochs: int,
    *,
    fractions: tuple[float, ...] = (),
    at_epochs: tuple[int, ...] = (),
    at_iterations: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Milestones in iterations, from fractions of the run, numbers of epochs, or numbers of iterations."""
    total = iterations_per_epoch * epochs
    return tuple(
        sorted(
            [round(fraction * total) for fraction in fractions]
            + [epoch * iterations_per_epoch for epoch in at_epochs]
            + list(at_iterations)
        )
    )
