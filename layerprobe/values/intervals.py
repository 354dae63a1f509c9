"""Intervals, differences, and kinds of intervals: their estimand and their units."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from layerprobe.system.errors import UnknownNameError

Estimand = Literal["gallery", "redraw"]
ESTIMANDS: tuple[Estimand, ...] = get_args(Estimand)

FEWEST_UNITS = 10  # fewer give no interval
FEW_UNITS = 30  # fewer give a warning
PARENT = "parent"  # the cluster of classes that is the folder above theirs

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

    @property
    def percent(self) -> tuple[float, float]:
        """Both ends of an interval of fractions, in percent."""
        return 100 * self.low, 100 * self.high


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
        same_classes: 95 % prediction interval for a new run on these test classes; None with fewer than
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
            return ("interval: lowest to highest training",)
        redraw = ("interval: redraw",) if self.estimand == "redraw" else ()
        return (*redraw, *([] if self.cluster is None else [f"clusters: {self.cluster}"]))

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


_UNITS = re.compile(r"(\d+) (classes|trainings|clusters \((.*)\))", re.DOTALL)


@dataclass(frozen=True)
class SamplingUnits:
    """What an interval is over, or would be over if there were enough.

    Args:
        count: of classes, clusters or trainings.
    """

    kind: IntervalKind
    count: int

    def __str__(self) -> str:
        """As in a cell of a file: `68 classes`, `12 clusters (parent)`, `3 trainings`; the inverse of `parse`."""
        if self.kind.trainings:
            return f"{self.count} trainings"
        return f"{self.count} classes" if self.kind.cluster is None else f"{self.count} clusters ({self.kind.cluster})"

    @classmethod
    def parse(cls, text: str) -> SamplingUnits:
        """The units of a text.

        Raises:
            ValueError: it is no number of classes, clusters or trainings.
        """
        matched = _UNITS.fullmatch(text)
        if matched is None:
            raise ValueError(f"{text!a} is not a number of classes, clusters or trainings, like '68 classes'")
        return cls(IntervalKind(cluster=matched[3], trainings=matched[2] == "trainings"), int(matched[1]))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Whether they are few, or too few for an interval."""
        if self.kind.trainings:
            return ()
        name = "classes" if self.kind.cluster is None else "clusters"
        if self.count < FEWEST_UNITS:
            return (f"no interval: {self.count} {name}, at least {FEWEST_UNITS} are needed",)
        return (f"interval over few {name}: {self.count}",) if self.count < FEW_UNITS else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The kind of the interval, unless default, and `remarks`."""
        return (*([] if self.count < FEWEST_UNITS and not self.kind.trainings else self.kind.notes), *self.remarks)


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
        distinct = list(dict.fromkeys(kinds))
        return cls(distinct[0] if len(distinct) == 1 else None, len(distinct) > 1)

    def lines(self, shown_as: str) -> tuple[str, ...]:
        """The caption of the intervals, at most one line."""
        if self.mixed:
            return ("intervals of different kinds are not shown together; probe all with one --cluster",)
        return () if self.kind is None else (f"{shown_as}: {self.kind.text}",)
