"""Candidates whose reduction was fitted on the classes that are chosen on, ranked anew by fits on other classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from layerprobe.measure.choosing_folds import FLATTERED
from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.statistics.choice import folds_of
from layerprobe.system.errors import DataError, NumericError
from layerprobe.system.progress import Listener
from layerprobe.system.signals import stoppable
from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.workflow.choose.candidates import CandidateKey, CandidateRun, Group, Hits
from layerprobe.workflow.probe.rerank import StoredSearch

_STOPPED = "ranking stopped; nothing was changed"
_Measured = Callable[[StoredSearch, RankedLayer], Mapping[int, Hits]]  # fold -> (Q,) hits


@dataclass(frozen=True, eq=False)
class Refitted:
    """Groups of runs whose fitted candidates were ranked anew.

    Args:
        by_fold: fold -> the same with all queries by the fit without it; of cross-fitting alone.
    """

    groups: Sequence[Group]
    by_fold: Mapping[int, Sequence[Group]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Refits:
    """Ranks anew from stored features.

    Args:
        device: where layers are ranked.
    """

    device: torch.device
    seed: int
    listener: Listener

    def out_of_fold(self, groups: Sequence[Group]) -> Refitted:
        """The fitted candidates with the hits of each query by a fit on the classes of other folds."""

        def measured(search: StoredSearch, ranked: RankedLayer) -> Mapping[int, Hits]:
            return {0: search.out_of_fold(ranked, self.seed)}

        found, notes = self._ranked(groups, {}, measured)
        return Refitted([_with(group, own, lambda hits, _: hits[0]) for group, own in found], notes=notes)

    def cross_fitted(self, groups: Sequence[Group], further: Iterable[RankedLayer]) -> Refitted:
        """The fitted candidates with the hits of all queries by the fit without each of the folds."""
        labels = groups[0].runs[0].choosing.place.stored.labels
        names, members = np.unique(labels, return_inverse=True)
        folds = folds_of(names, seed=self.seed)
        numbers, of_queries = np.unique(folds).tolist(), folds[members]

        def measured(search: StoredSearch, ranked: RankedLayer) -> Mapping[int, Hits]:
            return {fold: search.refitted(ranked, fold, self.seed) for fold in numbers}

        def own(hits: Mapping[int, Hits], _: int) -> Hits:
            return np.select([of_queries == fold for fold in numbers], [hits[fold] for fold in numbers])

        found, notes = self._ranked(groups, _at_epochs(groups, further), measured)
        if not any(keys for _, of_group in found for keys in of_group):
            return Refitted(groups, notes=notes)
        by_fold = {
            fold: [_with(group, keys, lambda hits, fold: hits[fold], fold) for group, keys in found] for fold in numbers
        }
        return Refitted([_with(group, keys, own) for group, keys in found], by_fold, notes)

    def _ranked(
        self, groups: Sequence[Group], further: Mapping[Group, Sequence[CandidateKey]], measured: _Measured
    ) -> tuple[list[tuple[Group, list[dict[CandidateKey, Mapping[int, Hits]]]]], tuple[str, ...]]:
        """Each group without what cannot be ranked, the hits of its other fitted candidates in each run; notes."""
        wanted = {group: [*filter(_is_fitted, group.keys), *further.get(group, ())] for group in groups}
        steps = sum(len(wanted[group]) * len(group.runs) for group in groups)
        notes: dict[str, None] = {}
        found = []
        with stoppable() as stop, self.listener.task("reductions fitted on other classes", steps, "layers") as task:
            for group in groups:
                of_group: list[dict[CandidateKey, Mapping[int, Hits]]] = [{} for _ in group.runs]
                for key in wanted[group]:
                    for candidate_run, own in zip(group.runs, of_group, strict=True):
                        stop.raise_if_asked(_STOPPED)
                        try:
                            own[key] = measured(self._search(candidate_run, key), key[1])
                        except (DataError, NotApplicableError, NumericError) as error:
                            notes[f"{_name(candidate_run, key)} left out: {error.message}"] = None
                        task.advance()
                lost = {key for key in wanted[group] if any(key not in own for own in of_group)}
                kept = Group(tuple(candidate_run.without(lost) for candidate_run in group.runs))
                found.append((kept, [{key: own[key] for key in wanted[group] if key not in lost} for own in of_group]))
        if any(own for _, of_group in found for own in of_group):
            notes[FLATTERED] = None
        return found, tuple(notes)

    def _search(self, candidate_run: CandidateRun, key: CandidateKey) -> StoredSearch:
        epoch, ranked = key
        search = StoredSearch(candidate_run.run, epoch, candidate_run.split, self.device)
        search.require_plain()
        stored = (
            ranked if key in candidate_run.choosing.hits else RankedLayer(ranked.layer, NO_REDUCTION, ranked.similarity)
        )
        search.require_stored(stored)
        return search


def _is_fitted(key: CandidateKey) -> bool:
    """Whether a candidate's reduction was fitted on the training classes."""
    chain = parse_chain(key[1].reduction)
    return chain.fits_on_train


def _at_epochs(groups: Sequence[Group], further: Iterable[RankedLayer]) -> dict[Group, list[CandidateKey]]:
    """The epochs of each group at which the layers themselves are ranked."""
    asked = list(further)
    found: dict[Group, list[CandidateKey]] = {}
    for group in groups:
        known = {(epoch, ranked.layer) for epoch, ranked in group.keys}
        epochs = sorted({epoch for epoch, _ in known})
        found[group] = [(epoch, ranked) for epoch in epochs for ranked in asked if (epoch, ranked.layer) in known]
    return found


def _with(
    group: Group,
    hits: Sequence[Mapping[CandidateKey, Mapping[int, Hits]]],
    taken: Callable[[Mapping[int, Hits], int], Hits],
    fold: int = 0,
) -> Group:
    pairs = zip(group.runs, hits, strict=True)
    return Group(
        tuple(
            candidate_run.with_hits("choosing", {key: taken(each, fold) for key, each in own.items()})
            for candidate_run, own in pairs
        )
    )


def _name(candidate_run: CandidateRun, key: CandidateKey) -> str:
    epoch, ranked = key
    return f"{candidate_run.run.name}#{epoch}:{ranked}"
