"""choose: the stored ranks of runs -> which layer to ship, without looking at the test classes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice
from layerprobe.values.keys import RankedLayer
from layerprobe.workflow.choose.candidates import CandidateKey, Group, grouped, open_candidates
from layerprobe.workflow.choose.choosing import choose_among, require_points
from layerprobe.workflow.choose.concatenation import is_single, with_concatenations
from layerprobe.workflow.choose.refits import Refits, Refitted
from layerprobe.workflow.choose.run_candidates import candidate_set, keys_of, of_groups
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
        require_points(self.within)


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
    groups: Sequence[Group] = grouped([open_candidates(run, request.epochs) for run in runs])
    first = groups[0].runs[0]
    seed = int(first.record.seed)
    refits = Refits(from_recipe.choose_device(request.device), seed, listener)
    notes = [note for group in groups for note in _notes_of(group)]
    tried: frozenset[CandidateKey] = frozenset()
    if first.split == "test":
        refitted = refits.cross_fitted(groups, further)
        groups = refitted.groups
        notes += [*refitted.notes, "the whole gallery is searched in every fold", "no layers side by side are tried"]
    else:
        refitted = refits.out_of_fold(groups) if first.split == "train" else Refitted(groups)
        groups, tried, also = _with_concatenations(refitted.groups, refits)
        notes += [*refitted.notes, *also]
    notes += [note for group in groups for note in _left_out(group, tried)]
    choice = choose_among(candidate_set(groups, refitted.by_fold, seed), notes, within=request.within, seed=seed)
    return of_groups(choice, groups)


def _with_concatenations(
    groups: Sequence[Group], refits: Refits
) -> tuple[Sequence[Group], frozenset[CandidateKey], tuple[str, ...]]:
    """The groups with layers side by side, in the group of the best single candidate; what was tried; notes."""
    keys = keys_of(groups)
    single = [place for place, (_, key) in enumerate(keys) if is_single(key[1])]
    if not single:
        return groups, frozenset(), ()
    group, key = keys[candidate_set(groups, {}, refits.seed).best(single)]
    found = with_concatenations(group, key, refits.device, refits.seed, refits.listener)
    return [found.group if one is group else one for one in groups], found.tried, found.notes


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
