"""A metric of a layer over the trainings of a cell, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from layerprobe.statistics.seeds import further_interval, mean_interval
from layerprobe.values.intervals import Interval
from layerprobe.values.scores import Score, is_fraction, note_text


@dataclass(frozen=True)
class Over:
    """A metric of a layer over the trainings of a cell.

    Args:
        mean: None where a training has no valid value, with the reason in `notes`.
        interval: 95 %, of the mean; None for a single training, or equal ones.
        values: of each training.
        further: 95 % prediction interval of a new run; None for fewer than three, or equal ones.
    """

    mean: float | None
    interval: Interval | None
    values: tuple[float | None, ...]
    notes: tuple[str, ...] = ()
    further: Interval | None = None


def over_trainings(scores: Sequence[Score]) -> Over:
    """The mean of a metric of a layer over trainings, each of which has a score."""
    values = [score.value for score in scores]
    notes = tuple(dict.fromkeys(note for score in scores if score.value is None for note in score.notes))
    valid = np.array([value for value in values if value is not None])
    if len(valid) < len(values):
        return Over(None, None, tuple(values), notes)
    return Over(float(valid.mean()), mean_interval(valid), tuple(values), further=further_interval(valid))


def over_text(over: Over | None, metric: str) -> str:
    """The mean, fractions in percent; the notes where there is none."""
    if over is None:
        return ""
    return note_text(over.notes) if over.mean is None else value_text(over.mean, metric)


def ends_text(over: Over | None, metric: str) -> tuple[str, str] | None:
    """The ends of the interval."""
    if over is None or over.interval is None:
        return None
    return value_text(over.interval.low, metric), value_text(over.interval.high, metric)


def value_text(value: float, metric: str) -> str:
    """A value; a fraction in percent."""
    return f"{100 * value:.1f}" if is_fraction(metric) else f"{value:.3g}"
