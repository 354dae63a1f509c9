"""Candidates that no probe has ranked: half-whitened layers, and reductions refitted within folds."""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from layerprobe.measure.choosing_folds import QueryValues
from layerprobe.reductions.applying import Blocks
from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.pca import half_whitened, half_whitening
from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.statistics.choice import Finer, folds_of
from layerprobe.statistics.units import UnitSums, stack_means, unit_sums
from layerprobe.system.computing import OfEach, in_threads
from layerprobe.system.errors import DataError, NumericError
from layerprobe.system.progress import Listener, stoppable
from layerprobe.values.layers import NO_REDUCTION, RankedLayer
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.choose.candidates import CandidateKey, CandidateRun, Group, whole_units
from layerprobe.workflow.choose.request import NEAR_METRIC
from layerprobe.workflow.choose.run_candidates import embeddings_of, keys_of
from layerprobe.workflow.probe.rerank import StoredSearch, fold_half_whitening
from layerprobe.workflow.run.memory_run import MemoryRun
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import split_to_choose_on

_STOPPED = "ranking stopped; nothing was changed"


def half_whitened_layers(
    run: Run, split: str, layers: Sequence[RankedLayer], epoch: int, *, cluster: str | None = None
) -> list[RankedLayer]:
    """Layers half-whitened to the dimensions that this leaves, without those that it does not suit.

    In all folds where the split is chosen on, too; else in one fit on all classes.

    Args:
        split: whose stored features are fitted on.
        layers: without a reduction.
        cluster: whose values the folds divide; None for the classes.
    """
    record = run.read()
    units = whole_units(run, split, *run.feature_head(epoch, split).rows, cluster)
    folds = folds_of(units, seed=int(record.seed))[np.unique(units, return_inverse=True)[1]]
    is_chosen_on = split_to_choose_on(run, record, record.epochs) == split
    cpu, suited = torch.device("cpu"), []
    for ranked in layers:
        if is_chosen_on:
            fitted = fold_half_whitening(run, epoch, split, ranked.layer, folds, cpu)
        else:
            fitted = half_whitening(Blocks(read_layer(run, epoch, split, ranked.layer), cpu), folds, [None])
        if fitted is not None:
            suited.append(replace(ranked, reduction=half_whitened(fitted.dim)))
    return suited


def ranked_unreduced(run: Run, split: str) -> list[RankedLayer]:
    """The single layers that a split has scores of without a reduction, in network order."""
    scores = [score for score in run.scores() if score.split == split and score.value is not None]
    every = dict.fromkeys(score.ranked for score in scores)
    return [x for x in every if x.reduction == NO_REDUCTION and "+" not in x.layer.layer]


