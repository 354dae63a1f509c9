"""Stored ranks of runs -> the values of each candidate, on the classes to choose on and on test.

candidate_runs = [open_candidates(run, request) for run in runs]
candidate_runs[0].selection.sums(candidate_runs[0].keys)      # (C, U) values of each candidate by class
group_by_experiment(candidate_runs)                          # trainings of one experiment, chosen among as one
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.selection_folds import QueryValues
from layerprobe.metrics.recall import chance_recall
from layerprobe.statistics.units import UnitSums, mean_of, side_by_side, unit_sums
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.layers import RankedLayer, matching_layers, network_order
from layerprobe.values.records import RunRecord
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import is_recall, recall_of, shared_notes
from layerprobe.workflow.choose.choose_among import list_names
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.metric_values import metric_flags, metric_values
from layerprobe.workflow.run.references import (
    RankedSplit,
    embedding_among,
    layer_flags,
    open_ranked_split,
    probe_fix,
    require_any_right_item,
    require_same_queries,
)
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import epochs_to_choose_among, split_to_choose_on
from layerprobe.workflow.run.units import require_whole_classes, units_of_run

CandidateKey = tuple[int, RankedLayer]  # epoch and layer


@dataclass(frozen=True, eq=False)
class StoredValues:
    """The values stored of a run's split.

    Args:
        last_split: the split at the last epoch; all epochs have its queries.
        units: (Q,) the class of each query, or its cluster of classes.
        query_values: candidate -> its values.
        identities: candidate -> hash of its ranks.
        score_notes: candidate -> the notes of its stored score.
        identical: gives (Q,) whether each query has an identical item in what it searches; None where unknown.
        item: what a query is called.
    """

    last_split: RankedSplit
    units: NDArray[np.int64]
    query_values: Mapping[CandidateKey, QueryValues]
    identities: Mapping[CandidateKey, bytes]
    score_notes: Mapping[CandidateKey, tuple[str, ...]]
    identical: Callable[[], NDArray[np.bool_] | None]
    notes: tuple[str, ...] = ()
    item: str = "image"

    @property
    def classes(self) -> int:
        """The number of classes of its queries."""
        return len(np.unique(self.last_split.stored.labels))

    @cached_property
    def shared_notes(self) -> tuple[str, ...]:
        """The notes that all its scores share."""
        return shared_notes(self.score_notes.values() or [()])

    def sums(self, keys: Sequence[CandidateKey]) -> UnitSums:
        """(C, U) values of candidates by class."""
        return unit_sums(np.stack([self.query_values[key].values for key in keys]), self.units)

    def above_chance(self, keys: Sequence[CandidateKey]) -> UnitSums:
        """(C, U) Recall@1 of candidates over that of a random ranking, by class."""
        return unit_sums(np.stack([self.query_values[key].above_chance for key in keys]), self.units)


@dataclass(frozen=True, eq=False)
class CandidateRun:
    """A run whose layers are candidates.

    Args:
        test: None without test classes; `selection` if that is of test.
        candidates: what the request names, of what is stored of both parts.
        baseline: the embedding without post-processing at the last measured epoch; None if it is not measured on test.
        whole_gallery: the values of test in the whole gallery, where `test` is searched within folds; else None.
    """

    run: Run
    record: RunRecord
    split: str
    selection: StoredValues
    test: StoredValues | None
    candidates: frozenset[CandidateKey]
    baseline: CandidateKey | None = None
    whole_gallery: StoredValues | None = None

    @property
    def is_fitted_on(self) -> bool:
        """Whether post-processing is fitted on the classes that are chosen on."""
        return self.split == FITTED_ON or (self.split == "test" and FITTED_ON not in self.record.manifests)

    @property
    def chooses_on_test_as_seen(self) -> bool:
        """Whether test classes are chosen on because the network has, or may have, seen the training classes."""
        return self.split == "test" and not self.is_fitted_on

    @property
    def fold(self) -> int | None:
        """The fold of the training classes that it held out; None without folds."""
        data = self.record.data
        return int(data["validation_fold"]) if data.get("validation_folds") and self.split == "validation" else None

    @cached_property
    def stored_keys(self) -> list[CandidateKey]:
        """What is stored of both parts, candidates or not."""
        keys = self.selection.query_values
        return [key for key in keys if self.test is None or key in self.test.query_values]

    @cached_property
    def keys(self) -> list[CandidateKey]:
        """The candidates stored of both parts, by epoch and in network order."""
        both = [key for key in self.stored_keys if key in self.candidates]
        order = network_order((ranked for _, ranked in both), self.record.layer_order)
        positions = {ranked: position for position, ranked in enumerate(order)}
        return sorted(both, key=lambda key: (key[0], positions[key[1]]))

    @cached_property
    def embeddings(self) -> list[CandidateKey]:
        """The embedding, stored of both parts at the candidates' epochs, where it is no candidate."""
        if self.baseline is None:
            return []
        layer, epochs = self.baseline[1].layer, {epoch for epoch, _ in self.candidates}
        others = [key for key in self.stored_keys if key not in self.candidates]
        return [key for key in others if key[1].layer == layer and key[0] in epochs]


