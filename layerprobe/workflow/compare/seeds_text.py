"""Comparisons over several trainings as sentences and as a table."""

from __future__ import annotations

from collections.abc import Sequence

from layerprobe.statistics.seeds import FEWEST_TRAININGS
from layerprobe.tables.tables import TextTable
from layerprobe.values.intervals import Difference, OverSeeds
from layerprobe.values.metric_names import is_fraction
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
    basis, over = comparison.basis, comparison.over
    first, second = names or _names(comparison)
    classes, where = classes_text(comparison.a, comparison.b), _trainings_text(comparison)
    if over is None:
        return f"{first} and {second} cannot be compared on {classes} {where}: {'; '.join(comparison.notes)}."
    share = is_fraction(basis.metric)
    means = (sum(values) / len(values) for values in zip(*(one.values for one in comparison.trainings), strict=True))
    level = " against ".join(value_text(value, share) for value in means)
    points = " points" if share else ""
    each = ", ".join(
        f"seed {one.seed} {difference_text(one.values[0] - one.values[1], share)}" for one in comparison.trainings
    )
    spread = "" if over.sd is None else f", standard deviation {number_text(over.sd, share)}"
    found = (
        f"{_claim(over, first, second, classes, where)}: {metric_text(basis.metric)} {level} on the mean,"
        f" {difference_text(over.mean, share)}{points}{spread} ({each})."
    )
    text = f"{found} {_intervals_text(comparison, over)}"
    before, effect = comparison.before, comparison.effect
    if before is None or effect is None:
        return text
    started = before_text(comparison.a, before.trainings, effect.trainings, share).removesuffix(".")
    return f"{text} {started} (of the means over trainings)."


def short_seeds_text(comparison: SeedComparison) -> str:
    """The same as `comparison_text.short_text` of the means over trainings."""
    basis, over = comparison.basis, comparison.over
    if over is None:
        return "; ".join(comparison.notes)
    share = is_fraction(basis.metric)
    means = (sum(values) / len(values) for values in zip(*(one.values for one in comparison.trainings), strict=True))
    first, second = (value_text(value, share) for value in means)
    gained = f"{difference_text(over.mean, share)}{' points' if share else ''}"
    ends = f"mean over trainings {_ends(over.trainings, share)}{corrected_text(basis)}"
    return f"{comparison.a.name} {first} against {comparison.b.name} {second}, {gained} ({ends})"


def _claim(over: OverSeeds, first: str, second: str, classes: str, where: str) -> str:
    better = "better" if over.mean > 0 else "worse"
    if is_significant(over.trainings):
        return f"{first} retrieves {classes} {better} than {second} {where}"
    if is_significant(over.classes):
        return (
            f"{first} retrieves {classes} {better} than {second} {where}, but not significantly for the mean over"
            " trainings"
        )
    if over.classes.p is None:
        return f"{first} against {second} on {classes} {where}"
    return f"{first} and {second} do not differ significantly on {classes} {where}"


def _intervals_text(comparison: SeedComparison, over: OverSeeds) -> str:
    basis = comparison.basis
    if over.classes.low is None:
        return f"{no_interval_text(basis).capitalize()}."
    share = is_fraction(basis.metric)
    few = few_text(basis)
    text = (
        f"{basis.kind.over(basis.units)}: for these {over.n} {_networks(comparison)} {_ends(over.classes, share)}, for"
        f" the mean over trainings {_ends(over.trainings, share)}{corrected_text(basis)}."
    )
    classes = f"{_training_classes(comparison).capitalize()}."
    return " ".join(filter(None, (text, f"{_further_text(comparison, over)}.", classes, few)))


def _further_text(comparison: SeedComparison, over: OverSeeds) -> str:
    """The prediction for one further training."""
    found = over.other_classes
    if found is None:
        return f"One further training is not predicted from {over.n}: {FEWEST_TRAININGS} are needed"
    ends = range_text(found.low, found.high, is_fraction(comparison.basis.metric))
    return f"One further training on as many other classes: {ends} (95 % prediction interval)"


def _training_classes(comparison: SeedComparison) -> str:
    return f"the training classes {'are the same in all' if comparison.same_training else 'differ between'} seeds"


def _ends(found: Difference, share: bool) -> str:
    if found.low is None or found.high is None or found.p is None:
        return "none"
    return f"{range_text(found.low, found.high, share)} (p {p_words(found.p)})"


def _networks(comparison: SeedComparison) -> str:
    return "networks" if comparison.one else "pairs of networks"


def _names(comparison: SeedComparison) -> tuple[str, str]:
    """The layers' names, with the named run where the experiments differ, or the epoch where the epochs do."""
    a, b = comparison.a, comparison.b
    if not comparison.one:
        return f"{a.name} of {a.subject.run}'s experiment", f"{b.name} of {b.subject.run}'s experiment"
    if a.subject.epoch != b.subject.epoch:
        return f"{a.name} at epoch {a.subject.epoch}", f"{b.name} at epoch {b.subject.epoch}"
    return a.name, b.name


def _trainings_text(comparison: SeedComparison) -> str:
    """`over 3 trainings (netA-s0, netA-s1, netA-s2; epoch 20)`."""
    epochs = list(dict.fromkeys((comparison.a.subject.epoch, comparison.b.subject.epoch)))
    at = f"; epoch {epochs[0]}" if len(epochs) == 1 else f"; epochs {epochs[0]} and {epochs[1]}"
    runs = [" and ".join(dict.fromkeys(one.runs)) for one in comparison.trainings]
    if not runs:
        return f"in the trainings of {comparison.a.subject.run}'s experiment"
    pairs = "trainings" if comparison.one else "pairs of trainings"
    return f"over {len(runs)} {pairs} ({', '.join(runs)}{at})"


def seeds_table(comparisons: Sequence[SeedComparison]) -> TextTable:
    """A row for each comparison of a corrected family, at least one with a value."""
    measured = next(one for one in comparisons if one.over is not None)
    basis, share = measured.basis, is_fraction(measured.basis.metric)
    few = few_text(basis)
    notes = [note for one in comparisons if one.over is not None for note in one.notes]
    unit = " in %" if share else ""
    return TextTable(
        ("a", "b", "a - b", "sd", "these\nnetworks", "mean over\ntrainings", "one further\ntraining", "p", ""),
        tuple(_row(one, share) for one in comparisons),
        numbers=frozenset(range(2, 8)),
        heading=(
            f"{metric_text(basis.metric).rstrip(',')}{unit} on {classes_text(measured.a, measured.b)},"
            f" {basis.queries:,} queries, {_trainings_text(measured)}",
            basis.kind.over(basis.units),
        ),
        notes=(
            f"p is of the mean over trainings, corrected by Holm for {basis.comparisons} comparisons; the intervals are"
            " not",
            "one further training on as many other classes: 95 % prediction interval, from 3 trainings on",
            _training_classes(measured),
            *([few] if few else []),
            *dict.fromkeys(notes),
        ),
    )


def _row(one: SeedComparison, share: bool) -> tuple[str, ...]:
    over = one.over
    if over is None:
        return (one.a.name, one.b.name, *["-"] * 6, "; ".join(one.notes))
    further = "-" if over.other_classes is None else range_text(over.other_classes.low, over.other_classes.high, share)
    ends = (ends_cell(found, share) for found in (over.classes, over.trainings))
    sd = "-" if over.sd is None else number_text(over.sd, share)
    return (
        one.a.name,
        one.b.name,
        difference_text(over.mean, share),
        sd,
        *ends,
        further,
        *verdict_cells(over.trainings),
    )
