"""compare --seeds: two layers in all trainings of their experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from layerprobe.statistics.holm import holm
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.values.intervals import OverSeeds
from layerprobe.workflow.compare.compare import (
    CompareRequest,
    Pair,
    basis_of,
    input_notes,
    invalid_reason,
    layer_notes_of,
    pair_layers,
    side_of,
)
from layerprobe.workflow.compare.comparison import SeedComparison, Training
from layerprobe.workflow.compare.evidence import Evidence, Measure, gather, over_trainings, place_units
from layerprobe.workflow.run.references import (
    RankedSplit,
    find_reference,
    open_ranked_split,
    probe_fix,
    reference_text,
    require_same_queries,
)
from layerprobe.workflow.run.trainings import Trainings, pair_trainings

Places = tuple[RankedSplit, RankedSplit]


def compare_seeds(request: CompareRequest) -> list[SeedComparison]:
    """Compare the layers of A with those of B in every training of their experiments.

    Returns:
        One comparison; with globs those of every pair, corrected together.
    """
    (run_a, first), (run_b, second) = (find_reference(request.cache, text) for text in (request.a, request.b))
    a = open_ranked_split(run_a, first.epoch, request.split)
    b = open_ranked_split(run_b, second.epoch, request.split)
    require_same_queries(a, b)
    trainings = pair_trainings(request.cache, a.run, b.run, (first.epoch, second.epoch))
    places = [
        (open_ranked_split(x, a.epoch, a.split), open_ranked_split(y, b.epoch, b.split)) for x, y in trainings.pairs
    ]
    for one, other in places:
        require_same_queries(places[0][0], one)
        require_same_queries(one, other)
    pairs = pair_layers((a, first), (b, second))
    for place, layers in ((x[side], {pair[side] for pair in pairs}) for x in places for side in (0, 1)):
        for ranked in (x for x in layers if not place.ranked_as(x)):
            raise RecipeError(
                f"{reference_text(place.subject(ranked))} is not ranked on the {place.split} split",
                fix=probe_fix(place.run, place.record, place.epoch, place.split, f"--layers {ranked.layer.layer}"),
            )
    return compare_trainings((a, b), places, pairs, trainings, request.measure)


def compare_trainings(
    named: Places, places: Sequence[Places], pairs: Sequence[Pair], trainings: Trainings, measure: Measure
) -> list[SeedComparison]:
    """Compare layers of several pairs of trainings.

    Args:
        pairs: of layers; at least one.
    """
    a, b = named
    invalid = {pair: next(filter(None, (_invalid(x, pair) for x in places)), "") for pair in pairs}
    valid = [pair for pair in pairs if not invalid[pair]]
    if not valid:
        raise NumericError(invalid[pairs[0]], fix="Choose a layer whose features are finite")
    units = place_units(places[0][0], measure.kind)
    evidence = [gather(x, y, valid, measure, units) for x, y in places]
    found = _corrected(over_trainings(evidence))
    basis = basis_of(a, measure, evidence[0].units, len(valid))
    notes = tuple(dict.fromkeys([*trainings.left_out, *(note for x, y in places for note in input_notes(x, y))]))
    comparisons = []
    for pair in pairs:
        sides = side_of(a, pair[0]), side_of(b, pair[1])
        if reason := invalid[pair]:
            comparisons.append(SeedComparison(*sides, basis, (), None, (reason,), trainings.one))
            continue
        cell = valid.index(pair)
        each = zip(places, trainings.seeds, evidence, strict=True)
        of_seeds = tuple(_training(runs, seed, one, cell) for runs, seed, one in each)
        told = (*_layer_notes(places, pair), *notes)
        comparisons.append(SeedComparison(*sides, basis, of_seeds, found[cell], told, trainings.one))
    return comparisons


def _layer_notes(places: Sequence[Places], pair: Pair) -> list[str]:
    """What is to be said of the two layers in each training, with the run's name."""
    return list(
        dict.fromkeys(
            f"{place.run.name}, {note}"
            for of_seed in places
            for place, ranked in zip(of_seed, pair, strict=True)
            for note in layer_notes_of(place, ranked)
        )
    )


def _invalid(places: Places, pair: Pair) -> str:
    return invalid_reason(places[0], pair[0]) or invalid_reason(places[1], pair[1])


def _training(places: Places, seed: int, evidence: Evidence, cell: int) -> Training:
    first, second = evidence.values[cell].tolist()
    return Training(seed, (places[0].run.name, places[1].run.name), (first, second))


def _corrected(found: Sequence[OverSeeds]) -> list[OverSeeds]:
    """The p of these networks and those of another training, each corrected by Holm."""
    classes, training = holm([one.classes.p for one in found]), holm([one.training.p for one in found])
    return [
        replace(one, classes=replace(one.classes, p=p), training=replace(one.training, p=q))
        for one, p, q in zip(found, classes, training, strict=True)
    ]
