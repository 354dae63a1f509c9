"""Which runs are trainings of one experiment: they differ in nothing but the seed, or the fold that they hold out.

The hash of a recipe, `experiment` in run.json, does not say so alone: it leaves out where the images lie, and by what
groups or lists they are searched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from layerprobe.store import read_search
from layerprobe.system.errors import BusyError, DataError
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import SPLITS, Score
from layerprobe.workflow.run.manifests import have_other_images
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_terms import ranked_epochs


@dataclass(frozen=True, eq=False)
class Conditions:
    """Under what conditions a run was trained and measured, as far as its files tell."""

    run: Run
    record: RunRecord

    @property
    def data(self) -> Mapping[str, Any]:
        """[data] of its recipe."""
        found: Mapping[str, Any] = self.record.data
        return found

    @cached_property
    def rules(self) -> Mapping[str, str]:
        """Split -> hash of what decides which items its queries may find, of those that are ranked."""
        found = {}
        for split in SPLITS:
            for epoch in ranked_epochs(self.run, split)[-1:]:
                with contextlib.suppress(DataError, BusyError):  # what is damaged says nothing
                    found[split] = read_search(self.run.rank_file(epoch, split))
        return {split: rules for split, rules in found.items() if rules}


def why_apart(one: Conditions, other: Conditions) -> str:
    """What two runs have that trainings of one experiment have not: `other test images`; empty where they are such.

    What one of them does not know is no difference. Of a run that an earlier version began, the images are known by
    names, classes and sizes, until `probe` has compared their content. What the seed or the fold draws is not compared
    where these differ: with `data.share` the training images, with folds those of training and validation.
    """
    if one.record.experiment != other.record.experiment:
        return "another recipe"
    drawn = _drawn(one, other)
    names = [name for name in {**one.record.manifests, **one.record.contents} if name not in drawn]
    if images := [name for name in names if have_other_images(one.record, other.record, name)]:
        return f"other {' and '.join(images)} images"
    transforms = [record.transform for record in (one.record, other.record)]
    if "" not in transforms and transforms[0] != transforms[1]:
        return "another way from an image to the input"
    ranked = [split for split in names if split in one.rules and split in other.rules]
    return "other groups or lists" if any(one.rules[split] != other.rules[split] for split in ranked) else ""


def _drawn(one: Conditions, other: Conditions) -> set[str]:
    """The splits whose images the seed or the fold draws, and draws otherwise for the two runs."""
    found = set[str]()
    if any(each.data.get("share", 1) != 1 for each in (one, other)) and one.record.seed != other.record.seed:
        found |= {"train"}
    if one.data.get("validation_fold", 0) != other.data.get("validation_fold", 0):
        found |= {"train", "validation"}
    return found


@dataclass(frozen=True)
class Experiments:
    """Which runs are trainings of one experiment.

    Args:
        names: run -> what its experiment is called: the hash of its recipe, with a number where another experiment has
            the same. A run whose record cannot be read is not among them.
        notes: which runs have one recipe and are of several experiments all the same, and why, in a line each.
    """

    names: Mapping[Run, str]
    notes: tuple[str, ...]


def experiments_of(runs: Iterable[Run]) -> Experiments:
    """The experiments of some runs; a run joins the first one from all of whose trainings it is not apart."""
    names: dict[Run, str] = {}
    notes: list[str] = []
    groups: dict[str, list[list[Conditions]]] = {}
    for run in runs:
        with contextlib.suppress(DataError):
            own = Conditions(run, run.read())
            alike = groups.setdefault(own.record.experiment, [])
            group = next((each for each in alike if not any(why_apart(x, own) for x in each)), None)
            if group is None:
                alike.append(group := [])
            group.append(own)
    for recipe, alike in groups.items():
        for number, group in enumerate(alike, start=1):
            names |= dict.fromkeys((each.run for each in group), recipe if number == 1 else f"{recipe}-{number}")
            if number > 1:
                reason = next(filter(None, (why_apart(x, y) for x in alike[0] for y in group)))
                runs_text = f"{_names(alike[0])} and {_names(group)}"
                notes.append(f"{runs_text} have one recipe, but {reason}: no seeds of one experiment")
    return Experiments(names, tuple(notes))


def scores_of(runs: Sequence[Run]) -> list[Score]:
    """The scores of runs, with one `experiment` where they are trainings of one, and a note where the recipe misleads.

    A run whose record cannot be read stands alone.
    """
    found = experiments_of(runs)
    scores = []
    for run in runs:
        for score in run.scores():
            name = found.names.get(run, f"{score.experiment} {run.name}")
            same = name == score.experiment and not found.notes
            scores.append(score if same else replace(score, experiment=name, notes=(*score.notes, *found.notes)))
    return scores


def _names(group: Sequence[Conditions]) -> str:
    return ", ".join(each.run.name for each in group)
