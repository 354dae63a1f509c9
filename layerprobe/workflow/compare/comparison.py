"""Two layers compared on the same queries: the values that `compare` returns, as sentences and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerprobe.statistics.seeds import FEWEST_TRAININGS
from layerprobe.tables.tables import TextTable
from layerprobe.values.facts import SELECTION, DataFacts, weights_or_epoch
from layerprobe.values.intervals import (
    FEW_UNITS,
    FEWEST_UNITS,
    Difference,
    Interval,
    IntervalKind,
    OverSeeds,
    SamplingUnits,
)
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


@dataclass(frozen=True)
class ComparedTrainings:
    """What several trainings say besides their mean.

    Args:
        trainings: by seed; empty where a layer of one has no valid number.
        over: a - b over the trainings, both p corrected for all comparisons; None likewise.
        is_one_experiment: whether a and b belong to the same experiment.
        same_training: whether the training classes were the same in all seeds.
    """

    trainings: tuple[PairedTraining, ...]
    over: OverSeeds | None
    is_one_experiment: bool = True
    same_training: bool = True


@dataclass(frozen=True, repr=False)
class Comparison:
    """Layer a against layer b, in one training or on the mean over several; printed as the command does.

    Args:
        values: the metric of both; None where one has no valid number, with the reason in `notes`.
        difference: a - b, p corrected for all comparisons; over several trainings with the interval for other trainings
            and classes; None likewise.
        before: a - b at epoch 0, p not corrected; None where that is not stored.
        effect: what training adds: difference - before, paired by queries and trainings; None likewise.
        unlike: those of the notes that say in what the layers differ besides their names.
        seeds: None for a single training.
    """

    a: ComparedLayer
    b: ComparedLayer
    data: ComparisonData
    values: tuple[float, float] | None = None
    difference: Difference | None = None
    notes: tuple[str, ...] = ()
    before: Difference | None = None
    effect: Difference | None = None
    unlike: tuple[str, ...] = ()
    seeds: ComparedTrainings | None = None

    @property
    def claimed(self) -> bool:
        """Whether p, corrected for all comparisons, is below 0.05."""
        return is_significant(self.difference)

    def as_json(self) -> dict[str, Any]:
        """The fields in JSON; `note` states the kind of interval unless it is the default."""
        difference, data = self.difference, self.data
        row: dict[str, Any] = {
            "a": reference_text(self.a.subject),
            "b": reference_text(self.b.subject),
            "metric": data.metric,
            "split": self.a.subject.split,
            "difference": None if difference is None else difference.value,
            "low": None if difference is None else difference.low,
            "high": None if difference is None else difference.high,
            "p": None if difference is None else difference.p,
            "comparisons": data.comparisons,
            "n": data.queries,
            "classes": data.classes,
            "note": note_text([*self.notes, *SamplingUnits(data.kind, data.units).notes]),
        }
        if self.seeds is not None:
            over = self.seeds.over
            row["sd"] = None if over is None else over.sd
            row["networks"] = None if over is None else {x: getattr(over.classes, x) for x in ("low", "high", "p")}
            row["new_run"] = {x: getattr(over, x, None) for x in ("same_classes", "other_classes")}
            row["same_training_classes"] = self.seeds.same_training
            row["seeds"] = [
                {"seed": x.seed, "a": x.runs[0], "b": x.runs[1], "difference": x.values[0] - x.values[1]}
                for x in self.seeds.trainings
            ]
        return row | {"before_training": self.before, "added_by_training": self.effect}

    def __repr__(self) -> str:
        return "\n".join([sentence(self), *self.notes])


def is_significant(difference: Difference | None) -> bool:
    """Whether p is below 0.05."""
    return difference is not None and difference.p is not None and difference.p < 0.05


def sentence(comparison: Comparison, names: tuple[str, str] | None = None) -> str:
    """The difference with its interval, in a sentence or two; over trainings with its spread, in a few.

    `pool5.3 retrieves unseen classes better than fc6 in this trained network (netA, epoch 20): R@1 85.8 % against
    84.0 %, +1.8 points (95 % interval over 68 classes, against this gallery: +0.6 to +3.0; p = 0.004).`

    The claim over trainings is about their mean, not only about these networks.

    Args:
        names: of the layers; None for the layers' names, with epoch and run where these differ.
    """
    a, b, data, difference, seeds = comparison.a, comparison.b, comparison.data, comparison.difference, comparison.seeds
    name_a, name_b = names or _layer_names(comparison)
    classes, network = classes_text(a, b), network_text(comparison)
    if comparison.values is None or difference is None:
        return f"{name_a} and {name_b} cannot be compared on {classes} {network}: {'; '.join(comparison.notes)}."
    over = seeds.over if seeds else None
    of_networks = over.classes if over else difference
    claim = f"{name_a} retrieves {classes} {'better' if difference.value > 0 else 'worse'} than {name_b} {network}"
    if not comparison.claimed:
        if is_significant(of_networks):
            claim += ", but not significantly for the mean over trainings"
        elif of_networks.p is None:
            claim = f"{name_a} against {name_b} on {classes} {network}"
        else:
            claim = f"{name_a} and {name_b} do not differ significantly on {classes} {network}"
    share = is_fraction(data.metric)
    level = " against ".join(value_text(value, share) for value in comparison.values)
    gained = f"{difference_text(difference.value, share)}{' points' if share else ''}"
    before = before_text(a, comparison.before, comparison.effect, share)
    claim = f"{claim}: {metric_text(data.metric)} {level}"
    if seeds and over:
        spread = "" if over.sd is None else f", standard deviation {number_text(over.sd, share)}"
        by_seed = ", ".join(
            f"seed {training.seed} {difference_text(training.values[0] - training.values[1], share)}"
            for training in seeds.trainings
        )
        before = before and f"{before.removesuffix('.')} (of the means over trainings)."
        return " ".join(
            filter(
                None, [f"{claim} on the mean, {gained}{spread} ({by_seed}).", *_seeds_texts(data, seeds, over), before]
            )
        )
    warning = few_text(data) if difference.low is not None else ""
    return " ".join(filter(None, [f"{claim}, {gained} ({interval_text(difference, data)}).", warning, before]))


def _seeds_texts(data: ComparisonData, seeds: ComparedTrainings, over: OverSeeds) -> list[str]:
    """Sentences on the intervals over trainings."""
    if over.classes.low is None:
        return [f"{no_interval_text(data).capitalize()}."]
    share = is_fraction(data.metric)
    networks = "networks" if seeds.is_one_experiment else "pairs of networks"
    if over.other_classes is None:
        further = f"A new run is not predicted from {over.n}: {FEWEST_TRAININGS} are needed."
    else:
        ends = range_text(over.other_classes.low, over.other_classes.high, share)
        further = f"A new run on as many other classes: {ends} (95 % prediction interval)."
    return [
        f"{data.kind.over(data.units)}: for these {over.n} {networks} {_ends_and_p(over.classes, share)},"
        f" for the mean over trainings {_ends_and_p(over.trainings, share)}{corrected_text(data)}.",
        further,
        f"{_training_classes(seeds).capitalize()}.",
        few_text(data),
    ]


def _ends_and_p(difference: Difference, share: bool) -> str:
    if difference.low is None or difference.high is None or difference.p is None:
        return "none"
    return f"{range_text(difference.low, difference.high, share)} (p {p_words(difference.p)})"


def _training_classes(seeds: ComparedTrainings) -> str:
    return f"the training classes {'are the same in all' if seeds.same_training else 'differ between'} seeds"


def short_text(comparison: Comparison) -> str:
    """`pool5.3@max 82.1 % against fc6/l2 82.4 %, -0.3 points (95 % interval ...)`."""
    data, difference = comparison.data, comparison.difference
    if comparison.values is None or difference is None:
        return "; ".join(comparison.notes)
    share = is_fraction(data.metric)
    value_a, value_b = (value_text(value, share) for value in comparison.values)
    gained = f"{difference_text(difference.value, share)}{' points' if share else ''}"
    ends = interval_text(difference, data)
    if comparison.seeds:
        ends = f"mean over trainings {_ends_and_p(difference, share)}{corrected_text(data)}"
    return f"{comparison.a.name} {value_a} against {comparison.b.name} {value_b}, {gained} ({ends})"


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
    """A row for each comparison of a corrected family, all between the same two splits; at least one has a value."""
    valid = [comparison for comparison in comparisons if comparison.values is not None]
    a, b, data, seeds = valid[0].a, valid[0].b, valid[0].data, valid[0].seeds
    share = is_fraction(data.metric)
    measured = f"{metric_text(data.metric).rstrip(',')}{' in %' if share else ''} on {classes_text(a, b)}"
    corrected = f"corrected by Holm for {data.comparisons} comparisons; the intervals are not"
    columns: tuple[str, ...]
    if seeds:
        columns = ("a", "b", "a - b", "sd", "these\nnetworks", "mean over\ntrainings", "a new\nrun", "p", "")
        heading = f"{measured}, {data.queries:,} queries, {network_text(valid[0])}"
        notes = [
            f"p is of the mean over trainings, {corrected}",
            "a new run on as many other classes: 95 % prediction interval, from 3 trainings on",
            _training_classes(seeds),
        ]
    else:
        columns = ("a", "b", f"a\n{data.metric}", f"b\n{data.metric}", "a - b", "interval", "p", "")
        places = [f"{layer.subject.run}, {layer.when}" for layer in (a, b)]
        place = places[0] if places[0] == places[1] else f"a = {places[0]}; b = {places[1]}"
        heading, notes = f"{place}: {measured}, {data.queries:,} queries", [f"p is {corrected}"]
    notes += filter(None, [few_text(data)])
    notes += dict.fromkeys(note for comparison in valid for note in comparison.notes)
    return TextTable(
        columns,
        tuple(_table_row(comparison, len(columns), share) for comparison in comparisons),
        numbers=frozenset(range(2, len(columns) - 1)),
        heading=(heading, data.kind.over(data.units)),
        notes=tuple(notes),
    )


def _table_row(comparison: Comparison, width: int, share: bool) -> tuple[str, ...]:
    names, difference = (comparison.a.name, comparison.b.name), comparison.difference
    if comparison.values is None or difference is None:
        return (*names, *["-"] * (width - 3), "; ".join(comparison.notes))
    better = "a better" if difference.value > 0 else "b better"
    verdict = better if comparison.claimed else "not significant"
    gained, p = difference_text(difference.value, share), "-" if difference.p is None else p_text(difference.p)
    if comparison.seeds and (over := comparison.seeds.over):
        sd = "-" if over.sd is None else number_text(over.sd, share)
        ends = (over.classes.interval, difference.interval, over.other_classes)
        return (*names, gained, sd, *(_ends_cell(interval, share) for interval in ends), p, verdict)
    values = (number_text(value, share) for value in comparison.values)
    return (*names, *values, gained, _ends_cell(difference.interval, share), p, verdict)


def _ends_cell(interval: Interval | None, share: bool) -> str:
    return "-" if interval is None else range_text(interval.low, interval.high, share)


def _layer_names(comparison: Comparison) -> tuple[str, str]:
    """The layers' names, with epoch and run where these differ; over trainings, with the experiment's."""
    a, b, seeds = comparison.a, comparison.b, comparison.seeds
    if seeds and not seeds.is_one_experiment:
        return f"{a.name} of {a.subject.run}'s experiment", f"{b.name} of {b.subject.run}'s experiment"
    if not seeds and a.subject.run != b.subject.run:
        return f"{a.name} of {a.subject.run} ({a.when})", f"{b.name} of {b.subject.run} ({b.when})"
    if a.subject.epoch != b.subject.epoch:
        return f"{a.name} at epoch {a.subject.epoch}", f"{b.name} at epoch {b.subject.epoch}"
    return a.name, b.name


def classes_text(a: ComparedLayer, b: ComparedLayer) -> str:
    """`unseen classes`, if the networks have not seen them as far as is known; `the training classes`.

    Those that no network was trained on are `the selection classes`.
    """
    split = a.subject.split
    if split != "test":
        classes = "training classes" if a.seen or b.seen else SELECTION
        return f"the {classes}" if split == "train" else f"the {split} classes"
    unseen = all(x.start == "untrained" or (x.start == "pretrained" and x.subject.epoch > 0) for x in (a, b))
    return "unseen classes" if unseen else "the test classes"


def network_text(comparison: Comparison) -> str:
    """`in this trained network (netA, epoch 20)`: one training is no evidence on another.

    Over trainings: `over 3 trainings (netA-s0, netA-s1, netA-s2; epoch 20)`.
    """
    a, b, seeds = comparison.a, comparison.b, comparison.seeds
    subject_a, subject_b = a.subject, b.subject
    if seeds and not seeds.trainings:
        return f"in the trainings of {subject_a.run}'s experiment"
    if seeds:
        epochs = list(dict.fromkeys((subject_a.epoch, subject_b.epoch)))
        epochs_text = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} and {epochs[1]}"
        runs = [" and ".join(dict.fromkeys(training.runs)) for training in seeds.trainings]
        pairs = "trainings" if seeds.is_one_experiment else "pairs of trainings"
        return f"over {len(runs)} {pairs} ({', '.join(runs)}; {epochs_text})"
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
