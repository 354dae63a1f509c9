"""Groups of runs -> the candidates among them: their costs, their hits by class, their names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.reductions.chain import parse_chain
from layerprobe.statistics.choice import folds_of
from layerprobe.statistics.units import UnitSums, mean_of, stack_means
from layerprobe.system.errors import BusyError, DataError
from layerprobe.values.choice import FOLDS, Candidate, Choice, Price, TruncationSavings
from layerprobe.values.layers import NO_REDUCTION, LayerKey, RankedLayer, members_of
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import SPLITS, Score, Subject, shared_notes
from layerprobe.workflow.choose.candidates import CandidateKey, Group, StoredValues
from layerprobe.workflow.choose.choosing import Baseline, CandidateSet
from layerprobe.workflow.run.runs import Run


def cut_after(record: RunRecord, layer: LayerKey) -> TruncationSavings | None:
    """What comes after a layer; of `A+B` after the last of them.

    Returns:
        None if run.json does not say it: of a run from Python, or of an ensemble.
    """
    cuts = record.network.cuts if record.network else {}
    names = [layer.layer] if layer.layer in cuts else layer.layer.split("+")
    layer_cuts = [cuts[name] for name in names if name in cuts]
    if len(layer_cuts) < len(names):
        return None
    parameters, operations = zip(*layer_cuts, strict=True)
    return TruncationSavings(min(parameters), None if None in operations else min(operations))


def candidate_set_of(
    groups: Sequence[Group],
    seed: int,
    *,
    folded: bool = False,
) -> CandidateSet:
    """The candidates of groups of runs, in the order of `keys_of`; cross-fitted if test classes are chosen on.

    Args:
        folded: whether each fold of classes was searched in itself.
    """
    first_run = groups[0].runs[0]
    crossed, is_several = first_run.split == "test", len(groups) > 1

    def subject_of(candidate: Candidate, split: str) -> Subject:
        group = group_of(groups, candidate.run)
        choosing, test = [run.choosing for run in group.runs], [run.test for run in group.runs if run.test]
        return _build_subject(group, candidate, split, choosing if split == first_run.split else test)

    names = [group.name if is_several else "" for group in groups]
    pairs = list(zip(groups, names, strict=True))
    candidates = [candidate for group, name in pairs for candidate in _list_candidates(group, name, group.keys)]
    only_compared = [
        candidate for group, name in pairs for candidate in _list_candidates(group, name, group.embeddings)
    ]

    def rows(sums_of: Callable[[Group, Sequence[CandidateKey]], UnitSums]) -> UnitSums:
        return stack_means(
            [
                *(sums_of(group, group.keys) for group in groups),
                *(sums_of(group, group.embeddings) for group in groups if group.embeddings),
            ]
        )

    choosing = rows(Group.choosing_sums)
    candidate_keys = [*keys_of(groups), *embeddings_of(groups)]  # in the order of the rows
    return CandidateSet(
        candidates=[*candidates, *only_compared],
        split=first_run.split,
        subject_of=subject_of,
        choosing=choosing,
        above_chance=rows(Group.above_chance),
        identities=[_identify(group, key) for group, key in candidate_keys],
        among_half=np.array([group.among_half(key) for group, key in candidate_keys]),
        classes=count_classes(first_run.choosing.labels) // (FOLDS if folded else 1),
        gallery_classes=count_classes((first_run.choosing if first_run.test is None else first_run.test).labels),
        test=None if crossed or first_run.test is None else rows(Group.test_sums),
        folds=folds_of(range(choosing.sums.shape[1]), seed=seed) if crossed else None,
        baselines={name: baseline for group, name in pairs if (baseline := _find_baseline(group, name))},
        only_compared=frozenset(range(len(candidates), len(candidates) + len(only_compared))),
        within_folds=folded,
    )


def keys_of(groups: Sequence[Group]) -> list[tuple[Group, CandidateKey]]:
    """The group and the key of every candidate."""
    return [(group, key) for group in groups for key in group.keys]


def embeddings_of(groups: Sequence[Group]) -> list[tuple[Group, CandidateKey]]:
    """The group and the key of every embedding that is no candidate."""
    return [(group, key) for group in groups for key in group.embeddings]


def count_classes(labels: NDArray[np.integer]) -> int:
    """The number of classes among some labels."""
    return len(np.unique(labels))


def group_of(groups: Sequence[Group], name: str) -> Group:
    """The group of a name, or the only one."""
    return next((group for group in groups if group.name == name), groups[0])


def complete_choice(choice: Choice, groups: Sequence[Group]) -> Choice:
    """The choice with the number of trainings as the n of its scores, as in every mean over seeds, and with `cut`."""

    def add_trainings(score: Score) -> Score:
        trainings = len(group_of(groups, score.run).runs)
        return score if trainings == 1 else replace(score, n=trainings)

    embedding = choice.embedding
    record = group_of(groups, choice.run).runs[0].record
    cut, price = cut_after(record, choice.ship.ranked.layer), None
    if embedding is not None:
        of_embedding = cut_after(record, embedding.layer.ranked.layer)
        price = Price(embedding.layer.bytes_per_image, _used_share(of_embedding))
    return replace(
        choice,
        chosen=add_trainings(choice.chosen),
        test=choice.test and add_trainings(choice.test),
        preferred_test=choice.preferred_test and add_trainings(choice.preferred_test),
        best_on_test=choice.best_on_test and add_trainings(choice.best_on_test),
        embedding=embedding
        and replace(
            embedding,
            test=add_trainings(embedding.test),
            alike=embedding.alike and add_trainings(embedding.alike),
            whole_gallery=embedding.whole_gallery and add_trainings(embedding.whole_gallery),
            price=price,
        ),
        price=Price(choice.price.bytes, _used_share(cut)),
        preferred_price=Price(
            choice.preferred_price.bytes, _used_share(cut_after(record, choice.preferred.ranked.layer))
        ),
        cut=cut,
    )


def _used_share(cut: TruncationSavings | None) -> float | None:
    """The share of the multiply-adds up to a layer."""
    return None if cut is None or cut.operations is None else 1 - cut.operations


def _identify(group: Group, key: CandidateKey) -> tuple[Hashable, ...]:
    """Equal for candidates that rank every query alike: those of their ranks, or of the layer before a new fit."""
    epoch, ranked = key
    identities: list[Hashable] = []
    for candidate_run in group.runs:
        rank_hashes = candidate_run.choosing.identities
        raw = rank_hashes.get((epoch, RankedLayer(ranked.layer, NO_REDUCTION, ranked.similarity)))
        identities.append(rank_hashes.get(key) or (raw or key, ranked.reduction))
    return tuple(identities)


def _find_baseline(group: Group, name: str) -> Baseline | None:
    """The embedding of a group; None unless all its runs have it at one epoch."""
    keys = {candidate_run.baseline for candidate_run in group.runs}
    key = keys.pop() if len(keys) == 1 else None
    if key is None or group.runs[0].test is None:
        return None
    run, order = group.runs[0].run, group.runs[0].record.layer_order
    candidate = Candidate(key[0], key[1], _Dims(run).dim_of(key[1]), _find_position(key[1].layer, order), name)
    wholes = [
        candidate_run.whole_gallery.sums([key])
        for candidate_run in group.runs
        if candidate_run.whole_gallery is not None
    ]
    return Baseline(candidate, group.test_sums([key]), mean_of(wholes) if wholes else None)


def _list_candidates(group: Group, name: str, keys: Sequence[CandidateKey]) -> list[Candidate]:
    run, order = group.runs[0].run, group.runs[0].record.layer_order
    dims = _Dims(run)
    return [
        Candidate(epoch, ranked, dims.dim_of(ranked), _find_position(ranked.layer, order), name)
        for epoch, ranked in keys
    ]


def _build_subject(group: Group, candidate: Candidate, split: str, stored: Sequence[StoredValues]) -> Subject:
    """What is scored of a candidate; without a seed if the group has several trainings."""
    record, key = group.runs[0].record, (candidate.epoch or 0, candidate.ranked)
    seed = record.seed if len(group.runs) == 1 else None
    notes_by_key = [values.score_notes for values in stored]
    notes = shared_notes([by_key.get(key) or shared_notes(by_key.values() or [()]) for by_key in notes_by_key])
    return Subject(group.name, str(record.experiment), seed, key[0], split, candidate.ranked, notes)


def _find_position(layer: LayerKey, order: Sequence[str]) -> int:
    """The position of a layer in the network; of `A+B` that of the last of them."""
    names = [layer.layer] if layer.layer in order else layer.layer.split("+")
    return max((order.index(name) for name in names if name in order), default=len(order))


class _Dims:
    """The dimensions of a run's layers, from all its feature files."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.by_layer: dict[LayerKey, int] = {}
        for epoch in run.read().epochs:
            for split in SPLITS:
                if run.has_features(epoch, split):
                    with contextlib.suppress(DataError, BusyError):
                        columns = run.feature_head(epoch, split).columns
                        self.by_layer |= {layer: size for layer, (size, _) in columns.items()}

    def dim_of(self, ranked: RankedLayer) -> int:
        members = members_of(ranked.layer, self.by_layer)
        if not members:
            fix = f"Run {self.run.command('probe', '--layers', str(ranked.layer))}"
            raise DataError(f"the features of {ranked.layer} are gone", file=self.run.folder, fix=fix)
        return parse_chain(ranked.reduction).dim(sum(self.by_layer[member] for member in members))
