"""Groups of runs -> the candidates among them: their costs, their hits by class, and their names."""

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
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer, members_of
from layerprobe.values.scores import SPLITS, Score, Subject, shared_notes
from layerprobe.workflow.choose.candidate_set import Baseline, CandidateSet
from layerprobe.workflow.choose.candidates import CandidateKey, Group, Part
from layerprobe.workflow.choose.cut import cut_after
from layerprobe.workflow.run.runs import Run


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
    first = groups[0].runs[0]
    crossed, several = first.split == "test", len(groups) > 1

    def subject_of(candidate: Candidate, split: str) -> Subject:
        part: Part = "choosing" if split == first.split else "test"
        return _subject(group_of(groups, candidate.run), candidate, split, part)

    names = [group.name if several else "" for group in groups]
    pairs = list(zip(groups, names, strict=True))
    candidates = [one for group, name in pairs for one in _candidates(group, name, group.keys)]
    only_compared = [one for group, name in pairs for one in _candidates(group, name, group.embeddings)]

    def rows(sums_of: Callable[[Group, Sequence[CandidateKey]], UnitSums]) -> UnitSums:
        return stack_means(
            [
                *(sums_of(group, group.keys) for group in groups),
                *(sums_of(group, group.embeddings) for group in groups if group.embeddings),
            ]
        )

    choosing = rows(lambda group, keys: group.sums(keys, "choosing"))
    return CandidateSet(
        [*candidates, *only_compared],
        first.split,
        subject_of,
        choosing,
        rows(lambda group, keys: group.above_chance(keys)),
        [_identities(group, key) for group in groups for key in group.keys]
        + [_identities(group, key) for group in groups for key in group.embeddings],
        np.array([group.among_half(key) for group, key in [*keys_of(groups), *embeddings_of(groups)]]),
        count_classes(first.choosing.labels) // (FOLDS if folded else 1),
        count_classes((first.choosing if first.test is None else first.test).labels),
        None if crossed or first.test is None else rows(lambda group, keys: group.sums(keys, "test")),
        folds_of(range(choosing.sums.shape[1]), seed=seed) if crossed else None,
        {name: baseline for group, name in pairs if (baseline := _baseline(group, name))},
        frozenset(range(len(candidates), len(candidates) + len(only_compared))),
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


def of_groups(choice: Choice, groups: Sequence[Group]) -> Choice:
    """The choice with the number of trainings as the n of its scores, as in every mean over seeds, and with `cut`."""

    def counted(score: Score) -> Score:
        trainings = len(group_of(groups, score.run).runs)
        return score if trainings == 1 else replace(score, n=trainings)

    embedding = choice.embedding
    record = group_of(groups, choice.run).runs[0].record
    cut, price = cut_after(record, choice.ship.ranked.layer), None
    if embedding is not None:
        of_embedding = cut_after(record, embedding.layer.ranked.layer)
        price = Price(embedding.layer.bytes_per_image, _used(of_embedding))
    return replace(
        choice,
        chosen=counted(choice.chosen),
        test=choice.test and counted(choice.test),
        preferred_test=choice.preferred_test and counted(choice.preferred_test),
        best_on_test=choice.best_on_test and counted(choice.best_on_test),
        embedding=embedding
        and replace(
            embedding,
            test=counted(embedding.test),
            alike=embedding.alike and counted(embedding.alike),
            whole_gallery=embedding.whole_gallery and counted(embedding.whole_gallery),
            price=price,
        ),
        price=Price(choice.price.bytes, _used(cut)),
        preferred_price=Price(choice.preferred_price.bytes, _used(cut_after(record, choice.preferred.ranked.layer))),
        cut=cut,
    )


def _used(cut: TruncationSavings | None) -> float | None:
    """The share of the multiply-adds up to a layer."""
    return None if cut is None or cut.operations is None else 1 - cut.operations


def _identities(group: Group, key: CandidateKey) -> tuple[Hashable, ...]:
    """Equal for candidates that rank every query alike: those of their ranks, or of the layer before a new fit."""
    epoch, ranked = key
    found: list[Hashable] = []
    for candidate_run in group.runs:
        known = candidate_run.choosing.identities
        raw = known.get((epoch, RankedLayer(ranked.layer, NO_REDUCTION, ranked.similarity)))
        found.append(known.get(key) or (raw or key, ranked.reduction))
    return tuple(found)


def _baseline(group: Group, name: str) -> Baseline | None:
    """The embedding of a group; None unless all its runs have it at one epoch."""
    keys = {candidate_run.baseline for candidate_run in group.runs}
    key = keys.pop() if len(keys) == 1 else None
    if key is None or group.runs[0].test is None:
        return None
    run, order = group.runs[0].run, group.runs[0].record.layer_order
    candidate = Candidate(key[0], key[1], _Dims(run).of(key[1]), _position(key[1].layer, order), name)
    wholes = [each.whole_gallery.sums([key]) for each in group.runs if each.whole_gallery is not None]
    return Baseline(candidate, group.sums([key], "test"), mean_of(wholes) if wholes else None)


def _candidates(group: Group, name: str, keys: Sequence[CandidateKey]) -> list[Candidate]:
    run, order = group.runs[0].run, group.runs[0].record.layer_order
    dims = _Dims(run)
    return [Candidate(epoch, ranked, dims.of(ranked), _position(ranked.layer, order), name) for epoch, ranked in keys]


def _subject(group: Group, candidate: Candidate, split: str, part: Part) -> Subject:
    """What is scored of a candidate; without a seed if the group has several trainings."""
    first, key = group.runs[0], (candidate.epoch or 0, candidate.ranked)
    seed = first.record.seed if len(group.runs) == 1 else None
    said = [candidate_run.stored(part).score_notes for candidate_run in group.runs]
    notes = shared_notes([own.get(key) or shared_notes(own.values() or [()]) for own in said])
    return Subject(group.name, str(first.record.experiment), seed, key[0], split, candidate.ranked, notes)


def _position(layer: LayerKey, order: Sequence[str]) -> int:
    """The position of a layer in the network; of `A+B` that of the last of them."""
    names = [layer.layer] if layer.layer in order else layer.layer.split("+")
    return max((order.index(name) for name in names if name in order), default=len(order))


class _Dims:
    """The dimensions of a run's layers, from all its feature files."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.known: dict[LayerKey, int] = {}
        for epoch in run.read().epochs:
            for split in SPLITS:
                if run.has_features(epoch, split):
                    with contextlib.suppress(DataError, BusyError):
                        columns = run.feature_head(epoch, split).columns
                        self.known |= {layer: size for layer, (size, _) in columns.items()}

    def of(self, ranked: RankedLayer) -> int:
        members = members_of(ranked.layer, self.known)
        if not members:
            fix = f"Run {self.run.command('probe', '--layers', str(ranked.layer))}"
            raise DataError(f"the features of {ranked.layer} are gone", file=self.run.folder, fix=fix)
        return parse_chain(ranked.reduction).dim(sum(self.known[member] for member in members))
