"""Two layers against each other on the same queries: the values that `compare` gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layerprobe.facts import DataFacts
from layerprobe.intervals import Difference, IntervalKind
from layerprobe.scores import Subject, note_text
from layerprobe.workflow.references import reference_text


@dataclass(frozen=True)
class Side:
    """One of the two.

    Args:
        subject: the layer, its run, epoch and split.
        name: the layer for people.
        start: what the network of epoch 0 is, as in `DataFacts`.
    """

    subject: Subject
    name: str
    start: str = DataFacts.start


@dataclass(frozen=True)
class Basis:
    """What a comparison rests on.

    Args:
        metric: R@1, MAP@R ...
        kind: what its interval says.
        queries: how many there are.
        classes: of the queries.
        units: how many units are resampled: the classes, or clusters of them.
        comparisons: how many comparisons Holm corrected together.
    """

    metric: str
    kind: IntervalKind
    queries: int
    classes: int
    units: int
    comparisons: int = 1


@dataclass(frozen=True)
class Comparison:
    """Layer a against layer b.

    Args:
        a: the first.
        b: the second; of the same queries.
        basis: what it rests on.
        values: the metric of both; None where one has no valid number, with the reason in `notes`.
        difference: a - b, p corrected for all comparisons; None likewise.
        notes: what a reader must know.
    """

    a: Side
    b: Side
    basis: Basis
    values: tuple[float, float] | None
    difference: Difference | None
    notes: tuple[str, ...] = ()

    @property
    def claimed(self) -> bool:
        """Whether the two are told apart: p, corrected for all comparisons, is below 0.05."""
        return self.difference is not None and self.difference.p is not None and self.difference.p < 0.05

    def as_row(self) -> dict[str, Any]:
        """The fields as JSON has them; `note` says what kind of interval it is, unless it is the default."""
        found = self.difference
        return {
            "a": reference_text(self.a.subject),
            "b": reference_text(self.b.subject),
            "metric": self.basis.metric,
            "split": self.a.subject.split,
            "difference": None if found is None else found.value,
            "low": None if found is None else found.low,
            "high": None if found is None else found.high,
            "p": None if found is None else found.p,
            "comparisons": self.basis.comparisons,
            "n": self.basis.queries,
            "classes": self.basis.classes,
            "note": note_text([*self.notes, *self.basis.kind.notes]),
        }
