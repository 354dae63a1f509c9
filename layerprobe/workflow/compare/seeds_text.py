"""Comparisons over several trainings as sentences and as a table."""

from __future__ import annotations

from collections.abc import Sequence

from layerprobe.statistics.seeds import FEWEST_TRAININGS
from layerprobe.tables.tables import TextTable
from layerprobe.values.intervals import Difference, OverSeeds
from layerprobe.values.scores import is_fraction
from layerprobe.workflow.compare.comparison import (
    SeedComparison,
    before_text,
    classes_text,
    corrected_text,
    difference_text,
    ends_cell,
    few_text,
    is_significant,
    metric_text,
    no_interval_text,
    number_text,
    p_words,
    range_text,
    value_text,
    verdict_cells,
)


def seeds_sentence(comparison: SeedComparison, names: tuple[str, str] | None = None) -> str:
    """The mean difference over trainings with its spread and its intervals, in a few sentences.

    The claim is about the mean over trainings, not only about these networks.

    Args:
        names: of the layers; None for the layers' names, with epoch and run where these differ.
    """
    data, over = comparison.data, comparison.over
    name_a, name_b = names or _layer_names(comparison)
    classes, trainings = classes_text(comparison.a, comparison.b), _trainings_text(comparison)
    if over is None:
        return f"{name_a} and {name_b} cannot be compared on {classes} {trainings}: {'; '.join(comparison.notes)}."
    share = is_fraction(data.metric)
    means = (
        sum(values) / len(values)
        for values in zip(*(training.values for training in comparison.trainings), strict=True)
    )
    level = " against ".join(value_text(value, share) for value in means)
    points = " points" if share else ""
    differences = ", ".join(
        f"seed {training.seed} {difference_text(training.values[0] - training.values[1], share)}"
        for training in comparison.trainings
    )
    spread = "" if over.sd is None else f", standard deviation {number_text(over.sd, share)}"
    claim = (
        f"{_claim(over, name_a, name_b, classes, trainings)}: {metric_text(data.metric)} {level} on the mean,"
        f" {difference_text(over.mean, share)}{points}{spread} ({differences})."
    )
    text = f"{claim} {_intervals_text(comparison, over)}"
    before, effect = comparison.before, comparison.effect
    if before is None or effect is None:
        return text
    start = before_text(comparison.a, before.trainings, effect.trainings, share).removesuffix(".")
    return f"{text} {start} (of the means over trainings)."


def short_seeds_text(comparison: SeedComparison) -> str:
    """As `comparison.short_text`, of the means over trainings."""
    data, over = comparison.data, comparison.over
    if over is None:
        return "; ".join(comparison.notes)
    share = is_fraction(data.metric)
    means = (
        sum(values) / len(values)
        for values in zip(*(training.values for training in comparison.trainings), strict=True)
    )
    value_a, value_b = (value_text(value, share) for value in means)
    gained = f"{difference_text(over.mean, share)}{' points' if share else ''}"
    ends = f"mean over trainings {_ends_text(over.trainings, share)}{corrected_text(data)}"
    return f"{comparison.a.name} {value_a} against {comparison.b.name} {value_b}, {gained} ({ends})"


def _claim(over: OverSeeds, name_a: str, name_b: str, classes: str, trainings: str) -> str:
    better = "better" if over.mean > 0 else "worse"
    if is_significant(over.trainings):
        return f"{name_a} retrieves {classes} {better} than {name_b} {trainings}"
    if is_significant(over.classes):
        return (
            f"{name_a} retrieves {classes} {better} than {name_b} {trainings}, but not significantly for the mean over"
            " trainings"
        )
    if over.classes.p is None:
        return f"{name_a} against {name_b} on {classes} {trainings}"
    return f"{name_a} and {name_b} do not differ significantly on {classes} {trainings}"


def _intervals_text(comparison: SeedComparison, over: OverSeeds) -> str:
    data = comparison.data
    if over.classes.low is None:
        return f"{no_interval_text(data).capitalize()}."
    share = is_fraction(data.metric)
    warning = few_text(data)
    text = (
        f"{data.kind.over(data.units)}: for these {over.n} {_networks(comparison)} {_ends_text(over.classes, share)},"
        f" for the mean over trainings {_ends_text(over.trainings, share)}{corrected_text(data)}."
    )
    classes = f"{_training_classes(comparison).capitalize()}."
    return " ".join(filter(None, (text, f"{_further_text(comparison, over)}.", classes, warning)))


