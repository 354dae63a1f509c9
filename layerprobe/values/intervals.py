"""Intervals, differences, and kinds of intervals: their estimand and their units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from layerprobe.system.errors import UnknownNameError

Estimand = Literal["gallery", "redraw"]
ESTIMANDS: tuple[Estimand, ...] = get_args(Estimand)

FEWEST_UNITS = 10  # fewer give no interval
FEW_UNITS = 30  # fewer give a warning
PARENT = "parent"  # the cluster of classes that is the folder above theirs

_REDRAW, _CLUSTERS = "interval: redraw", "clusters: "
_TRAININGS = "interval: lowest to highest training"
_NONE, _FEW, _UNITS = "no interval: ", "interval over few ", ("classes", "clusters")
_DRAWN = {"gallery": "against this gallery", "redraw": "queries and gallery drawn anew"}


def estimand_of(name: str) -> Estimand:
    """The estimand of a name."""
    for estimand in ESTIMANDS:
        if name == estimand:
            return estimand
    raise UnknownNameError("interval", name, ESTIMANDS)


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, in the unit of its value."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A difference of two means over the same queries, or of several such differences.

    Args:
        value: in the unit of the compared numbers.
        low: lower end of its 95 % interval; None with too few units for one, or if all have the same mean.
        high: upper end; None likewise.
        p: two-sided, of the hypothesis that it is 0, not corrected for other comparisons; below 0.05 where the interval
            excludes 0. None without an interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def interval(self) -> Interval | None:
        """Both ends, if any."""
        return None if self.low is None or self.high is None else Interval(self.low, self.high)


@dataclass(frozen=True)
class OverSeeds:
    """A mean, or a difference of two, in several trainings of one experiment.

    Args:
        sd: sample standard deviation over them; None for a single training.
        classes: the mean with its interval for these networks, on other classes.
        trainings: the mean over trainings, with its interval for other trainings and classes. Without an interval where
            `classes` has none, and for a single training.
        same_classes: 95 % prediction interval for one further training on these test classes; None with fewer than
            three trainings, and where all have the same mean.
        other_classes: the same on as many other test classes; None also where `classes` has no interval.
    """

    mean: float
    sd: float | None
    n: int
    classes: Difference
    trainings: Difference
    same_classes: Interval | None = None
    other_classes: Interval | None = None


@dataclass(frozen=True)
class IntervalKind:
    """How the intervals of a table or figure are made; intervals of different kinds are never mixed.

    Args:
        estimand: `gallery`: other queries of classes like these, searched in the same gallery; `redraw`: another draw
            of classes, queries and gallery included.
        cluster: the column whose texts are the units of resampling; None for the classes.
        trainings: the ends are those of several trainings, whose mean the value is; nothing is resampled.
    """

    estimand: Estimand = "gallery"
    cluster: str | None = None
    trainings: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that state a kind other than the default."""
        if self.trainings:
            return (_TRAININGS,)
        redraw = (_REDRAW,) if self.estimand == "redraw" else ()
        return (*redraw, *([] if self.cluster is None else [f"{_CLUSTERS}{self.cluster}"]))

    @classmethod
    def of(cls, notes: Iterable[str]) -> IntervalKind:
        """The kind stated by a score's notes: the inverse of `notes`."""
        notes = list(notes)
        if _TRAININGS in notes:
            return cls(trainings=True)
        clusters = [note.removeprefix(_CLUSTERS) for note in notes if note.startswith(_CLUSTERS)]
        return cls("redraw" if _REDRAW in notes else "gallery", clusters[0] if clusters else None)

    @staticmethod
    def without(notes: Iterable[str]) -> tuple[str, ...]:
        """The notes of a score without those on its interval, written by `notes_on` or `notes`."""
        own = (_REDRAW, _CLUSTERS, _TRAININGS, _NONE, *(f"{_FEW}{name}: " for name in _UNITS))
        return tuple(note for note in notes if not note.startswith(own))

    def further(self, notes: Iterable[str]) -> tuple[str, ...]:
        """The notes of a score that do not state this kind."""
        return tuple(note for note in notes if note not in self.notes)

    def notes_on(self, units: int) -> tuple[str, ...]:
        """The notes of a score on its interval: its kind, unless default, and whether units are (too) few."""
        name = _UNITS[self.cluster is not None]
        if units < FEWEST_UNITS:
            return (f"{_NONE}{units} {name}, at least {FEWEST_UNITS} are needed",)
        return (*self.notes, *([f"{_FEW}{name}: {units}"] if units < FEW_UNITS else []))

    @property
    def text(self) -> str:
        """`95 % interval over classes, against this gallery`."""
        return self.over(None)

    def over(self, units: int | None) -> str:
        """`95 % interval over 68 classes, against this gallery`; None omits the number."""
        if self.trainings:
            return "lowest to highest training"
        return f"95 % interval over {self.units_text(units)}, {_DRAWN[self.estimand]}"

    def units_text(self, units: int | None = None) -> str:
        """`68 classes`, `12 clusters of classes (parent)`; None omits the number."""
        number = "" if units is None else f"{units:,} "
        if self.cluster is not None:
            return f"{number}cluster{'' if units == 1 else 's'} of classes ({self.cluster})"
        return number + ("class" if units == 1 else "classes")


@dataclass(frozen=True)
class ShownKind:
    """The kind of the intervals in a table or figure.

    Args:
        kind: None if no interval is shown.
        mixed: whether that is because they are of different kinds.
    """

    kind: IntervalKind | None
    mixed: bool = False

    @classmethod
    def of(cls, kinds: Iterable[IntervalKind]) -> ShownKind:
        """The common kind, if there is exactly one."""
        found = list(dict.fromkeys(kinds))
        return cls(found[0] if len(found) == 1 else None, len(found) > 1)

    def lines(self, shown_as: str) -> tuple[str, ...]:
        """The caption of the intervals, at most one line."""
        if self.mixed:
            return ("intervals of different kinds are not shown together; probe all with one --cluster",)
        return () if self.kind is None else (f"{shown_as}: {self.kind.text}",)

    def further(self, notes: Iterable[str]) -> tuple[str, ...]:
        """The notes of a score without those that the caption states for all scores."""
        notes = tuple(notes)
        return notes if self.mixed else IntervalKind.of(notes).further(notes)
