"""compare --seeds: two layers in all trainings of their experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from layerprobe.statistics.holm import holm
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.values.intervals import OverSeeds
from layerprobe.workflow.compare.before_training import before_training, missing_note
from layerprobe.workflow.compare.compare import (
    CompareRequest,
    Pair,
    basis_of,
    cluster_notes,
    input_notes,
    invalid_reason,
    layer_notes_of,
    pair_layers,
    side_of,
    unlike_notes,
)
from layerprobe.workflow.compare.comparison import SeedComparison, Training
from layerprobe.workflow.compare.evidence import Evidence, Measure, gather, over_trainings, query_units
from layerprobe.workflow.run.references import (
    RankedSplit,
    find_reference,
    open_ranked_split,
    probe_layers_fix,
    reference_text,
    require_any_right_item,
    require_same_queries,
)
from layerprobe.workflow.run.trainings import Trainings, pair_trainings

SplitPair = tuple[RankedSplit, RankedSplit]


def compare_seeds(request: CompareRequest) -> list[SeedComparison]:
    """Compare the layers of A with those of B in every training of their experiments."""
    (run_a, first), (run_b, second) = (find_reference(request.cache, text) for text in (request.a, request.b))
    a = open_ranked_split(run_a, first.epoch, request.split)
    b = open_ranked_split(run_b, second.epoch, request.split)
    require_same_queries(require_any_right_item(a), b)
    trainings = pair_trainings(request.cache, a.run, b.run, (first.epoch, second.epoch))
    ranked_splits = [
        (open_ranked_split(x, a.epoch, a.split), open_ranked_split(y, b.epoch, b.split)) for x, y in trainings.pairs
    ]
    for one, other in ranked_splits:
        require_same_queries(ranked_splits[0][0], one)
        require_same_queries(one, other)
    pairs = pair_layers((a, first), (b, second))
    of_each = [
        (x[side], ranked) for x in ranked_splits for side in (0, 1) for ranked in {pair[side]: 0 for pair in pairs}
    ]
    if absent := [(ranked_split, ranked) for ranked_split, ranked in of_each if not ranked_split.ranked_as(ranked)]:
        ranked_split, ranked = absent[0]
        what = f"{reference_text(ranked_split.subject(ranked))} is not ranked on the {ranked_split.split} split"
        raise RecipeError(what, fix=probe_layers_fix(absent))
    return compare_trainings((a, b), ranked_splits, pairs, trainings, request.measure)


def compare_trainings(
    named: SplitPair, ranked_splits: Sequence[SplitPair], pairs: Sequence[Pair], trainings: Trainings, measure: Measure
) -> list[SeedComparison]:
    """Compare at least one pair of layers over several pairs of trainings."""
    a, b = named
    invalid = {pair: next(filter(None, (_invalid(x, pair) for x in ranked_splits)), "") for pair in pairs}
    valid = [pair for pair in pairs if not invalid[pair]]
    if not valid:
        raise NumericError(invalid[pairs[0]], fix="Choose a layer whose features are finite")
    units = query_units(ranked_splits[0][0], measure.kind)
    evidence = [gather(x, y, valid, measure, units) for x, y in ranked_splits]
    started = before_training(ranked_splits, evidence, valid, measure, units)
    found = _corrected(over_trainings(evidence))
    basis = basis_of(a, measure, evidence[0].units, len(valid))
    inputs = [note for x, y in ranked_splits for note in input_notes(x, y)]
    notes = tuple(dict.fromkeys([*trainings.left_out, *inputs, *cluster_notes(ranked_splits[0][0], measure.kind)]))
    comparisons = []
    # Seeds draw images of classes at most (`data.share`): folds alone change the training classes.
    folds = [{x[side].record.data.get("validation_fold", 0) for x in ranked_splits} for side in (0, 1)]
    same = all(len(each) == 1 for each in folds)
    for pair in pairs:
        sides = side_of(a, pair[0]), side_of(b, pair[1])
        if reason := invalid[pair]:
            comparisons.append(SeedComparison(*sides, basis, (), None, (reason,), trainings.one, same))
            continue
        cell = valid.index(pair)
        each = zip(ranked_splits, trainings.seeds, evidence, strict=True)
        of_seeds = tuple(_training(runs, seed, one, cell) for runs, seed, one in each)
        start = effect = None
        of_each = [(x[side], pair[side]) for x in ranked_splits for side in (0, 1)]
        missing = missing_note(of_each, measure.metric) if a.epoch and b.epoch and pair not in started else []
        if pair in started:
            (start,), (effect,) = map(over_trainings, started[pair])
        of_pair = (*unlike_notes((a, pair[0]), (b, pair[1])), *_layer_notes(ranked_splits, pair), *missing, *notes)
        comparisons.append(
            SeedComparison(*sides, basis, of_seeds, found[cell], of_pair, trainings.one, same, start, effect)
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


def _invalid(ranked_splits: SplitPair, pair: Pair) -> str:
    return invalid_reason(ranked_splits[0], pair[0]) or invalid_reason(ranked_splits[1], pair[1])


def _training(ranked_splits: SplitPair, seed: int, evidence: Evidence, cell: int) -> Training:
    first, second = evidence.values[cell].tolist()
    return Training(seed, (ranked_splits[0].run.name, ranked_splits[1].run.name), (first, second))


def _corrected(found: Sequence[OverSeeds]) -> list[OverSeeds]:
    """Correct the p values for these networks, and those of the mean over trainings, each by Holm."""
    classes, trainings = holm([one.classes.p for one in found]), holm([one.trainings.p for one in found])
    return [
        replace(one, classes=replace(one.classes, p=p), trainings=replace(one.trainings, p=q))
        for one, p, q in zip(found, classes, trainings, strict=True)
    ]
