"""Two layers compared on the same queries: the values that `compare` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import Difference, IntervalKind, OverSeeds
from layerprobe.values.scores import Subject, note_text
from layerprobe.workflow.run.references import reference_text


@dataclass(frozen=True)
class ComparedLayer:
    """A compared layer; `start` is the network of epoch 0, as in `DataFacts`."""

    subject: Subject
    name: str
    start: str = DataFacts.start


@dataclass(frozen=True)
class Basis:
    """The data of a comparison; `units` is the number of resampled classes, or clusters of classes."""

    metric: str
    kind: IntervalKind
    queries: int
    classes: int
    units: int
    comparisons: int = 1


@dataclass(frozen=True)
class Training:
    """Two layers in the trainings of one seed."""

    seed: int
    runs: tuple[str, str]
    values: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """Layer a against layer b.

    Args:
        values: the metric of both; None where one has no valid number, with the reason in `notes`.
        difference: a - b, p corrected for all comparisons; None likewise.
        before: a - b at epoch 0, p not corrected; None where that is not stored.
        effect: what training adds: difference - before, paired by queries; None likewise.
    """

    a: ComparedLayer
    b: ComparedLayer
    basis: Basis
    values: tuple[float, float] | None
    difference: Difference | None
    notes: tuple[str, ...] = ()
    before: Difference | None = None
    effect: Difference | None = None

    @property
    def claimed(self) -> bool:
        """Whether p, corrected for all comparisons, is below 0.05."""
        return is_significant(self.difference)

    def as_json(self) -> dict[str, Any]:
        """The fields in JSON; `note` states the kind of interval unless it is the default."""
        row = _row(self.a, self.b, self.basis, self.difference, self.notes)
        return row | _training(self.before, self.effect)


@dataclass(frozen=True)
class SeedComparison:
    """Layer a against layer b in several trainings.

    Args:
        trainings: by seed; empty where a layer of one has no valid number, with the reason in `notes`.
        over: a - b over the trainings, both p corrected for all comparisons; None likewise.
        one: whether a and b belong to the same experiment.
        same_training: whether the training classes were the same in all seeds.
        before: a - b at epoch 0 over the trainings; None where that is not stored.
        effect: what training adds, paired by trainings and queries; None likewise.
    """

    a: ComparedLayer
    b: ComparedLayer
    basis: Basis
    trainings: tuple[Training, ...]
    over: OverSeeds | None
    notes: tuple[str, ...] = ()
    one: bool = True
    same_training: bool = True
    before: OverSeeds | None = None
    effect: OverSeeds | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields in JSON; low, high and p are of the mean over trainings."""
        over = self.over
        row = _row(self.a, self.b, self.basis, None if over is None else over.trainings, self.notes)
        networks = None if over is None else {x: getattr(over.classes, x) for x in ("low", "high", "p")}
        seeds = [
            {"seed": one.seed, "a": one.runs[0], "b": one.runs[1], "difference": one.values[0] - one.values[1]}
            for one in self.trainings
        ]
        further = {
            "same_classes": None if over is None else over.same_classes,
            "other_classes": None if over is None else over.other_classes,
        }
        more = {"sd": None if over is None else over.sd, "networks": networks, "one_further_training": further}
        started = None if self.before is None else self.before.trainings
        added = _training(started, None if self.effect is None else self.effect.trainings)
        return row | more | {"same_training_classes": self.same_training, "seeds": seeds} | added


def is_significant(difference: Difference | None) -> bool:
    """Whether p is below 0.05."""
    return difference is not None and difference.p is not None and difference.p < 0.05


def _training(before: Difference | None, effect: Difference | None) -> dict[str, Any]:
    return {"before_training": before, "added_by_training": effect}


def _row(
    a: ComparedLayer, b: ComparedLayer, basis: Basis, found: Difference | None, notes: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "a": reference_text(a.subject),
        "b": reference_text(b.subject),
        "metric": basis.metric,
        "split": a.subject.split,
        "difference": None if found is None else found.value,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "p": None if found is None else found.p,
        "comparisons": basis.comparisons,
        "n": basis.queries,
        "classes": basis.classes,
        "note": note_text([*notes, *basis.kind.notes_on(basis.units)]),
    }
