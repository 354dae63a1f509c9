"""Stored ranks of runs -> what can be chosen among: each candidate's hits, on the classes to choose on and on test.

candidate_run = open_candidates(run, epochs)          # a run's hits, on both splits
groups = grouped(runs)                   # the trainings of one experiment together
group.sums(group.keys, "choosing")          # (C, U) hits of each candidate by class
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.units import UnitSums, mean_of, side_by_side, unit_sums
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.epochs import named_epochs
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.keys import RankedLayer, network_order
from layerprobe.values.metric_names import is_recall
from layerprobe.values.records import RunRecord
from layerprobe.values.retrieval import Ranks
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.references import RankedSplit, open_ranked_split, probe_fix, require_same_queries
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import split_to_choose_on
from layerprobe.workflow.run.stored_terms import ranked_epochs

CandidateKey = tuple[int, RankedLayer]  # epoch and layer
Part = Literal["choosing", "test"]
Hits = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StoredHits:
    """What is stored of a run's split.

    Args:
        hits: epoch and layer -> (Q,) Recall@1 of each query.
        said: epoch and layer -> what its score says.
    """

    place: RankedSplit
    hits: Mapping[CandidateKey, Hits]
    said: Mapping[CandidateKey, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def sums(self, keys: Sequence[CandidateKey]) -> UnitSums:
        """(C, U) the hits of candidates, by class."""
        return unit_sums(np.stack([self.hits[key] for key in keys]), self.place.stored.labels)


@dataclass(frozen=True, eq=False)
class CandidateRun:
    """A run that is chosen among.

    Args:
        test: those of test; None where the run has no such split; the same as `choosing` where that is chosen on.
    """

    run: Run
    record: RunRecord
    split: str
    choosing: StoredHits
    test: StoredHits | None

    @property
    def fold(self) -> int | None:
        """Which of the folds of its training classes it held out; None where it held out none of several."""
        data = self.record.data
        return int(data["validation_fold"]) if data.get("validation_folds") and self.split == "validation" else None

    def queries(self, part: Part) -> StoredHits:
        """Those of a part; `test` is asked for only where there is one."""
        found = self.choosing if part == "choosing" else self.test
        if found is None:
            raise ValueError(f"{self.run.name} has no test classes")
        return found

    @property
    def keys(self) -> list[CandidateKey]:
        """What is stored of both, by epoch and in network order."""
        both = [key for key in self.choosing.hits if self.test is None or key in self.test.hits]
        order = network_order((ranked for _, ranked in both), self.record.layer_order)
        places = {ranked: place for place, ranked in enumerate(order)}
        return sorted(both, key=lambda key: (key[0], places[key[1]]))

    @property
    def untested(self) -> list[CandidateKey]:
        """What is stored of the choosing split alone."""
        return [] if self.test is None else [key for key in self.choosing.hits if key not in self.test.hits]

    def with_hits(self, part: Part, hits: Mapping[CandidateKey, Hits]) -> CandidateRun:
        """The run with the hits of further candidates, or with other ones."""
        queries = self.queries(part)
        changed = replace(queries, hits={**queries.hits, **hits})
        if self.choosing is self.test:
            return replace(self, choosing=changed, test=changed)
        return replace(self, choosing=changed) if part == "choosing" else replace(self, test=changed)

    def without(self, keys: Collection[CandidateKey]) -> CandidateRun:
        """The run without some candidates."""
        left = {key: hits for key, hits in self.choosing.hits.items() if key not in keys}
        changed = replace(self.choosing, hits=left)
        return replace(self, choosing=changed, test=changed if self.test is self.choosing else self.test)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that are chosen among as one: the trainings of an experiment, under several seeds or of several folds.

    Args:
        runs: at least one.
    """

    runs: tuple[CandidateRun, ...]

    @property
    def name(self) -> str:
        """The run's name; the experiment's of several runs."""
        first = self.runs[0]
        return first.run.name if len(self.runs) == 1 else str(first.record.experiment)

    @property
    def run_names(self) -> str:
        """`netA-s0, netA-s1`."""
        return ", ".join(candidate_run.run.name for candidate_run in self.runs)

    @property
    def keys(self) -> list[CandidateKey]:
        """What all of its runs have, in the first one's order."""
        others = [set(candidate_run.keys) for candidate_run in self.runs[1:]]
        return [key for key in self.runs[0].keys if all(key in other for other in others)]

    @property
    def folds(self) -> dict[int | None, list[CandidateRun]]:
        """Fold -> the runs that held it out, ascending; a single one where there are no folds."""
        found: dict[int | None, list[CandidateRun]] = defaultdict(list)
        for candidate_run in self.runs:
            found[candidate_run.fold].append(candidate_run)
        return dict(sorted(found.items(), key=lambda item: item[0] or 0))

    def sums(self, keys: Sequence[CandidateKey], part: Part) -> UnitSums:
        """(C, U) the hits of candidates by class: means over seeds, each class from the runs that held it out."""
        if part == "test":
            return mean_of([candidate_run.queries(part).sums(keys) for candidate_run in self.runs])
        return side_by_side(
            [mean_of([candidate_run.choosing.sums(keys) for candidate_run in fold]) for fold in self.folds.values()]
        )


