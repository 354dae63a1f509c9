"""compare: the difference of two layers on the same queries, in one training or several, and what training adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import layer_notes
from layerprobe.measure.redraw import groups_of
from layerprobe.post_processing.chain import parse_chain
from layerprobe.statistics.bootstrap import differences, holm
from layerprobe.statistics.jackknife import jackknife, jackknife_over_seeds
from layerprobe.statistics.seeds import over_seeds
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.system.errors import DataError, NumericError, RecipeError
from layerprobe.values.facts import EPOCH_0
from layerprobe.values.intervals import Difference, IntervalKind, OverSeeds
from layerprobe.values.layers import RankedLayer, members_of, unlike_text
from layerprobe.values.retrieval import FloatArray
from layerprobe.workflow.compare.comparison import (
    ComparedLayer,
    ComparedTrainings,
    Comparison,
    ComparisonData,
    PairedTraining,
    inputs_text,
)
from layerprobe.workflow.compare.request import CompareRequest
from layerprobe.workflow.probe.chains import fit_notes
from layerprobe.workflow.run.experiments import Trainings, pair_trainings
from layerprobe.workflow.run.metric_values import metric_flags, metric_values_of, require_mean_over_queries
from layerprobe.workflow.run.opened_run import equal_layers
from layerprobe.workflow.run.references import (
    RankedSplit,
    Reference,
    find_layers_of,
    find_reference,
    open_ranked_split,
    probe_layers_fix,
    reference_text,
    require_any_right_item,
    require_same_queries,
)
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import start_of, trains_on_train, weights_text
from layerprobe.workflow.run.units import folders_note_of_run, units_of_run

Pair = tuple[RankedLayer, RankedLayer]
SplitPair = tuple[RankedSplit, RankedSplit]  # of one training, or of two


def compare(request: CompareRequest) -> list[Comparison]:
    """Compare the layers of A with those of B, with `seeds` in every training of their experiments.

    The pairs of globs are corrected together.
    """
    require_mean_over_queries(request.metric)
    (run_a, reference_a), (run_b, reference_b) = (find_reference(request.cache, x) for x in (request.a, request.b))
    kind, split = request.kind, request.split
    a, b = open_ranked_split(run_a, reference_a.epoch, split), open_ranked_split(run_b, reference_b.epoch, split)
    require_same_queries(require_any_right_item(a), b)
    if not request.seeds:
        pairs = pair_layers((a, reference_a), (b, reference_b))
        return compare_layers([(a, b)], pairs, request.metric, kind, memory=request.memory)
    trainings = pair_trainings(request.cache, run_a, run_b, (reference_a.epoch, reference_b.epoch))
    splits = [(open_ranked_split(x, a.epoch, split), open_ranked_split(y, b.epoch, split)) for x, y in trainings.pairs]
    for split_a, split_b in splits:
        require_same_queries(splits[0][0], split_a)
        require_same_queries(split_a, split_b)
    pairs = pair_layers((a, reference_a), (b, reference_b))
    layers = [(x[side], ranked) for x in splits for side in (0, 1) for ranked in dict.fromkeys(p[side] for p in pairs)]
    if absent := [(training, ranked) for training, ranked in layers if not training.ranked_as(ranked)]:
        name = reference_text(absent[0][0].subject(absent[0][1]))
        raise RecipeError(f"{name} is not ranked on the {split} split", fix=probe_layers_fix(absent))
    return compare_layers(splits, pairs, request.metric, kind, trainings=trainings, memory=request.memory)


def compare_layers(  # noqa: PLR0913 - the layers, the measure and the memory
    splits: Sequence[SplitPair],
    pairs: Sequence[Pair],
    metric: str,
    kind: IntervalKind = IntervalKind(),  # noqa: B008 - it is frozen
    *,
    trainings: Trainings | None = None,
    memory: int | None = None,
) -> list[Comparison]:
    """Compare layers of one split with layers of another, on the mean over trainings if there are several.

    Args:
        splits: of each training, on the same queries.
        pairs: at least one.
        trainings: None for those of one experiment, none of them skipped, with the layers named by the first.
        memory: bytes of features above which they stay on disk, for intervals over new classes; None: none do.
    """
    a, b = splits[0]
    if trainings is not None:
        a, b = (open_ranked_split(run, x.epoch, x.split) for run, x in zip(trainings.named, (a, b), strict=True))
    reasons = {pair: _invalid_reason(splits, pair) for pair in pairs}
    valid = [pair for pair in pairs if not reasons[pair]]
    if not valid:
        raise NumericError(reasons[pairs[0]], fix="Choose a layer whose features are finite")
    stored = splits[0][0].stored
    units = units_of_run(splits[0][0].run, {a.split: (stored.labels, stored.ids)}, kind.cluster)[a.split]
    gather_pairs = partial(gather, metric=metric, kind=kind, units=units, memory=memory)
    evidence = [gather_pairs(split_pair, valid) for split_pair in splits]
    measured = dict(zip(valid, _correct_p(differences_of(evidence)), strict=True))
    before = _before_training(splits, valid, evidence, gather_pairs)
    data = ComparisonData(
        metric, kind, len(stored.labels), len(np.unique(stored.labels)), evidence[0].sums.units, len(valid)
    )
    notes_of_all = _notes_of_all(splits, kind, trainings)
    comparisons = []
    for pair in pairs:
        sides = _compared_layer(a, pair[0]), _compared_layer(b, pair[1])
        values = [x.values[valid.index(pair)].tolist() for x in evidence if pair in measured]
        difference, over = measured.get(pair, (None, None))
        seeds = _over_trainings(splits, values, over, trainings)
        if difference is None:
            comparisons.append(Comparison(*sides, data, notes=(reasons[pair],), seeds=seeds))
            continue
        value_a, value_b = (sum(of_layer) / len(of_layer) for of_layer in zip(*values, strict=True))
        start, effect = before.get(pair, (None, None))
        missing = missing_note(_layers_of(splits, pair), metric) if a.epoch and b.epoch and start is None else []
        unlike = unlike_notes((a, pair[0]), (b, pair[1]))
        further = missing + notes_of_all if seeds else notes_of_all + missing
        comparisons.append(
            Comparison(
                *sides,
                data,
                values=(value_a, value_b),
                difference=difference,
                notes=tuple(dict.fromkeys([*unlike, *_layer_notes_of(splits, pair), *further])),
                before=start,
                effect=effect,
                unlike=tuple(unlike),
                seeds=seeds,
            )
        )
    return comparisons


def _compared_layer(ranked_split: RankedSplit, ranked: RankedLayer) -> ComparedLayer:
    record = ranked_split.record
    return ComparedLayer(
        ranked_split.subject(ranked),
        ranked_split.name(ranked),
        start_of(record),
        trains_on_train(record),
        weights_text(record),
    )


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


def _layers_of(splits: Sequence[SplitPair], pair: Pair) -> list[tuple[RankedSplit, RankedLayer]]:
    """Both layers of a pair, in each training."""
    return [(split_pair[side], pair[side]) for split_pair in splits for side in (0, 1)]


def _invalid_reason(splits: Sequence[SplitPair], pair: Pair) -> str:
    """Why one of two layers has no ranks in a training; empty if both have them in all."""
    for split, ranked in _layers_of(splits, pair):
        for draw in split.ranked_as(ranked):
            if reason := split.stored.invalid.get(draw):
                return f"{split.run.name}, {split.name(ranked)}: {reason}"
    return ""


def _over_trainings(
    splits: Sequence[SplitPair],
    values: Sequence[tuple[float, float]],
    over: OverSeeds | None,
    trainings: Trainings | None,
) -> ComparedTrainings | None:
    """What several trainings say; None for a single one."""
    if len(splits) == 1:
        return None
    # Seeds draw images of classes at most (`data.share`): folds alone change the training classes.
    folds = [{split_pair[side].record.data.get("validation_fold", 0) for split_pair in splits} for side in (0, 1)]
    of_seeds = [
        PairedTraining(x.record.seed, (x.run.name, y.run.name), (value_a, value_b))
        for (x, y), (value_a, value_b) in zip(splits, values, strict=False)
    ]
    has_same_classes = all(len(numbers) == 1 for numbers in folds)
    return ComparedTrainings(tuple(of_seeds), over, trainings is None or trainings.is_one_experiment, has_same_classes)


def _correct_p(measured: Sequence[tuple[Difference, OverSeeds | None]]) -> list[tuple[Difference, OverSeeds | None]]:
    """Correct the p values by Holm, and over trainings those for these networks."""
    p_values = holm([difference.p for difference, _ in measured])
    p_of_networks = holm([over.classes.p if over else None for _, over in measured])
    corrected = []
    for (difference, over), p, q in zip(measured, p_values, p_of_networks, strict=True):
        new = replace(difference, p=p)
        corrected.append((new, over and replace(over, classes=replace(over.classes, p=q), trainings=new)))
    return corrected


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


def _before_training(
    splits: Sequence[SplitPair],
    pairs: Sequence[Pair],
    evidence: Sequence[Evidence],
    gather_pairs: Callable[[SplitPair, Sequence[Pair]], Evidence],
) -> dict[Pair, tuple[Difference, Difference]]:
    """Pair -> its difference at epoch 0, and the change from there to the compared epochs.

    Pairs that are not measured at epoch 0 of every training are missing.

    Args:
        evidence: of the pairs, in each training.
    """
    starts = [(a, b) for x, y in splits if (a := at_start(x)) and (b := at_start(y))]
    measured = [pair for pair in pairs if all(split.has_ranks(ranked) for split, ranked in _layers_of(starts, pair))]
    if len(starts) < len(splits) or not measured:
        return {}
    try:
        start_evidence = [gather_pairs(start, measured) for start in starts]
    except (DataError, RecipeError):  # the metric, or the features to draw classes anew, are not stored at epoch 0
        return {}
    rows = [pairs.index(pair) for pair in measured]
    effects = [later.rows(rows).minus(start) for later, start in zip(evidence, start_evidence, strict=True)]
    of_pairs = {}
    for row, pair in enumerate(measured):
        (start, _), (effect, _) = (
            differences_of([x.rows([row]) for x in part])[0] for part in (start_evidence, effects)
        )
        of_pairs[pair] = start, effect
    return of_pairs


def missing_note(layers: Sequence[tuple[RankedSplit, RankedLayer]], metric: str) -> list[str]:
    """The commands that measure layers before training; none for networks that have no such epoch."""
    if any(split.record.from_python or start_of(split.record) == EPOCH_0 for split, _ in layers):
        return []
    starts = [at_start(split) for split, _ in layers]
    absent = [layer for start, layer in zip(starts, layers, strict=True) if not (start and start.has_ranks(layer[1]))]
    flags = [] if metric == "R@1" else metric_flags(metric)
    fix = probe_layers_fix(absent or layers, *flags, epoch=0)
    return [f"the difference before training is not stored: {fix[0].lower()}{fix[1:]}"]


def _notes_of_all(splits: Sequence[SplitPair], kind: IntervalKind, trainings: Trainings | None) -> list[str]:
    """The notes that all pairs share: on skipped trainings, on different input, and on clusters that are known."""
    notes = list(trainings.left_out) if trainings else []
    for a, b in splits:
        names, transforms = (a.run.name, b.run.name), (a.stored.transform, b.stored.transform)
        contents = [split.record.contents.get(split.split) for split in (a, b)]
        if transforms[0] != transforms[1]:
            notes.append(inputs_text(names, transforms))
        elif None not in contents and contents[0] != contents[1]:
            # They come from no files, as the tensors of a loader: `require_same_queries` refuses others.
            notes.append(f"{names[0]} and {names[1]} were given other numbers: whether of the same images is not known")
    first = splits[0][0]
    folders = folders_note_of_run(first.run, first.epoch, first.split) if kind.cluster is None else None
    return [*notes, *filter(None, [folders])]


def _layer_notes_of(splits: Sequence[SplitPair], pair: Pair) -> list[str]:
    """The caveats on both layers: fitted on these, collapsed, zero vectors; over several trainings with the run."""
    lines = []
    for split, ranked in _layers_of(splits, pair):
        fitted = fit_notes(parse_chain(ranked.post_processing), split.split)
        notes = dict.fromkeys(
            note for draw in split.ranked_as(ranked) for note in layer_notes(split.stored.ranks[draw])
        )
        name = f"{split.run.name}, {split.name(ranked)}" if len(splits) > 1 else split.name(ranked)
        lines += [f"{name}: {note}" for note in (*fitted, *notes)]
    return lines


def unlike_notes(layer: tuple[RankedSplit, RankedLayer], other: tuple[RankedSplit, RankedLayer]) -> list[str]:
    """A note on the differences of two layers in pool, dimensions or post-processing, if any."""
    dims = [stored_dim(split.run, split.epoch, split.split, ranked) for split, ranked in (layer, other)]
    text = unlike_text(layer[1], other[1], (dims[0], dims[1]))
    return [f"{layer[0].name(layer[1])} and {other[0].name(other[1])}: {text}"] if text else []


def stored_dim(run: Run, epoch: int, split: str, ranked: RankedLayer) -> int | None:
    """The dimensions of a stored layer after its post-processing; None where its features are gone."""
    try:
        dims = run.feature_head(epoch, split).dims
    except DataError:
        return None
    members = members_of(ranked.layer, dims)
    return parse_chain(ranked.post_processing).dim(sum(dims[member] for member in members)) if members else None


@dataclass(frozen=True, eq=False)
class Evidence:
    """The values of C pairs of layers, by units.

    Args:
        values: (C, 2) the metric of both layers.
        left_out: (C, U, U) contributions of the queries of each unit to the difference without each unit, for
            intervals over new classes; None for those against this gallery.
    """

    values: FloatArray
    sums: UnitSums
    left_out: FloatArray | None = None

    def rows(self, positions: Sequence[int]) -> Evidence:
        """Some of the pairs."""
        indices = list(positions)
        sums = UnitSums(self.sums.sums[indices], self.sums.counts[indices])
        return Evidence(self.values[indices], sums, None if self.left_out is None else self.left_out[indices])

    def minus(self, other: Evidence) -> Evidence:
        """The differences of these differences and others of the same queries.

        Raises:
            ValueError: other queries.
        """
        left_out = None if self.left_out is None or other.left_out is None else self.left_out - other.left_out
        return Evidence(np.stack([self.gained, other.gained], axis=1), self.sums.minus(other.sums), left_out)

    @property
    def queries(self) -> FloatArray:
        """(C, U) the number of queries of each unit of `left_out`, which may be a group of those of `sums`."""
        counts = self.sums.counts
        size = counts.shape[1] if self.left_out is None else self.left_out.shape[-1]
        groups, _ = groups_of(np.arange(counts.shape[1]), None, size, seed=0)
        return np.stack([np.bincount(groups, row, size) for row in counts])

    @property
    def gained(self) -> FloatArray:
        """(C,) the differences."""
        gained: FloatArray = self.values[:, 0] - self.values[:, 1]
        return gained


def gather(  # noqa: PLR0913 - as compare_layers
    splits: SplitPair,
    pairs: Sequence[Pair],
    metric: str,
    kind: IntervalKind,
    units: NDArray[np.int64],
    *,
    memory: int | None = None,
) -> Evidence:
    """The values of pairs of layers.

    Args:
        pairs: at least one, with finite features.
        units: (Q,) the unit of each query.
        memory: as for `compare_layers`.
    """
    layers = [(split, pair[side]) for side, split in enumerate(splits) for pair in pairs]
    first_values, second_values = np.split(np.array(metric_values_of(layers, metric)), 2)
    query_differences = first_values - second_values
    shared = np.where(np.isnan(query_differences), np.nan, [first_values, second_values])
    means = [unit_sums(values, units).means for values in shared]
    left_out = None
    if kind.estimand == "redraw":
        from layerprobe.workflow.compare.redraw import left_out_differences  # it imports torch

        left_out = left_out_differences(*splits, pairs, metric, kind.cluster, memory=memory)
    return Evidence(np.stack(means, axis=1), unit_sums(query_differences, units), left_out)


def differences_of(evidence: Sequence[Evidence]) -> list[tuple[Difference, OverSeeds | None]]:
    """The difference of each pair; over several trainings, on the same queries, their mean and all that they say.

    Args:
        evidence: of each training; at least one.
    """
    first = evidence[0]
    tables = [training.left_out for training in evidence if training.left_out is not None]
    if len(evidence) == 1:
        of_pairs = jackknife(first.gained, tables[0], first.queries) if tables else differences(first.sums)
        return [(difference, None) for difference in of_pairs]
    if tables:
        gained = np.stack([training.gained for training in evidence], axis=1)  # (C, S)
        left_out = np.stack(tables, axis=1)  # (C, S, U, U)
        of_seeds = [jackknife_over_seeds(*cell) for cell in zip(gained, left_out, first.queries, strict=True)]
    else:
        sums = np.stack([training.sums.sums for training in evidence], axis=1)  # (C, S, U)
        counts = np.stack([training.sums.counts for training in evidence], axis=1)
        of_seeds = [over_seeds(UnitSums(*cell)) for cell in zip(sums, counts, strict=True)]
    return [(over.trainings, over) for over in of_seeds]