def shared_keys(trainings: Sequence[CandidateRun]) -> list[CandidateKey]:
    """The candidates of all trainings of an experiment, in the first one's order."""
    shared = set.intersection(*(set(candidate_run.keys) for candidate_run in trainings))
    return [key for key in trainings[0].keys if key in shared]


def runs_by_fold(trainings: Sequence[CandidateRun]) -> dict[int | None, list[CandidateRun]]:
    """Fold -> the trainings that held it out, ascending; one entry without folds."""
    by_fold: dict[int | None, list[CandidateRun]] = defaultdict(list)
    for candidate_run in trainings:
        by_fold[candidate_run.fold].append(candidate_run)
    return dict(sorted(by_fold.items(), key=lambda item: item[0] or 0))


def mean_over_trainings(trainings: Sequence[CandidateRun], sums_of: Callable[[CandidateRun], UnitSums]) -> UnitSums:
    """(C, U) means over seeds on the classes that are chosen on, each class from the runs that held it out."""
    folds = runs_by_fold(trainings).values()
    return side_by_side([mean_of([sums_of(candidate_run) for candidate_run in fold]) for fold in folds])


def open_candidates(run: Run, request: ChooseRequest) -> CandidateRun:
    """Read the stored values of a run."""
    record, epochs = run.read(), request.epochs
    requested = epochs_to_choose_among(run, record, epochs)
    split = split_to_choose_on(run, record, requested)
    if split == "test" and "test" not in record.manifests:
        raise DataError(f"{run.name} has no classes to choose a layer on", file=run.folder, fix="Give a split test")
    splits = list(dict.fromkeys([split, *(["test"] if "test" in record.manifests else [])]))
    ranked = _list_ranked_epochs(run, record, splits) if "all" in epochs else requested
    # The embedding of the last epoch is what is in use, though other epochs may be chosen among.
    last_epoch = max(run.ranked_epochs("test"), default=ranked[-1])
    test_epochs = ranked if last_epoch in ranked else [*ranked, last_epoch]
    stored = {name: _read_values(run, name, test_epochs if name == "test" else ranked, request, chosen_on=name == split)
              for name in splits}  # fmt: skip
    selection, test, baseline = stored[split], stored.get("test"), None
    if test is not None:
        measured = [layer for epoch, layer in test.query_values if epoch == last_epoch]
        embedding = embedding_among(record, measured)
        baseline = None if embedding is None else (last_epoch, embedding)
    candidates = _match_candidates([key for key in selection.query_values if key[0] in ranked], request.layers, run)
    candidate_run = CandidateRun(run, record, split, selection, test, candidates, baseline)
    if selection.notes and not selection.query_values:
        message = f"no layer can be chosen: {'; '.join(selection.notes)}"
        raise DataError(message, file=run.folder, fix="Probe other layers or epochs")
    if not candidate_run.keys:
        fix = probe_fix(run, record, ranked[-1], ",".join(splits))
        raise DataError(f"no layer is ranked on {' and '.join(splits)}", file=run.folder, fix=fix)
    return candidate_run


def _match_candidates(keys: Sequence[CandidateKey], layers: Sequence[str], run: Run) -> frozenset[CandidateKey]:
    """The candidates that some names mean; without names all single layers. Only `A+B` means a concatenation."""
    every = [ranked for _, ranked in keys]
    single = [ranked for ranked in every if "+" not in ranked.layer.layer]
    requested: set[RankedLayer] = set(() if layers else single)
    for text in layers:
        matchable = every if "+" in text.partition("/")[0] else single
        meant = {*matching_layers(text, matchable), *([] if "/" in text else matching_layers(f"{text}/*", matchable))}
        if not meant:
            raise UnknownNameError(f"candidate of {run.name}", text, dict.fromkeys(map(str, matchable)))
        requested |= meant
    return frozenset(key for key in keys if key[1] in requested)