def open_candidates(run: Run, epochs: str) -> CandidateRun:
    """What is stored of a run to choose a layer by."""
    record = run.read()
    every = range(record.epochs_done + 1)
    asked = named_epochs(epochs, {"all": lambda: every, "last": lambda: every[-1:]}, every, run.name)
    split = split_to_choose_on(run, record, asked)
    if split == "test" and "test" not in record.manifests:
        raise DataError(f"{run.name} has no classes to choose a layer on", file=run.folder, fix="Give a split test")
    splits = list(dict.fromkeys([split, *(["test"] if "test" in record.manifests else [])]))
    found = _ranked(run, record, splits) if "all" in epochs else asked
    queries = {name: _queries(run, name, found, chosen_on=name == split) for name in splits}
    candidate_run = CandidateRun(run, record, split, queries[split], queries.get("test"))
    if queries[split].notes and not queries[split].hits:
        what = f"no layer can be chosen: {'; '.join(queries[split].notes)}"
        raise DataError(what, file=run.folder, fix="Probe other layers or epochs")
    if not candidate_run.keys:
        fix = probe_fix(run, record, found[-1], ",".join(splits))
        raise DataError(f"no layer is ranked on {' and '.join(splits)}", file=run.folder, fix=fix)
    return candidate_run


def _ranked(run: Run, record: RunRecord, splits: Sequence[str]) -> list[int]:
    """The epochs that are ranked on all of some splits."""
    each = {split: ranked_epochs(run, split) for split in splits}
    both = sorted(set.intersection(*map(set, each.values())))
    if not both:
        lacks = [split for split in splits if not each[split]] or list(splits)
        have = [epoch for epochs in each.values() for epoch in epochs]
        fix = probe_fix(run, record, max(have, default=record.epochs_done), ",".join(lacks))
        raise DataError(f"no epoch is ranked on {' and '.join(splits)}", file=run.folder, fix=fix)
    return both


def _queries(run: Run, split: str, epochs: Sequence[int], *, chosen_on: bool) -> StoredHits:
    """The hits of what is scored and ranked: ranks whose scores have left scores.csv hold no longer.

    Where a layer is chosen on them, those of layers that have collapsed to one vector are left out.
    """
    scored = {
        (score.epoch, score.ranked_layer): IntervalKind.without(score.notes)
        for score in run.scores()
        if score.split == split and is_recall(score.metric)
    }
    places = [open_ranked_split(run, epoch, split) for epoch in epochs]
    last, hits, notes = places[-1], {}, []
    for place in places:
        if place.stored.ids != last.stored.ids or not np.array_equal(place.stored.labels, last.stored.labels):
            notes.append(
                f"{run.name}, {split}, epoch {place.epoch}: left out, as it has other images than the last one"
            )
            continue
        held = {ranked: ranks for ranked, ranks in place.stored.ranks.items() if (place.epoch, ranked) in scored}
        for ranked, ranks in held.items():
            if ranks.open([1]).any():
                notes.append(f"{run.name}, {place.name(ranked)}: left out, as its ranks are not exact for K = 1")
            elif chosen_on and _is_one_vector(ranks):
                notes.append(f"{run.name}, {place.name(ranked)}, epoch {place.epoch}: left out, as it has collapsed")
            else:
                hits[place.epoch, ranked] = ranks.hits(1)
        invalid = [ranked for ranked in place.stored.invalid if (place.epoch, ranked) in scored]
        notes += [f"{run.name}, {place.name(x)}, epoch {place.epoch}: {place.stored.invalid[x]}" for x in invalid]
    return StoredHits(last, hits, scored, tuple(dict.fromkeys(notes)))


def _is_one_vector(ranks: Ranks) -> bool:
    """Whether everything is as close to each query as the nearest of its class, as where all features are the same."""
    paired = ranks.tied_positives > 0
    return ranks.tied_share == 1 and not ranks.closer[paired].any()


def grouped(runs: Sequence[CandidateRun]) -> list[Group]:
    """The trainings of each experiment together, in the order in which they are named."""
    experiments = experiments_of(candidate_run.run for candidate_run in runs)
    if experiments.notes:
        raise RecipeError(experiments.notes[0], fix="Choose among those of one experiment")
    found: dict[str, list[CandidateRun]] = defaultdict(list)
    for candidate_run in runs:
        found[experiments.names[candidate_run.run]].append(candidate_run)
    groups = [Group(tuple(each)) for each in found.values()]
    for group in groups:
        if not group.keys:
            what = f"{group.run_names}: no layer is ranked at the same epoch in all of them"
            raise DataError(what, fix="Probe the same layers and epochs of each")
        _require_comparable(groups[0], group)
    return groups


def _require_comparable(one: Group, other: Group) -> None:
    first = one.runs[0]
    fix = "Choose among runs of one data set that hold out the same classes"
    if one.folds.keys() != other.folds.keys():
        raise RecipeError(f"{one.run_names} and {other.run_names} hold out other folds of classes", fix=fix)
    for candidate_run in other.runs:
        names = f"{first.run.name} and {candidate_run.run.name}"
        if first.split != candidate_run.split:
            what = f"{names}: one is chosen on {first.split}, the other on {candidate_run.split}"
            raise RecipeError(what, fix=fix)
        if (first.test is None) != (candidate_run.test is None):
            raise RecipeError(f"{names}: only one of them has test classes", fix=fix)
        require_same_queries(one.folds[candidate_run.fold][0].choosing.place, candidate_run.choosing.place)
        if first.test is not None and candidate_run.test is not None:
            require_same_queries(first.test.place, candidate_run.test.place)
