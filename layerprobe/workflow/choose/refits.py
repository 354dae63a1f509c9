"""Candidates whose reduction was fitted on the classes that are chosen on, ranked again by fits on other classes."""

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
_ByFold = Mapping[int, Hits]  # fold -> (Q,) hits


@dataclass(frozen=True, eq=False)
class Refitted:
    """Groups of runs with the hits of refitted reductions.

    Args:
        by_fold: fold -> the groups with the hits of all queries by the fit without it; empty unless cross-fitted.
    """

    groups: Sequence[Group]
    by_fold: Mapping[int, Sequence[Group]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Refits:
    """Ranks candidates from stored features, with reductions fitted by fold of classes."""

    device: torch.device
    seed: int
    listener: Listener

    def out_of_fold(self, groups: Sequence[Group]) -> Refitted:
        """The hits of each query by a fit on the classes of the other folds."""

        def measured(search: StoredSearch, ranked: RankedLayer) -> _ByFold:
            return {0: search.out_of_fold(ranked, self.seed)}

        found, notes = self._ranked(groups, {}, measured)
        return Refitted([_with_hits(group, own, lambda hits: hits[0]) for group, own in found], notes=notes)

    def cross_fitted(self, groups: Sequence[Group], further: Iterable[RankedLayer]) -> Refitted:
        """The hits of all queries by the fit without each of the folds.

        Args:
            further: fitted candidates that are not stored.
        """
        classes, of_queries = np.unique(groups[0].runs[0].choosing.labels, return_inverse=True)
        folds = folds_of(classes, seed=self.seed)
        names, fold_of_query = np.unique(folds).tolist(), folds[of_queries]

        def measured(search: StoredSearch, ranked: RankedLayer) -> _ByFold:
            return {fold: search.refitted(ranked, fold, self.seed) for fold in names}

        def out_of_fold(hits: _ByFold) -> Hits:
            return np.select([fold_of_query == fold for fold in names], [hits[fold] for fold in names])

        def without(fold: int) -> Callable[[_ByFold], Hits]:
            return lambda hits: hits[fold]

        found, notes = self._ranked(groups, _at_epochs(groups, further), measured)
        if not any(keys for _, of_group in found for keys in of_group):
            return Refitted(groups, notes=notes)
        by_fold = {fold: [_with_hits(group, own, without(fold)) for group, own in found] for fold in names}
        return Refitted([_with_hits(group, own, out_of_fold) for group, own in found], by_fold, notes)

    def _ranked(
        self,
        groups: Sequence[Group],
        further: Mapping[Group, Sequence[CandidateKey]],
        measured: Callable[[StoredSearch, RankedLayer], _ByFold],
    ) -> tuple[list[tuple[Group, list[dict[CandidateKey, _ByFold]]]], tuple[str, ...]]:
        """Each group without what cannot be ranked, the hits of its other fitted candidates in each run; notes."""
        fitted = {group: [*filter(_is_fitted, group.keys), *further.get(group, ())] for group in groups}
        steps = sum(len(fitted[group]) * len(group.runs) for group in groups)
        notes: dict[str, None] = {}
        found = []
        with stoppable() as stop, self.listener.task("refitting reductions by fold", steps, "layers") as task:
            for group in groups:
                of_group: list[dict[CandidateKey, _ByFold]] = [{} for _ in group.runs]
                for key in fitted[group]:
                    for candidate_run, own in zip(group.runs, of_group, strict=True):
                        stop.raise_if_asked(_STOPPED)
                        try:
                            own[key] = measured(self._search(candidate_run, key), key[1])
                        except (DataError, NotApplicableError, NumericError) as error:
                            notes[f"skipped: {candidate_run.run.name}#{key[0]}:{key[1]}: {error.message}"] = None
                        task.advance()
                lost = {key for key in fitted[group] if any(key not in own for own in of_group)}
                kept = Group(tuple(candidate_run.without(lost) for candidate_run in group.runs))
                found.append((kept, [{key: own[key] for key in fitted[group] if key not in lost} for own in of_group]))
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
    return parse_chain(key[1].reduction).fits_on_train


def _at_epochs(groups: Sequence[Group], further: Iterable[RankedLayer]) -> dict[Group, list[CandidateKey]]:
    """Further layers at the epochs of each group at which they are ranked without a reduction."""
    layers = list(further)
    found: dict[Group, list[CandidateKey]] = {}
    for group in groups:
        known = {(epoch, ranked.layer) for epoch, ranked in group.keys}
        epochs = sorted({epoch for epoch, _ in known})
        found[group] = [(epoch, ranked) for epoch in epochs for ranked in layers if (epoch, ranked.layer) in known]
    return found


def _with_hits(group: Group, hits: Sequence[Mapping[CandidateKey, _ByFold]], taken: Callable[[_ByFold], Hits]) -> Group:
    pairs = zip(group.runs, hits, strict=True)
    return Group(
        tuple(
            candidate_run.with_hits("choosing", {key: taken(by_fold) for key, by_fold in own.items()})
            for candidate_run, own in pairs
        )
    )
