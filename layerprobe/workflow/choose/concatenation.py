"""Concatenated layers as further candidates, if the search for them gains on classes that it has not seen."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.choosing_folds import QueryValues
from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.statistics.choice import folds_of, greedy
from layerprobe.statistics.units import UnitSums
from layerprobe.system.errors import DataError, NumericError
from layerprobe.system.progress import Listener
from layerprobe.system.signals import Stop, stoppable
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer, concatenated_key
from layerprobe.values.retrieval import Ranks
from layerprobe.workflow.choose.candidates import CandidateKey, CandidateRun, Group, Part, chance_of
from layerprobe.workflow.choose.searched_sets import Found, admitted, mean_on, searched
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.references import RankedSplit, open_ranked_split
from layerprobe.workflow.run.runs import locked

_AGAIN = 200  # draws of classes by which the admission of sets is repeated on a resample
_PERFECT = 1 - 1e-9  # a recall that no further layer can raise
_STOPPED = "ranking stopped; stored results are complete, the same command resumes"


@dataclass(frozen=True, eq=False)
class Concatenated:
    """A group with its concatenated candidates.

    Args:
        found: concatenated candidate -> the folds without which the search finds it, None for all classes.
        tried: every concatenation that was ranked, found or not.
        cells: (1, U) the values of each.
        search: (U,) how often each class is drawn -> what is found and admitted there, of those in `cells`.
    """

    group: Group
    found: Mapping[CandidateKey, frozenset[int | None]] = field(default_factory=dict)
    tried: frozenset[CandidateKey] = frozenset()
    notes: tuple[str, ...] = ()
    cells: Mapping[CandidateKey, UnitSums] = field(default_factory=dict)
    search: Callable[[NDArray[np.float64]], Sequence[CandidateKey]] | None = None


@dataclass(frozen=True)
class SetSearch:
    """How concatenated layers are searched for.

    Args:
        metric: that decides.
        folded: whether queries are searched within folds of classes.
    """

    metric: str
    folded: bool
    device: torch.device
    seed: int


def with_concatenations(group: Group, how: SetSearch, listener: Listener) -> Concatenated:
    """Add the concatenated layers of a greedy search, if they gain over the best single layer.

    To the best single candidate is added, at its epoch, the other layer that raises its mean most, and to these two a
    third: of raw features, and with the reduction of the best candidate if it has one. The search is repeated without
    each of 5 folds of the classes that are chosen on; see `searched_sets.admitted`. All ranks are stored, so that they
    are computed once.
    """
    singles = group.keys
    cells = group.sums(singles, "choosing")
    folds = folds_of(range(cells.sums.shape[1]), seed=how.seed)
    with _ranking(how, listener) as ranking:
        try:
            for candidate_run in group.runs:
                ranking.require(candidate_run, singles[int(cells.means.argmax())])
        except DataError as error:
            return Concatenated(group, notes=(f"no concatenated layers are tried: {error.message}",))
        search = _Search(group, singles, cells, ranking)
        by_fold = searched(search.on, folds)
        decided = admitted(by_fold, search.cells_of, folds, seed=how.seed)
        tried = frozenset(search.values)
        if not decided.admitted:
            return Concatenated(group, tried=tried, notes=decided.notes)
        found = {key: frozenset(fold for fold in by_fold if key in by_fold[fold].sets) for key in search.values}
        found = {key: of_folds for key, of_folds in found.items() if of_folds}
        grown = search.grown(list(found))
    search.ranking = None  # resamples are of what is ranked

    def again(weights: NDArray[np.float64]) -> Sequence[CandidateKey]:
        on_weights = searched(search.on, folds, weights)
        decided = admitted(on_weights, search.cells_of, folds, seed=how.seed, weights=weights, resamples=_AGAIN)
        return on_weights[None].sets if decided.admitted else ()

    return Concatenated(grown, found, tried, decided.notes, {key: search.cells_of(key) for key in search.values}, again)


def is_single(ranked: RankedLayer) -> bool:
    """Whether a layer is not a concatenation."""
    return "+" not in ranked.layer.layer


@dataclass(eq=False)
class _Search:
    """The greedy search in a group, whose concatenations are ranked once each."""

    group: Group
    singles: Sequence[CandidateKey]
    cells: UnitSums
    ranking: _Ranking | None
    values: dict[CandidateKey, list[QueryValues]] = field(default_factory=dict)
    _starts: dict[CandidateKey, CandidateKey] = field(default_factory=dict)
    _cells: dict[CandidateKey, UnitSums] = field(default_factory=dict)

    def on(self, weights: NDArray[np.float64]) -> Found[CandidateKey]:
        """What the search finds where classes count by weights (U,)."""
        means = (self.cells.sums @ weights) / (self.cells.counts @ weights)
        best = self.singles[int(np.nan_to_num(means, nan=-1.0).argmax())]
        epoch, ranked = best
        layers = list(dict.fromkeys(one.layer for number, one in self.singles if number == epoch))
        raw = RankedLayer(ranked.layer, NO_REDUCTION, self.group.runs[0].choosing.last.similarity)
        sets: list[CandidateKey] = []
        for start in dict.fromkeys([raw, ranked]):
            if (epoch, start) in self.singles and not parse_chain(start.reduction).needs_classifier:
                sets += self._from((epoch, start), layers, weights)
        return Found(best, tuple(sets))

    def cells_of(self, key: CandidateKey) -> UnitSums:
        """(1, U) the values of a candidate."""
        if key not in self._cells:
            self._cells[key] = self._with(key, "choosing").sums([key], "choosing")
        return self._cells[key]

    def grown(self, keys: Sequence[CandidateKey]) -> Group:
        """The group with some of the concatenations."""
        grown = self.group
        for key in keys:
            grown = _with_values(grown, "choosing", key, self.values[key])
            if self.ranking is not None and grown.runs[0].test is not None and grown.runs[0].split != "test":
                start = self._starts[key]
                in_runs = [self.ranking.values(each, "test", key, start) for each in self.group.runs]
                grown = _with_values(grown, "test", key, [own for own in in_runs if own is not None])
        return grown

    def _from(
        self, start: CandidateKey, layers: Sequence[LayerKey], weights: NDArray[np.float64]
    ) -> list[CandidateKey]:
        epoch, first = start

        def key_of(members: tuple[int, ...]) -> CandidateKey | None:
            key = concatenated_key([layers[member] for member in sorted(members)])
            return None if key is None else (epoch, RankedLayer(key, first.reduction, first.similarity))

        def mean_of(members: tuple[int, ...]) -> float:
            key = key_of(members)
            if key is None or not (key == start or self._ranked(key, start)):
                return math.nan
            return mean_on(self.cells_of(key), weights)

        alone = (layers.index(first.layer),)
        path = [] if mean_of(alone) >= _PERFECT else greedy(alone, range(len(layers)), mean_of)
        return [key for key in map(key_of, path) if key is not None]

    def _ranked(self, key: CandidateKey, start: CandidateKey) -> bool:
        """Whether a concatenation has valid values, which are kept."""
        if key not in self._starts and self.ranking is not None:
            self._starts[key] = start
            in_runs = [self.ranking.values(each, "choosing", key, start) for each in self.group.runs]
            own = [values for values in in_runs if values is not None]
            if len(own) == len(in_runs):
                self.values[key] = own
        return key in self.values

    def _with(self, key: CandidateKey, part: Part) -> Group:
        return _with_values(self.group, part, key, self.values[key]) if key in self.values else self.group


def _with_values(group: Group, part: Part, key: CandidateKey, values: Sequence[QueryValues]) -> Group:
    pairs = zip(group.runs, values, strict=True)
    return Group(tuple(candidate_run.with_values(part, {key: own}) for candidate_run, own in pairs))


@dataclass(eq=False)
class _Ranking:
    """Ranks layers of runs from stored features unless their ranks are stored, and stores them at the end.

    A run is locked when the first of its layers is ranked.
    """

    how: SetSearch
    stop: Stop
    advance: Callable[[], None]
    locks: ExitStack
    _locked: set[str] = field(default_factory=set)
    _new: dict[tuple[StoredSearch, RankedLayer], dict[RankedLayer, Ranks | str]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _searches: dict[tuple[str, int, str], tuple[StoredSearch, RankedSplit]] = field(default_factory=dict)

    def require(self, candidate_run: CandidateRun, key: CandidateKey) -> None:
        """Check that a layer's features are stored as they were ranked, and that nothing else decides its ranks."""
        for split in dict.fromkeys([candidate_run.split, *(["test"] if candidate_run.test else [])]):
            search, _ = self._search(candidate_run, key[0], split)
            search.require_plain()
            search.require_stored(key[1])

    def values(
        self, candidate_run: CandidateRun, part: Part, key: CandidateKey, like: CandidateKey
    ) -> QueryValues | None:
        """The values of a layer's queries; None if it has no valid number."""
        self.stop.raise_if_asked(_STOPPED)
        split, ranked = candidate_run.split if part == "choosing" else "test", key[1]
        search, ranked_split = self._search(candidate_run, key[0], split)
        self.advance()
        try:
            if part == "choosing" and self.how.folded:
                return search.within_folds(ranked, self.how.seed, self.how.metric)
            if self.how.metric != "R@1":
                return search.values(ranked, self.how.metric)
            if store.ranked_alike(search.rank_file, [ranked, like[1]]):
                ranks: Ranks | str | None = ranked_split.stored.ranks.get(ranked)
            else:
                self._lock(candidate_run)
                ranks = self._new[search, like[1]][ranked] = search.ranks(ranked)
        except (NotApplicableError, NumericError):
            return None
        if not isinstance(ranks, Ranks):
            return None
        hits = ranks.hits(1)
        return QueryValues(hits, hits - chance_of(ranked_split), ranks.hits_among_half(1))

    def write(self) -> None:
        """Store the new ranks."""
        for (search, like), ranks in self._new.items():
            store.add_ranks(search.rank_file, ranks, dict.fromkeys(ranks, like))

    def _search(self, candidate_run: CandidateRun, epoch: int, split: str) -> tuple[StoredSearch, RankedSplit]:
        key = (candidate_run.run.name, epoch, split)
        if key not in self._searches:
            ranked_split = open_ranked_split(candidate_run.run, epoch, split)
            self._searches[key] = StoredSearch(candidate_run.run, epoch, split, self.how.device), ranked_split
        return self._searches[key]

    def _lock(self, candidate_run: CandidateRun) -> None:
        if candidate_run.run.name not in self._locked:
            self.locks.enter_context(locked(candidate_run.run))
            self._locked.add(candidate_run.run.name)


@contextmanager
def _ranking(how: SetSearch, listener: Listener) -> Iterator[_Ranking]:
    with stoppable() as stop, ExitStack() as locks, listener.task("concatenated layers", 0, "sets") as task:
        ranking = _Ranking(how, stop, task.advance, locks)
        try:
            yield ranking
        finally:
            ranking.write()
