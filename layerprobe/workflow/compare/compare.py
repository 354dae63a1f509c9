"""compare: the difference of two layers on the same queries, and what training adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import layer_notes
from layerprobe.reductions.chain import parse_chain
from layerprobe.statistics.bootstrap import holm
from layerprobe.system.errors import DataError, NumericError, RecipeError
from layerprobe.values.facts import EPOCH_0
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.layers import LayerKey, RankedLayer, members_of, unlike_text
from layerprobe.workflow.compare.comparison import ComparedLayer, Comparison, ComparisonData, inputs_text
from layerprobe.workflow.compare.evidence import Evidence, Measure, gather, query_units
from layerprobe.workflow.probe.reducing import TRANSDUCTIVE
from layerprobe.workflow.run.facts import data_facts, start_of
from layerprobe.workflow.run.metric_values import metric_flags
from layerprobe.workflow.run.opened_run import equal_layers
from layerprobe.workflow.run.references import (
    RankedSplit,
    Reference,
    find_layers_of,
    find_reference,
    open_ranked_split,
    probe_layers_fix,
    require_any_right_item,
    require_same_queries,
)
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import trains_on_train, weights_text
from layerprobe.workflow.run.units import folders_note_of_run

Pair = tuple[RankedLayer, RankedLayer]
SplitPair = tuple[RankedSplit, RankedSplit]


def before_training(
    trainings: Sequence[SplitPair],
    evidence: Sequence[Evidence],
    pairs: Sequence[Pair],
    measure: Measure,
    units: NDArray[np.int64],
) -> dict[Pair, tuple[list[Evidence], list[Evidence]]]:
    """Pair -> by training, its difference at epoch 0, and the change from there to the compared epochs.

    Pairs that are not measured at epoch 0 of every training are missing.

    Args:
        evidence: of the pairs, in each training.
        units: (Q,) the unit of each query.
    """
    starts = [(at_start(a), at_start(b)) for a, b in trainings]
    split_pairs = [(a, b) for a, b in starts if a is not None and b is not None]
    if len(split_pairs) < len(starts):
        return {}
    measured = [
        pair for pair in pairs if all(_is_measured(a, pair[0]) and _is_measured(b, pair[1]) for a, b in split_pairs)
    ]
    if not measured:
        return {}
    try:
        start_evidence = [gather(a, b, measured, measure, units) for a, b in split_pairs]
    except (DataError, RecipeError):  # the metric, or the features to draw classes anew, are not stored at epoch 0
        return {}
    indices = [pairs.index(pair) for pair in measured]
    effects = [later.rows(indices).minus(start) for later, start in zip(evidence, start_evidence, strict=True)]
    return {
        pair: (
            [pair_evidence.rows([index]) for pair_evidence in start_evidence],
            [pair_evidence.rows([index]) for pair_evidence in effects],
        )
        for index, pair in enumerate(measured)
    }


def at_start(ranked_split: RankedSplit) -> RankedSplit | None:
    """The same split at epoch 0; None for epoch 0 itself, and where that is not ranked on the same images."""
    if ranked_split.epoch == 0 or 0 not in ranked_split.run.ranked_epochs(ranked_split.split):
        return None
    start = open_ranked_split(ranked_split.run, 0, ranked_split.split)
    try:
        require_same_queries(ranked_split, start)
    except RecipeError:
        return None
    return start


def missing_note(layers: Sequence[tuple[RankedSplit, RankedLayer]], metric: str) -> list[str]:
    """The commands that measure layers before training; none for networks that have no such epoch."""
    for split, _ in layers:
        if split.epoch == 0 or split.record.from_python or data_facts(split.run, ()).start == EPOCH_0:
            return []
    starts = [(at_start(split), split, ranked) for split, ranked in layers]
    absent = [(split, ranked) for start, split, ranked in starts if start is None or not _is_measured(start, ranked)]
    flags = [] if metric == "R@1" else metric_flags(metric)
    fix = probe_layers_fix(absent or layers, *flags, epoch=0)
    return [f"the difference before training is not stored: {fix[0].lower()}{fix[1:]}"]


def _is_measured(ranked_split: RankedSplit, ranked: RankedLayer) -> bool:
    draws = ranked_split.ranked_as(ranked)
    return bool(draws) and all(draw in ranked_split.stored.ranks for draw in draws)


@dataclass(frozen=True)
class CompareRequest:
    """A call of `layerprobe compare`.

    Args:
        a: [RUN[#epoch]:]LAYER[@pool][/reduction][~similarity] or RUN[#epoch]; the layer may be a glob.
    """

    cache: Path
    a: str
    b: str
    split: str = "test"
    measure: Measure = field(default_factory=Measure)


def compare(request: CompareRequest) -> list[Comparison]:
    """Compare the layers of A with those of B; the pairs of globs are corrected together."""
    (run, first_reference), (other, second_reference) = (
        find_reference(request.cache, text) for text in (request.a, request.b)
    )
    a, b = (
        open_ranked_split(run, first_reference.epoch, request.split),
        open_ranked_split(other, second_reference.epoch, request.split),
    )
    require_same_queries(require_any_right_item(a), b)
    return compare_pairs(a, b, pair_layers((a, first_reference), (b, second_reference)), request.measure)


def compare_pairs(a: RankedSplit, b: RankedSplit, pairs: Sequence[Pair], measure: Measure) -> list[Comparison]:
    """Compare layers of one split with layers of another; at least one pair."""
    invalid = {(x, y): invalid_reason(a, x) or invalid_reason(b, y) for x, y in pairs}
    valid = [pair for pair in pairs if not invalid[pair]]
    if not valid:
        raise NumericError(invalid[pairs[0]], fix="Choose a layer whose features are finite")
    units = query_units(a, measure.kind)
    evidence = gather(a, b, valid, measure, units)
    start_evidence = before_training([(a, b)], [evidence], valid, measure, units)
    differences = evidence.differences()
    corrected = [
        replace(difference, p=p)
        for difference, p in zip(differences, holm([difference.p for difference in differences]), strict=True)
    ]
    numbers = dict(zip(valid, zip(evidence.values.tolist(), corrected, strict=True), strict=True))
    data = comparison_data(a, measure, evidence.units, len(valid))
    inputs = [*input_notes(a, b), *cluster_notes(a, measure.kind)]
    comparisons = []
    for first_layer, second_layer in pairs:
        sides = side_of(a, first_layer), side_of(b, second_layer)
        if reason := invalid[first_layer, second_layer]:
            comparisons.append(Comparison(*sides, data, values=None, difference=None, notes=(reason,)))
            continue
        (before, after), difference = numbers[first_layer, second_layer]
        unlike = tuple(unlike_notes((a, first_layer), (b, second_layer)))
        notes = [
            *unlike,
            *layer_notes_of(a, first_layer),
            *layer_notes_of(b, second_layer),
            *inputs,
        ]
        start = effect = None
        if (first_layer, second_layer) in start_evidence:
            (start,), (effect,) = (
                evidence_of_pair[0].differences() for evidence_of_pair in start_evidence[first_layer, second_layer]
            )
        elif a.epoch and b.epoch:
            notes += missing_note([(a, first_layer), (b, second_layer)], measure.metric)
        distinct_notes = tuple(dict.fromkeys(notes))
        comparisons.append(
            Comparison(
                *sides,
                data,
                values=(before, after),
                difference=difference,
                notes=distinct_notes,
                before=start,
                effect=effect,
                unlike=unlike,
            )
        )
    return comparisons


def pair_layers(a: tuple[RankedSplit, Reference], b: tuple[RankedSplit, Reference]) -> list[Pair]:
    """The pairs that two references name.

    A glob pairs each of its layers with the other reference's single layer. That layer is skipped, also under a second
    name of the same stored features. Two globs pair layers with equal names.
    """
    first_layers, second_layers = find_layers_of((a, b))
    globs = a[1].is_glob, b[1].is_glob
    if all(globs):
        pairs = [
            (first_layer, second_layer)
            for first_layer in first_layers
            for second_layer in second_layers
            if first_layer.layer == second_layer.layer
        ]
    else:
        pairs = [(first_layer, second_layer) for first_layer in first_layers for second_layer in second_layers]
    same_epoch = (a[0].run, a[0].epoch) == (b[0].run, b[0].epoch)
    if any(globs) and same_epoch:
        names = {second_layer.layer.layer for _, second_layer in pairs}
        equal_names = {name: equal_layers(a[0].run, a[0].epoch, a[0].split, name) for name in names}
        pairs = [(x, y) for x, y in pairs if x != y and x.layer not in equal_names[y.layer.layer]]
    if not pairs:
        raise RecipeError(
            f"no two layers to compare: {a[1].layer} against {b[1].layer}",
            fix="Two globs pair layers of one name: let one of them name a single layer",
        )
    return pairs


def comparison_data(ranked_split: RankedSplit, measure: Measure, units: int, comparisons: int) -> ComparisonData:
    """The data of comparisons on a split's queries."""
    labels = ranked_split.stored.labels
    return ComparisonData(measure.metric, measure.kind, len(labels), len(np.unique(labels)), units, comparisons)


def side_of(ranked_split: RankedSplit, ranked: RankedLayer) -> ComparedLayer:
    """A layer of a comparison."""
    record = ranked_split.record
    subject, name = ranked_split.subject(ranked), ranked_split.name(ranked)
    return ComparedLayer(subject, name, start_of(record), trains_on_train(record), weights_text(record))


def invalid_reason(ranked_split: RankedSplit, ranked: RankedLayer) -> str:
    """Why a layer has no ranks; empty if it has them."""
    reason = next(
        (
            draw_reason
            for draw in ranked_split.ranked_as(ranked)
            if (draw_reason := ranked_split.stored.invalid.get(draw, ""))
        ),
        "",
    )
    return f"{ranked_split.run.name}, {ranked_split.name(ranked)}: {reason}" if reason else ""


def layer_notes_of(ranked_split: RankedSplit, ranked: RankedLayer) -> list[str]:
    """The caveats on a layer: transductive, collapsed, zero vectors."""
    notes = dict.fromkeys(
        note for draw in ranked_split.ranked_as(ranked) for note in layer_notes(ranked_split.stored.ranks[draw])
    )
    fitted = [TRANSDUCTIVE] if parse_chain(ranked.reduction).on_gallery else []
    return [f"{ranked_split.name(ranked)}: {note}" for note in (*fitted, *notes)]


def unlike_notes(layer: tuple[RankedSplit, RankedLayer], other: tuple[RankedSplit, RankedLayer]) -> list[str]:
    """A note on the differences of two layers in pool, dimensions or post-processing, if any."""
    text = unlike_text(layer[1], other[1], (_dim(*layer), _dim(*other)))
    return [f"{layer[0].name(layer[1])} and {other[0].name(other[1])}: {text}"] if text else []


def _dim(ranked_split: RankedSplit, ranked: RankedLayer) -> int | None:
    """The dimensions of a layer after its reduction; None where its features are gone."""
    return stored_dim(ranked_split.run, ranked_split.epoch, ranked_split.split, ranked)


def stored_dim(run: Run, epoch: int, split: str, ranked: RankedLayer) -> int | None:
    """The dimensions of a stored layer after its reduction; None where its features are gone."""
    try:
        return dim_of(run.feature_head(epoch, split).dims, ranked)
    except DataError:
        return None


def dim_of(dims: Mapping[LayerKey, int], ranked: RankedLayer) -> int | None:
    """The dimensions of a layer after its reduction, given those of the stored layers; None if it is not stored."""
    members = members_of(ranked.layer, dims)
    return parse_chain(ranked.reduction).dim(sum(dims[member] for member in members)) if members else None


def cluster_notes(ranked_split: RankedSplit, kind: IntervalKind) -> list[str]:
    """A note where classes are the units, and clusters of them are known, if any."""
    if kind.cluster is not None:
        return []
    note = folders_note_of_run(ranked_split.run, ranked_split.epoch, ranked_split.split)
    return [] if note is None else [note]


def input_notes(a: RankedSplit, b: RankedSplit) -> list[str]:
    """A note on the differences between the inputs of two models, if any."""
    names, transforms = (a.run.name, b.run.name), (a.stored.transform, b.stored.transform)
    if transforms[0] != transforms[1]:
        return [inputs_text(names, transforms)]
    contents = [ranked_split.record.contents.get(ranked_split.split) for ranked_split in (a, b)]
    if None in contents or contents[0] == contents[1]:
        return []
    # They come from no files, as the tensors of a loader: `require_same_queries` refuses others.
    return [f"{names[0]} and {names[1]} were given other numbers: whether of the same images is not known"]