def _list_ranked_epochs(run: Run, record: RunRecord, splits: Sequence[str]) -> list[int]:
    """The epochs that are ranked on all of some splits."""
    epochs_by_split = {split: run.ranked_epochs(split) for split in splits}
    common = sorted(set.intersection(*map(set, epochs_by_split.values())))
    if not common:
        missing = [split for split in splits if not epochs_by_split[split]] or list(splits)
        ranked = [epoch for epochs in epochs_by_split.values() for epoch in epochs]
        fix = probe_fix(run, record, max(ranked, default=record.epochs_done), ",".join(missing))
        raise DataError(f"no epoch is ranked on {' and '.join(splits)}", file=run.folder, fix=fix)
    return common


def skipped_notes(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """A note for each reason, with the candidates that are skipped for it.

    Args:
        skipped: name, reason.
    """
    names_by_reason = defaultdict[str, list[str]](list)
    for name, reason in dict.fromkeys(skipped):
        names_by_reason[reason].append(name)
    return [f"skipped: {list_names(names)}: {reason}" for reason, names in names_by_reason.items()]


def _read_values(
    run: Run, split: str, epochs: Sequence[int], request: ChooseRequest, *, chosen_on: bool
) -> StoredValues:
    """The values of what is scored and ranked: ranks without a score in scores.csv are stale."""
    score_notes = {
        (score.epoch, score.ranked): score.notes
        for score in run.scores()
        if score.split == split and is_recall(score.metric)
    }
    ranked_splits = [require_any_right_item(open_ranked_split(run, epoch, split)) for epoch in epochs]
    last_split, query_values, identities, notes = ranked_splits[-1], {}, {}, []
    lacking: list[CandidateKey] = []
    skipped: list[tuple[str, str]] = []
    for ranked_split in ranked_splits:
        stored, epoch = ranked_split.stored, ranked_split.epoch
        if stored.ids != last_split.stored.ids or not np.array_equal(stored.labels, last_split.stored.labels):
            notes.append(f"skipped: {split} of epoch {epoch} of {run.name}: not the images of epoch {last_split.epoch}")
            continue
        chance = run.ranks(epoch, split).chance
        chance = chance_recall(stored.labels, 1) if chance is None else chance
        scored = {ranked: ranks for ranked, ranks in stored.ranks.items() if (epoch, ranked) in score_notes}
        for ranked, ranks in scored.items():
            key, name = (epoch, ranked), f"{run.name}#{epoch}:{ranked_split.name(ranked)}"
            if ranks.open([1]).any():
                skipped.append((name, "its ranks are not exact for K = 1"))
            elif chosen_on and _has_collapsed(ranks):
                skipped.append((name, "collapsed to one vector"))
            elif (values := _values_of(ranked_split, ranked, request.metric, chance)) is None:
                lacking.append(key)
            else:
                query_values[key], identities[key] = values, _hash_ranks(ranks)
        for ranked, reason in stored.invalid.items():
            if (epoch, ranked) in score_notes:
                skipped.append((f"{run.name}#{epoch}:{ranked_split.name(ranked)}", reason))
    notes += skipped_notes(skipped)
    if lacking:
        fix = _build_probe_fix(ranked_splits[-1], lacking, request.metric)
        if not query_values:
            raise DataError(f"no {request.metric} of each query is stored", file=run.folder, fix=fix)
        lacking_text = f"{len(lacking)} candidates without {request.metric}"
        notes.append(f"skipped on {split}: {lacking_text}; {fix[0].lower()}{fix[1:]}")
    units = whole_units(run, split, last_split.stored.labels, last_split.stored.ids, request.cluster)
    return StoredValues(
        last_split,
        units,
        query_values,
        identities,
        score_notes,
        lambda: run.ranks(last_split.epoch, split).identical,
        tuple(dict.fromkeys(notes)),
    )


def _values_of(ranked_split: RankedSplit, ranked: RankedLayer, metric: str, chance: float) -> QueryValues | None:
    """The values of a layer's queries; None where the metric is not stored."""
    try:
        values = metric_values(ranked_split, ranked, metric)
    except DataError:
        return None
    ranks, recall = ranked_split.stored.ranks[ranked], recall_of(metric)
    among_half = ranks.hits_among_half(recall.k) if recall and is_recall(metric) else None
    return QueryValues(values, ranks.hits(1) - chance, among_half)


def whole_units(
    run: Run, split: str, labels: NDArray[np.integer], ids: Sequence[str], cluster: str | None
) -> NDArray[np.int64]:
    """(Q,) the class of each image, or its cluster, of which a class lies in one only."""
    units = units_of_run(run, {split: (labels, ids)}, cluster)[split]
    require_whole_classes(labels, units, cluster)
    return units


def _build_probe_fix(last_split: RankedSplit, lacking: Sequence[CandidateKey], metric: str) -> str:
    """The command that stores a metric of what lacks it."""
    if last_split.record.from_python:
        return probe_fix(last_split.run, last_split.record, last_split.epoch, last_split.split)
    layers = [ranked for _, ranked in lacking if "+" not in ranked.layer.layer]
    epochs = ",".join(map(str, sorted({epoch for epoch, _ in lacking})))
    words = "--epochs", epochs, *layer_flags(last_split.record, layers), *metric_flags(metric)
    return f"Run {last_split.run.command('probe', *words)}"


def _hash_ranks(ranks: Ranks) -> bytes:
    """Equal for layers that rank every query alike, as far as its nearest positive."""
    counts = (ranks.closer, ranks.tied_negatives, ranks.tied_positives)
    return hashlib.sha256(b"".join(np.ascontiguousarray(count, np.int64).tobytes() for count in counts)).digest()


def _has_collapsed(ranks: Ranks) -> bool:
    """Whether everything is as close to each query as the nearest of its class, as if all features were equal."""
    paired = ranks.tied_positives > 0
    return ranks.tied_share == 1 and not ranks.closer[paired].any()


def group_by_experiment(runs: Sequence[CandidateRun]) -> dict[str, list[CandidateRun]]:
    """The trainings of each experiment, in the order in which they are named.

    Returns:
        The run's name, or the experiment's of several runs -> these, of several seeds or folds.
    """
    experiments = experiments_of(candidate_run.run for candidate_run in runs)
    if experiments.notes:
        raise RecipeError(experiments.notes[0], fix="Choose among runs of one experiment")
    by_experiment: dict[str, list[CandidateRun]] = defaultdict(list)
    for candidate_run in runs:
        by_experiment[experiments.names[candidate_run.run]].append(candidate_run)
    for trainings in by_experiment.values():
        if not shared_keys(trainings):
            message = f"{run_names(trainings)}: no layer is ranked at the same epoch in all of them"
            raise DataError(message, fix="Probe the same layers and epochs of each")
        _require_comparable(next(iter(by_experiment.values())), trainings)
    return {
        trainings[0].run.name if len(trainings) == 1 else str(trainings[0].record.experiment): trainings
        for trainings in by_experiment.values()
    }


def run_names(trainings: Sequence[CandidateRun]) -> str:
    """`netA-s0, netA-s1`."""
    return ", ".join(candidate_run.run.name for candidate_run in trainings)


def _require_comparable(trainings: Sequence[CandidateRun], other_trainings: Sequence[CandidateRun]) -> None:
    first_run, folds = trainings[0], runs_by_fold(trainings)
    fix = "Choose among runs of one data set that hold out the same classes"
    if folds.keys() != runs_by_fold(other_trainings).keys():
        raise RecipeError(
            f"{run_names(trainings)} and {run_names(other_trainings)} hold out different folds of classes", fix=fix
        )
    for candidate_run in other_trainings:
        a, b = first_run.run.name, candidate_run.run.name
        if first_run.split != candidate_run.split:
            message = f"{a} would be chosen on {first_run.split}, {b} on {candidate_run.split}"
            raise RecipeError(message, fix=fix)
        if (first_run.test is None) != (candidate_run.test is None):
            raise RecipeError(f"only one of {a} and {b} has test classes", fix=fix)
        require_same_queries(folds[candidate_run.fold][0].selection.last_split, candidate_run.selection.last_split)
        if first_run.test is not None and candidate_run.test is not None:
            require_same_queries(first_run.test.last_split, candidate_run.test.last_split)
