"""compare --seeds: two layers in all trainings of their experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from layerprobe.statistics.bootstrap import holm
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.values.intervals import OverSeeds
from layerprobe.workflow.compare.before_training import before_training, missing_note
from layerprobe.workflow.compare.compare import (
    CompareRequest,
    Pair,
    cluster_notes,
    comparison_data,
    input_notes,
    invalid_reason,
    layer_notes_of,
    pair_layers,
    side_of,
    unlike_notes,
)
from layerprobe.workflow.compare.comparison import PairedTraining, SeedComparison
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
            comparisons.append(SeedComparison(*sides, data, (), None, (reason,), trainings.one, has_same_classes))
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
                of_seeds,
                differences[cell],
                of_pair,
                trainings.one,
                has_same_classes,
                start,
                effect,
                unlike,
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