def _further_text(comparison: SeedComparison, over: OverSeeds) -> str:
    """The prediction for one further training."""
    interval = over.other_classes
    if interval is None:
        return f"One further training is not predicted from {over.n}: {FEWEST_TRAININGS} are needed"
    ends = range_text(interval.low, interval.high, is_fraction(comparison.data.metric))
    return f"One further training on as many other classes: {ends} (95 % prediction interval)"


def _training_classes(comparison: SeedComparison) -> str:
    return f"the training classes {'are the same in all' if comparison.same_training else 'differ between'} seeds"


def _ends_text(difference: Difference, share: bool) -> str:
    if difference.low is None or difference.high is None or difference.p is None:
        return "none"
    return f"{range_text(difference.low, difference.high, share)} (p {p_words(difference.p)})"


def _networks(comparison: SeedComparison) -> str:
    return "networks" if comparison.is_one_experiment else "pairs of networks"


def _layer_names(comparison: SeedComparison) -> tuple[str, str]:
    """The layers' names, with the named run where the experiments differ, or the epoch where the epochs do."""
    a, b = comparison.a, comparison.b
    if not comparison.is_one_experiment:
        return f"{a.name} of {a.subject.run}'s experiment", f"{b.name} of {b.subject.run}'s experiment"
    if a.subject.epoch != b.subject.epoch:
        return f"{a.name} at epoch {a.subject.epoch}", f"{b.name} at epoch {b.subject.epoch}"
    return a.name, b.name


def _trainings_text(comparison: SeedComparison) -> str:
    """`over 3 trainings (netA-s0, netA-s1, netA-s2; epoch 20)`."""
    epochs = list(dict.fromkeys((comparison.a.subject.epoch, comparison.b.subject.epoch)))
    epochs_text = f"; epoch {epochs[0]}" if len(epochs) == 1 else f"; epochs {epochs[0]} and {epochs[1]}"
    runs = [" and ".join(dict.fromkeys(training.runs)) for training in comparison.trainings]
    if not runs:
        return f"in the trainings of {comparison.a.subject.run}'s experiment"
    pairs = "trainings" if comparison.is_one_experiment else "pairs of trainings"
    return f"over {len(runs)} {pairs} ({', '.join(runs)}{epochs_text})"


def seeds_table(comparisons: Sequence[SeedComparison]) -> TextTable:
    """A row for each comparison of a corrected family, at least one with a value."""
    valid = next(comparison for comparison in comparisons if comparison.over is not None)
    data, share = valid.data, is_fraction(valid.data.metric)
    warning = few_text(data)
    notes = [note for comparison in comparisons if comparison.over is not None for note in comparison.notes]
    unit = " in %" if share else ""
    return TextTable(
        ("a", "b", "a - b", "sd", "these\nnetworks", "mean over\ntrainings", "one further\ntraining", "p", ""),
        tuple(_table_row(comparison, share) for comparison in comparisons),
        numbers=frozenset(range(2, 8)),
        heading=(
            f"{metric_text(data.metric).rstrip(',')}{unit} on {classes_text(valid.a, valid.b)},"
            f" {data.queries:,} queries, {_trainings_text(valid)}",
            data.kind.over(data.units),
        ),
        notes=(
            f"p is of the mean over trainings, corrected by Holm for {data.comparisons} comparisons; the intervals are"
            " not",
            "one further training on as many other classes: 95 % prediction interval, from 3 trainings on",
            _training_classes(valid),
            *([warning] if warning else []),
            *dict.fromkeys(notes),
        ),
    )


def _table_row(comparison: SeedComparison, share: bool) -> tuple[str, ...]:
    over = comparison.over
    if over is None:
        return (comparison.a.name, comparison.b.name, *["-"] * 6, "; ".join(comparison.notes))
    further = "-" if over.other_classes is None else range_text(over.other_classes.low, over.other_classes.high, share)
    ends = (ends_cell(difference, share) for difference in (over.classes, over.trainings))
    sd = "-" if over.sd is None else number_text(over.sd, share)
    return (
        comparison.a.name,
        comparison.b.name,
        difference_text(over.mean, share),
        sd,
        *ends,
        further,
        *verdict_cells(over.trainings),
    )
