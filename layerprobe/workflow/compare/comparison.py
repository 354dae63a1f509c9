"""Two layers compared on the same queries: the values that `compare` returns, as sentences and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerprobe.tables.tables import TextTable
from layerprobe.values.facts import CHOOSING, DataFacts, weights_or_epoch
from layerprobe.values.intervals import FEW_UNITS, FEWEST_UNITS, Difference, IntervalKind, OverSeeds, SamplingUnits
from layerprobe.values.scores import Subject, is_fraction, note_text, recall_of
from layerprobe.workflow.run.references import reference_text


@dataclass(frozen=True)
class ComparedLayer:
    """A compared layer; `start` (the network of epoch 0), `seen` and `weights` are as in `DataFacts`."""

    subject: Subject
    name: str
    start: str = DataFacts.start
    seen: bool = DataFacts.seen
    weights: str = DataFacts.weights

    @property
    def when(self) -> str:
        """`epoch 20`, or `weights of own.pth`."""
        return weights_or_epoch(self.weights, self.subject.epoch)


@dataclass(frozen=True)
class ComparisonData:
    """The data of a comparison; `units` is the number of resampled classes, or clusters of classes."""

    metric: str
    kind: IntervalKind
    queries: int
    classes: int
    units: int
    comparisons: int = 1


@dataclass(frozen=True)
class PairedTraining:
    """Two layers in the trainings of one seed."""

    seed: int
    runs: tuple[str, str]
    values: tuple[float, float]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Layer a against layer b; printed as the command does.

    Args:
        values: the metric of both; None where one has no valid number, with the reason in `notes`.
        difference: a - b, p corrected for all comparisons; None likewise.
        before: a - b at epoch 0, p not corrected; None where that is not stored.
        effect: what training adds: difference - before, paired by queries; None likewise.
        unlike: those of the notes that say in what the layers differ besides their names.
    """

    a: ComparedLayer
    b: ComparedLayer
    data: ComparisonData
    values: tuple[float, float] | None
    difference: Difference | None
    notes: tuple[str, ...] = ()
    before: Difference | None = None
    effect: Difference | None = None
    unlike: tuple[str, ...] = ()

    @property
    def claimed(self) -> bool:
        """Whether p, corrected for all comparisons, is below 0.05."""
        return is_significant(self.difference)

    def as_json(self) -> dict[str, Any]:
        """The fields in JSON; `note` states the kind of interval unless it is the default."""
        row = _json_row(self.a, self.b, self.data, self.difference, self.notes)
        return row | _training_fields(self.before, self.effect)

    def __repr__(self) -> str:
        return "\n".join([sentence(self), *self.notes])


