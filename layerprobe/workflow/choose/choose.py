"""choose: the stored ranks of runs -> which layer to ship, without looking at the test classes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerprobe.statistics.choice import cross_fitted, folds_of, pick
from layerprobe.statistics.units import UnitSums
from layerprobe.system.errors import RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice
from layerprobe.values.keys import LayerKey, RankedLayer
from layerprobe.workflow.choose.candidate_set import CandidateSet, counted
from layerprobe.workflow.choose.candidates import CandidateKey, Group, grouped, open_candidates
from layerprobe.workflow.choose.choosing import ChoiceEvidence, made_choice
from layerprobe.workflow.choose.concatenation import is_single, with_concatenations
from layerprobe.workflow.choose.cut import cut_after
from layerprobe.workflow.choose.refits import Refits, Refitted
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.runs import Run

_NAMED = 4  # layers that a note names
# Times as many classes of test as of the choosing split: from here on a note says that differences grow. On Omniglot,
# among 17 of 68 classes half-whitened pool3.3 lacks 1 point, among all 68 it lacks 3.
_MANY_TIMES = 2


@dataclass(frozen=True)
class ChooseRequest:
    """What `layerprobe choose` was asked for.

    Args:
        epochs: all, which is all that are ranked; last; or numbers with commas between.
        within: how much worse than the best a cheaper candidate may be, in points of Recall@1, 0 to 100.
        device: where layers are ranked: auto, cpu, cuda or cuda:i.
    """

    epochs: str = "all"
    within: float = 1.0
    device: str = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.within <= 100:
            raise RecipeError(f"--within {self.within:g}: not points from 0 to 100", fix="Leave it out for 1")


def choose_runs(
    runs: Sequence[Run], request: ChooseRequest, listener: Listener, further: Iterable[RankedLayer] = ()
) -> Choice:
    """Choose a layer, with its epoch, pool and reduction, among all that is ranked of some runs.

    On validation classes; without these on the training classes, where the network has not seen them; and where there
    are none, on test classes, cross-fitted over 5 folds of them. Reductions that are fitted on the classes that are
    chosen on are ranked anew, each query by a fit on the classes of other folds.

    Args:
        runs: at least one, each once. The trainings of one experiment are chosen among as one, by their mean.
    """
    groups = grouped([open_candidates(run, request.epochs) for run in runs])
    first = groups[0].runs[0]
    seed = int(first.record.seed)
    refits = Refits(from_recipe.choose_device(request.device), seed, listener)
    lines = [note for group in groups for note in _notes_of(group)]
    tried: frozenset[CandidateKey] = frozenset()
    if first.split == "test":
        found = refits.cross_fitted(groups, further)
        candidate_set, evidence = CandidateSet(found.groups), _crossed(found, request.within / 100, seed)
        lines += [*found.notes, "the whole gallery is searched in every fold", "no layers side by side are tried"]
    else:
        found = refits.out_of_fold(groups) if first.split == "train" else Refitted(groups)
        candidate_set, tried, also = _with_concatenations(found.groups, refits)
        test = None if first.test is None else candidate_set.sums("test")
        evidence = ChoiceEvidence(first.split, candidate_set.sums("choosing"), test)
        lines += [*found.notes, *also]
    lines += [note for group in groups for note in _left_out(group, tried)]
    evidence = replace(evidence, notes=tuple(dict.fromkeys(lines)))
    choice = made_choice(candidate_set.candidates(), evidence, candidate_set.subject, within=request.within, seed=seed)
    return _finished(choice, candidate_set)


def _finished(choice: Choice, candidate_set: CandidateSet) -> Choice:
    """The choice with the number of trainings that its scores are means of, and with what can be cut."""
    group = candidate_set.group_of(choice.run)
    best = choice.best_on_test
    return replace(
        choice,
        chosen=counted(choice.chosen, group),
        test=None if choice.test is None else counted(choice.test, group),
        best_on_test=None if best is None else counted(best, candidate_set.group_of(best.run)),
        cut=cut_after(group.runs[0].record, LayerKey(choice.ship.layer, choice.ship.pool)),
    )


def _with_concatenations(
    groups: Sequence[Group], refits: Refits
) -> tuple[CandidateSet, frozenset[CandidateKey], tuple[str, ...]]:
    """The groups with layers side by side, in the group of the best single candidate; what was tried; notes."""
    candidate_set = CandidateSet(groups)
    single = [place for place, (_, key) in enumerate(candidate_set.entries) if is_single(key[1])]
    if not single:
        return candidate_set, frozenset(), ()
    sums = candidate_set.sums("choosing")
    costs = [candidate.cost for candidate in candidate_set.candidates()]
    part = UnitSums(sums.sums[single], sums.counts[single])
    best = single[pick(part, [costs[place] for place in single], within=0.0).best]
    group, key = candidate_set.entries[best]
    made = with_concatenations(group, key, refits.device, refits.seed, refits.listener)
    return CandidateSet([made.group if one is group else one for one in groups]), made.tried, made.notes


def _crossed(found: Refitted, within: float, seed: int) -> ChoiceEvidence:
    """What a choice on test classes is made on, cross-fitted."""
    candidate_set = CandidateSet(found.groups)
    choosing, costs = candidate_set.sums("choosing"), [candidate.cost for candidate in candidate_set.candidates()]

    def sums_of(fold: int) -> UnitSums:
        return CandidateSet(found.by_fold[fold]).sums("choosing") if found.by_fold else choosing

    folds = folds_of(range(choosing.sums.shape[1]), seed=seed)
    crossed = cross_fitted(sums_of, folds, lambda sums: pick(sums, costs, within=within).place)
    return ChoiceEvidence("test", choosing, crossed=crossed)


def _notes_of(group: Group) -> list[str]:
    """What the candidates of a group are, and what is left out of its runs."""
    first, several = group.runs[0], len(group.runs) > 1
    notes = [
        note
        for candidate_run in group.runs
        for part in (candidate_run.choosing, candidate_run.test)
        if part
        for note in part.notes
    ]
    counts = [len(np.unique(part.place.stored.labels)) for part in (first.choosing, first.test) if part]
    if first.split != "test" and counts[-1] >= _MANY_TIMES * counts[0]:
        notes.append(
            f"{first.split} has {counts[0]} classes and test {counts[-1]}: a difference grows with the classes"
            f" searched, so that {first.split} shows less of it"
        )
    if several:
        notes.append(f"experiment {group.name}: mean of {group.run_names}")
    if first.fold is not None:
        count = first.record.data["validation_folds"]
        notes.append("each class is judged by the runs that held it out")
        if len(group.folds) < count:
            folds = ", ".join(map(str, group.folds))
            notes.append(f"of folds 0 to {count - 1} only {folds}: name the runs of all to choose on every class")
    source = str(first.record.net.get("name", ""))
    if first.split == "train":
        notes.append("the network has not seen the training classes at these epochs")
        if source.startswith("python:"):
            notes.append(f"taken on trust: what {source} loads was not trained on them")
    return notes


def _left_out(group: Group, tried: Collection[CandidateKey]) -> list[str]:
    """What is no candidate, as it is not ranked everywhere."""
    known, split = set(group.keys), group.runs[0].split
    part = [key for candidate_run in group.runs for key in candidate_run.keys if key not in known]
    notes = (
        [f"skipped: not ranked in every one of {group.run_names}: {_named(part, group.runs[0].run.name)}"]
        if part
        else []
    )
    for candidate_run in group.runs:
        if keys := [key for key in candidate_run.untested if key not in tried]:
            run = candidate_run.run.name
            notes.append(f"skipped: ranked on {split} and not on test in {run}: {_named(keys, run)}")
    return notes


def _named(keys: Collection[CandidateKey], run: str) -> str:
    epochs = {epoch for epoch, _ in keys}
    names = list(dict.fromkeys(f"{run}#{epoch}:{ranked}" if len(epochs) > 1 else str(ranked) for epoch, ranked in keys))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
