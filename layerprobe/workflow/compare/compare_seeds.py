"""compare --seeds: two layers in all trainings of their experiments, as sentences and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from layerprobe.statistics.bootstrap import holm
from layerprobe.statistics.seeds import FEWEST_TRAININGS
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.tables.tables import TextTable
from layerprobe.values.intervals import Difference, OverSeeds
from layerprobe.values.scores import is_fraction
from layerprobe.workflow.compare.compare import (
    CompareRequest,
    Pair,
    before_training,
    cluster_notes,
    comparison_data,
    input_notes,
    invalid_reason,
    layer_notes_of,
    missing_note,
    pair_layers,
    side_of,
    unlike_notes,
)
from layerprobe.workflow.compare.comparison import (
    PairedTraining,
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
from layerprobe.workflow.compare.evidence import Evidence, Measure, gather, over_trainings, query_units
from layerprobe.workflow.run.experiments import Trainings, pair_trainings
from layerprobe.workflow.run.references import (
    RankedSplit,
    find_reference,
    open_ranked_split,
    probe_layers_fix,
    reference_text,
    require_any_right_item,
    require_same_queries,
)

SplitPair = tuple[RankedSplit, RankedSplit]


def compare_seeds(request: CompareRequest) -> list[SeedComparison]:
    """Compare the layers of A with those of B in every training of their experiments."""
    (run_a, first_reference), (run_b, second_reference) = (
        find_reference(request.cache, text) for text in (request.a, request.b)
    )
    a = open_ranked_split(run_a, first_reference.epoch, request.split)
    b = open_ranked_split(run_b, second_reference.epoch, request.split)
    require_same_queries(require_any_right_item(a), b)
    trainings = pair_trainings(request.cache, a.run, b.run, (first_reference.epoch, second_reference.epoch))
    ranked_splits = [
        (open_ranked_split(x, a.epoch, a.split), open_ranked_split(y, b.epoch, b.split)) for x, y in trainings.pairs
    ]
    for split_a, split_b in ranked_splits:
        require_same_queries(ranked_splits[0][0], split_a)
        require_same_queries(split_a, split_b)
    pairs = pair_layers((a, first_reference), (b, second_reference))
    layers = [
        (x[side], ranked) for x in ranked_splits for side in (0, 1) for ranked in {pair[side]: 0 for pair in pairs}
    ]
    if absent := [(ranked_split, ranked) for ranked_split, ranked in layers if not ranked_split.ranked_as(ranked)]:
        ranked_split, ranked = absent[0]
        message = f"{reference_text(ranked_split.subject(ranked))} is not ranked on the {ranked_split.split} split"
        raise RecipeError(message, fix=probe_layers_fix(absent))
    return compare_trainings((a, b), ranked_splits, pairs, trainings, request.measure)


def compare_trainings(
    reference_pair: SplitPair,
    ranked_splits: Sequence[SplitPair],
    pairs: Sequence[Pair],
    trainings: Trainings,
    measure: Measure,
) -> list[SeedComparison]:
    """Compare at least one pair of layers over several pairs of trainings."""
    a, b = reference_pair
    invalid = {pair: next(filter(None, (_invalid_reason(x, pair) for x in ranked_splits)), "") for pair in pairs}
    valid = [pair for pair in pairs if not invalid[pair]]
    if not valid:
        raise NumericError(invalid[pairs[0]], fix="Choose a layer whose features are finite")
    units = query_units(ranked_splits[0][0], measure.kind)
    evidence = [gather(x, y, valid, measure, units) for x, y in ranked_splits]
    start_evidence = before_training(ranked_splits, evidence, valid, measure, units)
    differences = _correct_p(over_trainings(evidence))
    data = comparison_data(a, measure, evidence[0].units, len(valid))
    inputs = [note for x, y in ranked_splits for note in input_notes(x, y)]
    notes = tuple(dict.fromkeys([*trainings.left_out, *inputs, *cluster_notes(ranked_splits[0][0], measure.kind)]))
    comparisons = []
    # Seeds draw images of classes at most (`data.share`): folds alone change the training classes.
    folds = [{x[side].record.data.get("validation_fold", 0) for x in ranked_splits} for side in (0, 1)]
    has_same_classes = all(len(numbers) == 1 for numbers in folds)
    for pair in pairs:
        sides = side_of(a, pair[0]), side_of(b, pair[1])
        if reason := invalid[pair]:
            comparisons.append(
                SeedComparison(
                    *sides,
                    data,
                    trainings=(),
                    over=None,
                    notes=(reason,),
                    is_one_experiment=trainings.one,
                    same_training=has_same_classes,
                )
            )
            continue
        cell = valid.index(pair)
        by_training = zip(ranked_splits, trainings.seeds, evidence, strict=True)
        of_seeds = tuple(
            _build_training(runs, seed, training_evidence, cell) for runs, seed, training_evidence in by_training
        )
        start = effect = None
        layers = [(x[side], pair[side]) for x in ranked_splits for side in (0, 1)]
        missing = missing_note(layers, measure.metric) if a.epoch and b.epoch and pair not in start_evidence else []
        if pair in start_evidence:
            (start,), (effect,) = map(over_trainings, start_evidence[pair])
        unlike = tuple(unlike_notes((a, pair[0]), (b, pair[1])))
        of_pair = (*unlike, *_layer_notes(ranked_splits, pair), *missing, *notes)
        comparisons.append(
            SeedComparison(
                *sides,
                data,
                trainings=of_seeds,
                over=differences[cell],
                notes=of_pair,
                is_one_experiment=trainings.one,
                same_training=has_same_classes,
                before=start,
                effect=effect,
                unlike=unlike,
            )
        )
    return comparisons


def _layer_notes(ranked_splits: Sequence[SplitPair], pair: Pair) -> list[str]:
    """The caveats on both layers in each training, with the run's name."""
    return list(
        dict.fromkeys(
            f"{ranked_split.run.name}, {note}"
            for of_seed in ranked_splits
            for ranked_split, ranked in zip(of_seed, pair, strict=True)
            for note in layer_notes_of(ranked_split, ranked)
        )
    )


def _invalid_reason(ranked_splits: SplitPair, pair: Pair) -> str:
    return invalid_reason(ranked_splits[0], pair[0]) or invalid_reason(ranked_splits[1], pair[1])


def _build_training(ranked_splits: SplitPair, seed: int, evidence: Evidence, cell: int) -> PairedTraining:
    value_a, value_b = evidence.values[cell].tolist()
    return PairedTraining(seed, (ranked_splits[0].run.name, ranked_splits[1].run.name), (value_a, value_b))


def _correct_p(differences: Sequence[OverSeeds]) -> list[OverSeeds]:
    """Correct the p values for these networks, and those of the mean over trainings, each by Holm."""
    classes, trainings = (
        holm([difference.classes.p for difference in differences]),
        holm([difference.trainings.p for difference in differences]),
    )
    return [
        replace(difference, classes=replace(difference.classes, p=p), trainings=replace(difference.trainings, p=q))
        for difference, p, q in zip(differences, classes, trainings, strict=True)
    ]


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