@dataclass(frozen=True)
class SeedComparison:
    """Layer a against layer b in several trainings.

    Args:
        trainings: by seed; empty where a layer of one has no valid number, with the reason in `notes`.
        over: a - b over the trainings, both p corrected for all comparisons; None likewise.
        is_one_experiment: whether a and b belong to the same experiment.
        same_training: whether the training classes were the same in all seeds.
        before: a - b at epoch 0 over the trainings; None where that is not stored.
        effect: what training adds, paired by trainings and queries; None likewise.
        unlike: as of a `Comparison`.
    """

    a: ComparedLayer
    b: ComparedLayer
    data: ComparisonData
    trainings: tuple[PairedTraining, ...]
    over: OverSeeds | None
    notes: tuple[str, ...] = ()
    is_one_experiment: bool = True
    same_training: bool = True
    before: OverSeeds | None = None
    effect: OverSeeds | None = None
    unlike: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The fields in JSON; low, high and p are of the mean over trainings."""
        over = self.over
        row = _json_row(self.a, self.b, self.data, None if over is None else over.trainings, self.notes)
        networks = None if over is None else {x: getattr(over.classes, x) for x in ("low", "high", "p")}
        seeds = [
            {
                "seed": training.seed,
                "a": training.runs[0],
                "b": training.runs[1],
                "difference": training.values[0] - training.values[1],
            }
            for training in self.trainings
        ]
        further = {
            "same_classes": None if over is None else over.same_classes,
            "other_classes": None if over is None else over.other_classes,
        }
        spread = {"sd": None if over is None else over.sd, "networks": networks, "one_further_training": further}
        start = None if self.before is None else self.before.trainings
        added = _training_fields(start, None if self.effect is None else self.effect.trainings)
        return row | spread | {"same_training_classes": self.same_training, "seeds": seeds} | added


def is_significant(difference: Difference | None) -> bool:
    """Whether p is below 0.05."""
    return difference is not None and difference.p is not None and difference.p < 0.05


def _training_fields(before: Difference | None, effect: Difference | None) -> dict[str, Any]:
    return {"before_training": before, "added_by_training": effect}


def _json_row(
    a: ComparedLayer, b: ComparedLayer, data: ComparisonData, difference: Difference | None, notes: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "a": reference_text(a.subject),
        "b": reference_text(b.subject),
        "metric": data.metric,
        "split": a.subject.split,
        "difference": None if difference is None else difference.value,
        "low": None if difference is None else difference.low,
        "high": None if difference is None else difference.high,
        "p": None if difference is None else difference.p,
        "comparisons": data.comparisons,
        "n": data.queries,
        "classes": data.classes,
        "note": note_text([*notes, *SamplingUnits(data.kind, data.units).notes]),
    }


def sentence(comparison: Comparison, names: tuple[str, str] | None = None) -> str:
    """The difference with its interval, in a sentence or two.

    `pool5.3 retrieves unseen classes better than fc6 in this trained network (netA, epoch 20): R@1 85.8 % against
    84.0 %, +1.8 points (95 % interval over 68 classes, against this gallery: +0.6 to +3.0; p = 0.004).`

    Args:
        names: of the layers; None for the layers' names, with epoch and run where these differ.
    """
    a, b, data = comparison.a, comparison.b, comparison.data
    name_a, name_b = names or _layer_names(a, b)
    classes, network = classes_text(a, b), network_text(a, b)
    if comparison.values is None or comparison.difference is None:
        return f"{name_a} and {name_b} cannot be compared on {classes} {network}: {'; '.join(comparison.notes)}."
    if comparison.claimed:
        better = "better" if comparison.difference.value > 0 else "worse"
        claim = f"{name_a} retrieves {classes} {better} than {name_b} {network}"
    elif comparison.difference.p is not None:
        claim = f"{name_a} and {name_b} do not differ significantly on {classes} {network}"
    else:
        claim = f"{name_a} against {name_b} on {classes} {network}"
    share = is_fraction(data.metric)
    level = " against ".join(value_text(value, share) for value in comparison.values)
    gained = f"{difference_text(comparison.difference.value, share)}{' points' if share else ''}"
    claim_text = (
        f"{claim}: {metric_text(data.metric)} {level}, {gained} ({interval_text(comparison.difference, data)})."
    )
    warning = few_text(data) if comparison.difference.low is not None else ""
    return " ".join(filter(None, [claim_text, warning, before_text(a, comparison.before, comparison.effect, share)]))


def short_text(comparison: Comparison) -> str:
    """`pool5.3@max 82.1 % against fc6/l2 82.4 %, -0.3 points (95 % interval ...)`."""
    if comparison.values is None or comparison.difference is None:
        return "; ".join(comparison.notes)
    share = is_fraction(comparison.data.metric)
    value_a, value_b = (value_text(value, share) for value in comparison.values)
    gained = f"{difference_text(comparison.difference.value, share)}{' points' if share else ''}"
    sides = f"{comparison.a.name} {value_a} against {comparison.b.name} {value_b}"
    return f"{sides}, {gained} ({interval_text(comparison.difference, comparison.data)})"


def before_text(a: ComparedLayer, before: Difference | None, effect: Difference | None, share: bool) -> str:
    """The difference at epoch 0, and what training adds: `Before training the difference is +6.2 points ...`."""
    if before is None or effect is None:
        return ""
    start_words = {"untrained": "Before training", "pretrained": "Before training (pretrained)"}.get(
        a.start, "At epoch 0"
    )
    start_text, effect_text = _ends_text(before, share, " points" if share else ""), _ends_text(effect, share)
    p = "" if effect.p is None else f", p {p_words(effect.p)}"
    return f"{start_words} the difference is {start_text}; training adds {effect_text}{p}."


def _ends_text(difference: Difference, share: bool, unit: str = "") -> str:
    ends = "" if (interval := difference.interval) is None else f" ({range_text(interval.low, interval.high, share)})"
    return f"{difference_text(difference.value, share)}{unit}{ends}"


def comparison_table(comparisons: Sequence[Comparison]) -> TextTable:
    """A row for each comparison of a corrected family; at least one, all between the same two splits."""
    a, b, data = comparisons[0].a, comparisons[0].b, comparisons[0].data
    share = is_fraction(data.metric)
    corrected = f"p is corrected by Holm for {data.comparisons} comparisons; the intervals are not"
    warning = few_text(data)
    return TextTable(
        ("a", "b", f"a\n{data.metric}", f"b\n{data.metric}", "a - b", "interval", "p", ""),
        tuple(_table_row(comparison, share) for comparison in comparisons),
        numbers=frozenset(range(2, 7)),
        heading=(
            f"{_places_text(a, b)}: {metric_text(data.metric).rstrip(',')}{' in %' if share else ''} on"
            f" {classes_text(a, b)}, {data.queries:,} queries",
            data.kind.over(data.units),
        ),
        notes=(corrected, *([warning] if warning else []), *_shared_notes(comparisons)),
    )


def _table_row(comparison: Comparison, share: bool) -> tuple[str, ...]:
    if comparison.values is None or comparison.difference is None:
        return (comparison.a.name, comparison.b.name, "-", "-", "-", "-", "-", "; ".join(comparison.notes))
    difference = comparison.difference
    values = (number_text(value, share) for value in comparison.values)
    difference_cell = difference_text(difference.value, share)
    return (
        comparison.a.name,
        comparison.b.name,
        *values,
        difference_cell,
        ends_cell(difference, share),
        *verdict_cells(difference),
    )


def ends_cell(difference: Difference, share: bool) -> str:
    """The interval in a row."""
    return "-" if (ends := difference.interval) is None else range_text(ends.low, ends.high, share)


def verdict_cells(difference: Difference) -> tuple[str, str]:
    """The p of a row, and which layer is significantly better."""
    better = "a better" if difference.value > 0 else "b better"
    verdict = better if is_significant(difference) else "not significant"
    return "-" if difference.p is None else p_text(difference.p), verdict


def _places_text(a: ComparedLayer, b: ComparedLayer) -> str:
    """`netA, epoch 20`, or `a netA, epoch 20, b netB, epoch 20`."""
    place_a, place_b = (f"{x.subject.run}, {x.when}" for x in (a, b))
    return place_a if place_a == place_b else f"a = {place_a}; b = {place_b}"


def _shared_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """The notes of comparisons that have values, each once; the others are in their rows."""
    return list(
        dict.fromkeys(note for comparison in comparisons if comparison.values is not None for note in comparison.notes)
    )


def _layer_names(a: ComparedLayer, b: ComparedLayer) -> tuple[str, str]:
    """The layers' names, with epoch and run where these differ."""
    subject_a, subject_b = a.subject, b.subject
    if subject_a.run != subject_b.run:
        return f"{a.name} of {subject_a.run} ({a.when})", f"{b.name} of {subject_b.run} ({b.when})"
    if subject_a.epoch != subject_b.epoch:
        return f"{a.name} at epoch {subject_a.epoch}", f"{b.name} at epoch {subject_b.epoch}"
    return a.name, b.name


