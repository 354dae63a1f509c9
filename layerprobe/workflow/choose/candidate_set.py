"""All candidates of some groups of runs side by side: their costs, their hits by class, and their names."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from layerprobe import store
from layerprobe.reductions.chain import parse_chain
from layerprobe.statistics.units import UnitSums, stacked
from layerprobe.system.errors import DataError
from layerprobe.values.choice import Candidate
from layerprobe.values.keys import LayerKey, RankedLayer, members_of
from layerprobe.values.scores import Score, Subject, shared_notes
from layerprobe.workflow.choose.candidates import CandidateKey, Group, Part
from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True, eq=False)
class CandidateSet:
    """Groups of runs whose candidates compete, on the same queries.

    Args:
        groups: at least one.
    """

    groups: Sequence[Group]

    @property
    def entries(self) -> list[tuple[Group, CandidateKey]]:
        """The group and the place of every candidate, in the order of all that is asked here."""
        return [(group, key) for group in self.groups for key in group.keys]

    def candidates(self) -> list[Candidate]:
        """The candidates; each says its run or experiment where there are several."""
        several = len(self.groups) > 1
        found = []
        for group in self.groups:
            run, order = group.runs[0].run, group.runs[0].record.layer_order
            dims = _Dims(run)
            for epoch, ranked in group.keys:
                place = _place(ranked.layer, order)
                found.append(Candidate(epoch, ranked, dims.of(ranked), place, group.name if several else ""))
        return found

    def sums(self, part: Part) -> UnitSums:
        """(C, U) hits of every candidate, by class."""
        return stacked([group.sums(group.keys, part) for group in self.groups])

    def group_of(self, run: str) -> Group:
        """The group of a candidate that says so, or the only one."""
        return next((group for group in self.groups if group.name == run), self.groups[0])

    def subject(self, candidate: Candidate, split: str) -> Subject:
        """What is scored of a candidate: of several trainings the experiment."""
        group = self.group_of(candidate.run)
        first, key = group.runs[0], (candidate.epoch or 0, candidate.ranked)
        seed = first.record.seed if len(group.runs) == 1 else None
        part: Part = "choosing" if split == first.split else "test"
        said = [candidate_run.queries(part).said for candidate_run in group.runs]
        notes = shared_notes([own.get(key) or shared_notes(own.values() or [()]) for own in said])
        experiment = str(first.record.experiment)
        return Subject(group.name, experiment, seed, key[0], split, candidate.ranked, notes)


def counted(score: Score, group: Group) -> Score:
    """A score of a group; of several trainings it counts them, as every mean over seeds does."""
    return score if len(group.runs) == 1 else replace(score, n=len(group.runs))


def _place(layer: LayerKey, order: Sequence[str]) -> int:
    """The place of a layer in the network; of `A+B` that of the last of them."""
    names = [layer.layer] if layer.layer in order else layer.layer.split("+")
    return max((order.index(name) for name in names if name in order), default=len(order))


class _Dims:
    """How long the features of a run's layers are, as any of its feature files says."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.known: dict[LayerKey, int] = {}
        for path in sorted(run.feature_file(0, "test").parent.glob("*.h5")):
            with contextlib.suppress(DataError):
                self.known |= store.read_dims(path)

    def of(self, ranked: RankedLayer) -> int:
        members = members_of(ranked.layer, self.known)
        if not members:
            fix = f"Run layerprobe probe {self.run.name} --layers {ranked.layer.layer} --pool {ranked.layer.pool}"
            raise DataError(f"the features of {ranked.layer} are gone", file=self.run.folder, fix=fix)
        return parse_chain(ranked.reduction).dim(sum(self.known[member] for member in members))
