"""Concatenated layers as further candidates: those that a greedy search adds to the best single layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch

from layerprobe import store
from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.statistics.choice import greedy
from layerprobe.system.errors import DataError, NumericError
from layerprobe.system.progress import Listener
from layerprobe.system.signals import Stop, stoppable
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer, concatenated_key
from layerprobe.values.retrieval import Ranks
from layerprobe.workflow.choose.candidates import CandidateKey, CandidateRun, Group, Hits, Part
from layerprobe.workflow.probe.reducing import FITTED_ON
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.references import open_ranked_split
from layerprobe.workflow.run.runs import locked

_PERFECT = 1 - 1e-9  # a recall that no further layer can raise
_STOPPED = "ranking stopped; stored results are complete, the same command resumes"


@dataclass(frozen=True, eq=False)
class Concatenated:
    """A group with its concatenated candidates.

    Args:
        tried: every concatenation that was ranked, better or not.
    """

    group: Group
    tried: frozenset[CandidateKey] = frozenset()
    notes: tuple[str, ...] = ()


def with_concatenations(
    group: Group, best: CandidateKey, device: torch.device, seed: int, listener: Listener
) -> Concatenated:
    """Add the concatenated layers that are better than their parts on the classes that are chosen on.

    To the best single candidate is added, at its epoch, the other layer that raises its recall most, and to these two a
    third: of raw features, and with the reduction of the best candidate if it has one. With L layers at that epoch at
    most 2 (2 L - 3) sets are ranked in each run; only sets that are better than the one before are ranked on test, and
    become candidates. All ranks are stored, so that they are computed once.
    """
    epoch, ranked = best
    layers = list(dict.fromkeys(one.layer for number, one in group.keys if number == epoch and is_single(one)))
    raw = RankedLayer(ranked.layer, NO_REDUCTION, group.runs[0].choosing.last.similarity)
    known = set(group.keys)
    starts = [
        (epoch, start)
        for start in dict.fromkeys([raw, ranked])
        if (epoch, start) in known and not parse_chain(start.reduction).needs_classifier
    ]
    steps = len(starts) * max(0, 2 * len(layers) - 3) * len(group.runs)
    with _ranking(device, seed, listener, steps) as ranking:
        try:
            for candidate_run in group.runs:
                ranking.require(candidate_run, best)
        except DataError as error:
            return Concatenated(group, notes=(f"no concatenated layers are tried: {error.message}",))
        tried: set[CandidateKey] = set()
        grown = group
        for start in starts:
            grown, also = _grown(grown, start, layers, ranking)
            tried |= also
    return Concatenated(grown, frozenset(tried))


def is_single(ranked: RankedLayer) -> bool:
    """Whether a layer is not a concatenation."""
    return "+" not in ranked.layer.layer


def _grown(
    group: Group, start: CandidateKey, layers: Sequence[LayerKey], ranking: _Ranking
) -> tuple[Group, set[CandidateKey]]:
    """The group with what the greedy search found from a layer, in its reduction; and all that it tried."""
    epoch, first = start
    hits: dict[CandidateKey, list[Hits]] = {}

    def key_of(members: tuple[int, ...]) -> CandidateKey | None:
        key = concatenated_key([layers[member] for member in sorted(members)])
        return None if key is None else (epoch, RankedLayer(key, first.reduction, first.similarity))

    def recall_of(members: tuple[int, ...]) -> float:
        key = key_of(members)
        if key is None:
            return math.nan
        if key != start and key not in hits:
            in_runs = [ranking.hits(candidate_run, "choosing", key, start) for candidate_run in group.runs]
            if any(own is None for own in in_runs):
                return math.nan
            hits[key] = [own for own in in_runs if own is not None]
        return float(_with_hits(group, "choosing", key, hits.get(key)).sums([key], "choosing").means[0])

    alone = (layers.index(first.layer),)
    path = [] if recall_of(alone) >= _PERFECT else greedy(alone, range(len(layers)), recall_of)
    grown = group
    for key in (key_of(members) for members in path):
        if key is None:
            continue
        grown = _with_hits(grown, "choosing", key, hits[key])
        if grown.runs[0].test is not None:
            in_runs = [ranking.hits(candidate_run, "test", key, start) for candidate_run in group.runs]
            grown = _with_hits(grown, "test", key, [own for own in in_runs if own is not None])
    return grown, set(hits)


def _with_hits(group: Group, part: Part, key: CandidateKey, hits: Sequence[Hits] | None) -> Group:
    if not hits or len(hits) < len(group.runs):
        return group
    pairs = zip(group.runs, hits, strict=True)
    return Group(tuple(candidate_run.with_hits(part, {key: own}) for candidate_run, own in pairs))


@dataclass(eq=False)
class _Ranking:
    """Ranks layers of runs from stored features unless their ranks are stored, and stores them at the end.

    A run is locked when the first of its layers is ranked.
    """

    device: torch.device
    seed: int
    stop: Stop
    advance: Callable[[], None]
    locks: ExitStack
    _locked: set[str] = field(default_factory=set)
    _new: dict[tuple[StoredSearch, RankedLayer], dict[RankedLayer, Ranks | str]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _searches: dict[tuple[str, int, str], tuple[StoredSearch, store.StoredRanks]] = field(default_factory=dict)

    def require(self, candidate_run: CandidateRun, key: CandidateKey) -> None:
        """Check that a layer's features are stored as they were ranked, and that nothing else decides its ranks."""
        for split in dict.fromkeys([candidate_run.split, *(["test"] if candidate_run.test else [])]):
            search, _ = self._search(candidate_run, key[0], split)
            search.require_plain()
            search.require_stored(key[1])

    def hits(self, candidate_run: CandidateRun, part: Part, key: CandidateKey, like: CandidateKey) -> Hits | None:
        """(Q,) Recall@1 of each query; None if a layer has no valid number."""
        self.stop.raise_if_asked(_STOPPED)
        split, ranked = candidate_run.split if part == "choosing" else "test", key[1]
        search, stored = self._search(candidate_run, key[0], split)
        self.advance()
        try:
            chain = parse_chain(ranked.reduction)
            if split == FITTED_ON and chain.fits_on_train:
                return search.out_of_fold(ranked, self.seed)
            if store.ranked_alike(search.rank_file, [ranked, like[1]]):
                ranks: Ranks | str | None = stored.ranks.get(ranked)
            else:
                self._lock(candidate_run)
                ranks = self._new[search, like[1]][ranked] = search.ranks(ranked)
        except (NotApplicableError, NumericError):
            return None
        return ranks.hits(1) if isinstance(ranks, Ranks) else None

    def write(self) -> None:
        """Store the new ranks."""
        for (search, like), ranks in self._new.items():
            store.add_ranks(search.rank_file, ranks, dict.fromkeys(ranks, like))

    def _search(self, candidate_run: CandidateRun, epoch: int, split: str) -> tuple[StoredSearch, store.StoredRanks]:
        key = (candidate_run.run.name, epoch, split)
        if key not in self._searches:
            stored = open_ranked_split(candidate_run.run, epoch, split).stored
            self._searches[key] = StoredSearch(candidate_run.run, epoch, split, self.device), stored
        return self._searches[key]

    def _lock(self, candidate_run: CandidateRun) -> None:
        if candidate_run.run.name not in self._locked:
            self.locks.enter_context(locked(candidate_run.run))
            self._locked.add(candidate_run.run.name)


@contextmanager
def _ranking(device: torch.device, seed: int, listener: Listener, steps: int) -> Iterator[_Ranking]:
    with stoppable() as stop, ExitStack() as locks, listener.task("concatenated layers", steps, "sets") as task:
        ranking = _Ranking(device, seed, stop, task.advance, locks)
        try:
            yield ranking
        finally:
            ranking.write()