def classes_text(a: ComparedLayer, b: ComparedLayer) -> str:
    """`unseen classes`, if the networks have not seen them as far as is known; `the training classes`.

    Those that no network was trained on are `the choosing classes`.
    """
    split = a.subject.split
    if split != "test":
        classes = "training classes" if a.seen or b.seen else CHOOSING
        return f"the {classes}" if split == "train" else f"the {split} classes"
    unseen = all(x.start == "untrained" or (x.start == "pretrained" and x.subject.epoch > 0) for x in (a, b))
    return "unseen classes" if unseen else "the test classes"


def network_text(a: ComparedLayer, b: ComparedLayer) -> str:
    """`in this trained network (netA, epoch 20)`: one training is no evidence on another."""
    subject_a, subject_b = a.subject, b.subject
    trained = "trained " if subject_a.epoch > 0 and subject_b.epoch > 0 else ""
    if subject_a.run != subject_b.run:
        return f"in these two {trained}networks"
    if subject_a.epoch != subject_b.epoch:
        return f"in this training ({subject_a.run})"
    start = f"{a.start} " if a.start in ("untrained", "pretrained") and not trained else trained
    return f"in this {start}network ({subject_a.run}, {a.when})"


def metric_text(metric: str) -> str:
    """The metric, with what its name means where it is measured otherwise than in the whole gallery."""
    recall = recall_of(metric)
    return f"{metric}, thinned by image," if recall and recall.gallery else metric