@dataclass(frozen=True, eq=False)
class Refitted:
    """Groups of runs whose candidates are searched within folds, where one of them is fitted.

    Args:
        folded: whether they are.
    """

    groups: Sequence[Group]
    folded: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Refits:
    """Ranks candidates from stored features, with reductions fitted by fold of classes."""

    device: torch.device
    seed: int
    metric: str
    listener: Listener

    def search_within_folds(self, groups: Sequence[Group], further: Iterable[RankedLayer] = ()) -> Refitted:
        """The values of each query among the classes of its fold; the groups as they are if no candidate is fitted.

        Args:
            further: fitted candidates that are not stored.
        """
        added = _list_at_epochs(groups, further)
        if not any(_is_fitted(key) for group in groups for key in [*group.keys, *added[group]]):
            return Refitted(groups)
        steps = sum((len(group.keys) + len(added[group])) * len(group.runs) for group in groups)
        notes = dict[str, None]()
        refitted, rules = [], dict[str, SearchRules | None]()
        with stoppable() as stop, self.listener.task("searching within folds", steps, "layers") as task:

            def search(candidate_run: CandidateRun, key: CandidateKey) -> QueryValues | None:
                stop.raise_if_asked(_STOPPED)
                try:
                    return self._search_folds(self._open_search(candidate_run, key), candidate_run, key[1], rules)
                except (DataError, NotApplicableError, NumericError) as error:
                    notes[f"skipped: {candidate_run.run.name}#{key[0]}:{key[1]}: {error.message}"] = None
                    return None
                finally:
                    task.advance()

            for group in groups:
                values: list[dict[CandidateKey, QueryValues]] = []
                for candidate_run in group.runs:
                    # The embedding, with which the choice is compared, is searched alike.
                    keys = list(dict.fromkeys([*group.keys, *added[group], *_list_embeddings(candidate_run)]))
                    with _map_candidates(candidate_run.run) as of_each:
                        searched = zip(keys, of_each(partial(search, candidate_run), keys), strict=True)
                    values.append({key: key_values for key, key_values in searched if key_values is not None})
                lost = {
                    key for key in [*group.keys, *added[group]] if any(key not in run_values for run_values in values)
                }
                if not all(map(_is_fitted, lost)):
                    # Others than fitted ones cannot be searched within folds: all keep their stored values.
                    return Refitted([_drop_fitted(stored) for stored in groups], notes=tuple(notes))
                pairs = zip(group.runs, values, strict=True)
                runs = [
                    self._add_test_values(_replace_values(run, run_values, lost), added[group])
                    for run, run_values in pairs
                ]
                refitted.append(Group(tuple(runs)))
        return Refitted(refitted, folded=True, notes=tuple(notes))

    def _add_test_values(self, candidate_run: CandidateRun, added: Sequence[CandidateKey]) -> CandidateRun:
        """The run with the values on test of added candidates, by the map that is fitted on all that are chosen on."""
        test = candidate_run.test
        if test is None or test is candidate_run.choosing:
            return candidate_run
        missing = [key for key in added if key in candidate_run.choosing.query_values and key not in test.query_values]
        values = {}
        for key in missing:
            epoch, ranked = key
            search = StoredSearch(candidate_run.run, epoch, "test", self.device, candidate_run.split)
            values[key] = search.values(ranked, self.metric)
        both = ChainMap(values, test.query_values)  # type: ignore[arg-type] # never written
        return replace(candidate_run, test=replace(test, query_values=both)) if values else candidate_run

    def measure_average_precisions(self, groups: Sequence[Group], folded: bool, notes: list[str]) -> Finer:
        """MAP@R of candidates by unit, from stored features; of each that is asked for, once.

        Args:
            groups: whose candidates are in the order of `keys_of` and `embeddings_of`.
            folded: whether each fold of units is searched in itself.
            notes: to which is added why there is none.
        """
        keys, measured = [*keys_of(groups), *embeddings_of(groups)], dict[int, UnitSums]()
        searches: dict[tuple[Run, int], StoredSearch] = {}

        def sums_of(candidate_run: CandidateRun, key: CandidateKey) -> UnitSums:
            epoch, ranked = key
            units = candidate_run.choosing.units
            search = searches.setdefault(
                (candidate_run.run, epoch), StoredSearch(candidate_run.run, epoch, candidate_run.split, self.device)
            )
            if folded:
                return unit_sums(search.within_folds(ranked, self.seed, NEAR_METRIC, units=units).values, units)
            search.require_stored(ranked)
            return unit_sums(search.values(ranked, NEAR_METRIC).values, units)

        def finer(positions: Sequence[int]) -> UnitSums | None:
            for position in positions:
                group, key = keys[position]
                if position not in measured:
                    try:
                        measured[position] = group.by_fold(partial(sums_of, key=key))
                    except (DataError, NotApplicableError, NumericError) as error:
                        notes.append(f"near ties are decided by the mean alone, without {NEAR_METRIC}: {error.message}")
                        return None
            return stack_means([measured[position] for position in positions])

        return finer

    def _search_folds(
        self,
        search: StoredSearch,
        candidate_run: CandidateRun,
        ranked: RankedLayer,
        rules: dict[str, SearchRules | None],
    ) -> QueryValues:
        """The values of a layer's queries; the data set is read once for the rules of searches that are alike."""
        if search.rules_sha256 not in rules:
            rules[search.rules_sha256] = search.rules
        units = candidate_run.choosing.units
        return search.within_folds(ranked, self.seed, self.metric, rules=rules[search.rules_sha256], units=units)

    def _open_search(self, candidate_run: CandidateRun, key: CandidateKey) -> StoredSearch:
        epoch, ranked = key
        chain = parse_chain(ranked.reduction)
        if chain.needs_classifier or chain.on_gallery:
            raise NotApplicableError(f"{chain.text} cannot be fitted on other classes of the same split")
        search = StoredSearch(candidate_run.run, epoch, candidate_run.split, self.device)
        search.require_plain()
        stored = (
            ranked
            if key in candidate_run.choosing.query_values
            else RankedLayer(ranked.layer, NO_REDUCTION, ranked.similarity)
        )
        search.require_stored(stored)
        return search


@contextlib.contextmanager
def _map_candidates(run: Run) -> Iterator[OfEach]:
    """Candidates in threads, where their features lie in memory in any case; else one after the other."""
    if not isinstance(run, MemoryRun):
        yield lambda function, items: list(map(function, items))
        return
    with in_threads() as of_each:
        yield of_each


def _replace_values(
    candidate_run: CandidateRun, values: Mapping[CandidateKey, QueryValues], lost: set[CandidateKey]
) -> CandidateRun:
    gone = set(_list_embeddings(candidate_run)) - values.keys() - candidate_run.candidates
    stored = candidate_run.choosing
    if gone:  # else nothing is read, as it may be computed late
        query_values = {key: stored_values for key, stored_values in stored.query_values.items() if key not in gone}
        stored = replace(stored, query_values=query_values)
    both = candidate_run.test is candidate_run.choosing
    clean = replace(
        candidate_run,
        choosing=stored,
        test=stored if both else candidate_run.test,
        whole_gallery=candidate_run.test if both else None,
    )
    updated = clean.with_values(values).without(lost)
    return updated if updated.baseline in values or updated.split != "test" else replace(updated, baseline=None)


def _list_embeddings(candidate_run: CandidateRun) -> list[CandidateKey]:
    """The baseline and the embeddings that are no candidates, on the classes that are chosen on."""
    baseline = [key for key in [candidate_run.baseline] if key in candidate_run.choosing.query_values]
    return [*filter(None, baseline), *candidate_run.embeddings]


def _drop_fitted(group: Group) -> Group:
    fitted = list(filter(_is_fitted, group.keys))
    return Group(tuple(candidate_run.without(fitted) for candidate_run in group.runs))


def _is_fitted(key: CandidateKey) -> bool:
    return parse_chain(key[1].reduction).fits_on_train


def _list_at_epochs(groups: Sequence[Group], further: Iterable[RankedLayer]) -> dict[Group, list[CandidateKey]]:
    """Further layers at the epochs of each group at which they are ranked without a reduction."""
    layers = list(further)
    keys_by_group: dict[Group, list[CandidateKey]] = {}
    for group in groups:
        raw_layers = {(epoch, ranked.layer) for epoch, ranked in group.keys}
        epochs = sorted({epoch for epoch, _ in raw_layers})
        keys_by_group[group] = [
            (epoch, ranked) for epoch in epochs for ranked in layers if (epoch, ranked.layer) in raw_layers
        ]
    return keys_by_group
