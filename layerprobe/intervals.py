"""Intervals, differences, and what an interval says: of which draw, and over which units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Estimand = Literal["gallery", "redraw"]
ESTIMANDS: tuple[Estimand, ...] = get_args(Estimand)

FEWEST_UNITS = 10  # with fewer there is no interval
FEW_UNITS = 30  # with fewer a reader is warned
PARENT = "parent"  # the cluster of classes that is the folder above theirs

_REDRAW, _CLUSTERS = "interval: redraw", "clusters: "


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, in the unit of what it belongs to."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A difference of two means of the same queries, or of several such differences.

    Args:
        value: in the unit of what was compared.
        low: lower end of its 95 % interval; None where there are too few units for one.
        high: upper end; None likewise.
        p: of the hypothesis that it is 0, two-sided and not corrected for other comparisons; below 0.05 where the
            interval leaves out 0. None without an interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class IntervalKind:
    """What the intervals of a table or figure say; those of different kinds never stand in one.

    Args:
        estimand: `gallery`: other queries of classes like these, searched in the same gallery; `redraw`: another draw
            of classes, queries and gallery included.
        cluster: the column whose texts are the units of resampling; None for the classes.
    """

    estimand: Estimand = "gallery"
    cluster: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a score says of an interval that is not made by default."""
        redraw = (_REDRAW,) if self.estimand == "redraw" else ()
        return (*redraw, *([] if self.cluster is None else [f"{_CLUSTERS}{self.cluster}"]))

    @classmethod
    def of(cls, notes: Iterable[str]) -> IntervalKind:
        """The kind that a score's notes state: what `notes` wrote is read back here and nowhere else."""
        notes = list(notes)
        clusters = [note.removeprefix(_CLUSTERS) for note in notes if note.startswith(_CLUSTERS)]
        return cls("redraw" if _REDRAW in notes else "gallery", clusters[0] if clusters else None)

    @property
    def text(self) -> str:
        """`95 % interval over classes, against this gallery`."""
        units = "classes" if self.cluster is None else f"clusters of classes ({self.cluster})"
        drawn = "against this gallery" if self.estimand == "gallery" else "queries and gallery drawn anew"
        return f"95 % interval over {units}, {drawn}"