def interval_text(difference: Difference, data: ComparisonData) -> str:
    """`95 % interval over 68 classes, against this gallery: +0.6 to +3.0; p = 0.004`, or why there is none."""
    if difference.low is None or difference.high is None:
        return no_interval_text(data)
    p = "" if difference.p is None else f"; p {p_words(difference.p)}{corrected_text(data)}"
    ends = range_text(difference.low, difference.high, is_fraction(data.metric))
    return f"{data.kind.over(data.units)}: {ends}{p}"


def no_interval_text(data: ComparisonData) -> str:
    """Why a comparison has no interval: `no interval: 9 classes, and it takes 10`."""
    if data.units < FEWEST_UNITS:
        return f"no interval: {data.kind.units_text(data.units)}, and it takes {FEWEST_UNITS}"
    return f"no interval: the difference is the same in all {data.kind.units_text(data.units)}"


def corrected_text(data: ComparisonData) -> str:
    """The correction of p for several comparisons; empty for a single one."""
    return f", corrected by Holm for {data.comparisons} comparisons" if data.comparisons > 1 else ""


def few_text(data: ComparisonData) -> str:
    """A warning if there are few units; else empty."""
    if not FEWEST_UNITS <= data.units < FEW_UNITS:
        return ""
    return f"{data.kind.units_text(data.units)} are few: the interval itself is uncertain."


def value_text(value: float, share: bool) -> str:
    """`85.8 %`, or three digits of a number that is not a share."""
    return f"{number_text(value, share)} %" if share else number_text(value, share)


def number_text(value: float, share: bool) -> str:
    """`85.8`, in percent or points for shares."""
    return f"{100 * value:.1f}" if share else f"{value:.3g}"


def difference_text(value: float, share: bool) -> str:
    """`+1.8`, in points for shares."""
    text = f"{100 * value:+.1f}" if share else f"{value:+.3g}"
    return "+0.0" if text == "-0.0" else text


def range_text(low: float, high: float, share: bool) -> str:
    """`+0.6 to +3.0`."""
    return f"{difference_text(low, share)} to {difference_text(high, share)}"


def p_text(p: float) -> str:
    """`0.004`, `<0.001`, `0.21`."""
    if p < 0.001:
        return "<0.001"
    return f"{p:.3f}" if p < 0.095 else f"{p:.2f}"


def p_words(p: float) -> str:
    """`= 0.004`, `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"= {p_text(p)}"


def inputs_text(runs: tuple[str, str], transforms: tuple[str, str]) -> str:
    """`the models have different input (netA against netB): resize 32 32 against 64 64`, by the steps that differ."""
    steps_a, steps_b = map(_steps, transforms)
    keys = [key for key in dict.fromkeys([*steps_a, *steps_b]) if steps_a.get(key) != steps_b.get(key)]
    differences = [f"{key} {_step_text(steps_a.get(key))} against {_step_text(steps_b.get(key))}" for key in keys]
    return f"the models have different input ({runs[0]} against {runs[1]}): {', '.join(differences)}"


def _steps(transform: str) -> dict[str, object]:
    """The steps of a transform by name; text that is not JSON is a single step."""
    try:
        steps = json.loads(transform)
    except ValueError:
        steps = transform
    return steps if isinstance(steps, dict) else {"input": transform}


def _step_text(step: object) -> str:
    if step is None:
        return "none"
    return " ".join(map(str, step)) if isinstance(step, list) else str(step)
