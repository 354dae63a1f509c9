"""Which trial of a search is selected, and what selecting on test would have gained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Values = tuple[float | None, ...]  # after epochs 1, 2 ...; None without a value


@dataclass(frozen=True)
class Curve:
    """A share that a trial reaches after each epoch from the first; empty for a trial that diverged.

    Args:
        test: empty, too, where trials are not measured on test.
    """

    validation: Values = ()
    test: Values = ()


@dataclass(frozen=True)
class Selected:
    """The trial, counted from 1, and the epoch that reach the highest share of validation."""

    trial: int
    epoch: int
    validation: float


def select(curves: Sequence[Curve]) -> Selected | None:
    """The highest share of validation; of equal ones that of the earliest trial, and there of the earliest epoch.

    Returns:
        None: no trial has a value.
    """
    best: Selected | None = None
    for trial, curve in enumerate(curves, start=1):
        for epoch, value in enumerate(curve.validation, start=1):
            if value is not None and (best is None or value > best.validation):
                best = Selected(trial, epoch, value)
    return best


def regret(curves: Sequence[Curve], selected: Selected) -> float | None:
    """The highest share of test over trials and epochs, less that of the trial and epoch selected on validation.

    Returns:
        None: the trials, or the selected epoch, have no value on test.
    """
    test = curves[selected.trial - 1].test
    reached = test[selected.epoch - 1] if test else None
    if reached is None:
        return None
    return max(value for curve in curves for value in curve.test if value is not None) - reached
