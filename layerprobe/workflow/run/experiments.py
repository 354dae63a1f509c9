"""Experiments: trainings that differ only in the seed or the held-out fold.

The hash of a recipe, `experiment` in run.json, omits where the images lie, and by which groups or lists they are
searched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from layerprobe.system.errors import BusyError, DataError
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import SPLITS, Score
from layerprobe.workflow.run.manifests import have_other_images
from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True, eq=False)
class Conditions:
    """The conditions under which a run was trained and measured."""

    run: Run
    record: RunRecord

    @cached_property
    def rules(self) -> Mapping[str, str]:
        """Ranked split -> hash of its search rules."""
        rules = {}
        for split in SPLITS:
            for epoch in self.run.ranked_epochs(split)[-1:]:
                with contextlib.suppress(DataError, BusyError):  # damaged ranks are unknown
                    rules[split] = self.run.ranks(epoch, split).search_sha256
        return {split: sha256 for split, sha256 in rules.items() if sha256}


def difference(a: Conditions, b: Conditions) -> str:
    """A difference other than seed or fold, such as `other test images`; empty for trainings of one experiment.

    A split that a run does not have is no difference. Images that the seed (with `data.share`) or the fold draws are
    not compared.
    """
    if a.record.experiment != b.record.experiment:
        return "another recipe"
    drawn = _drawn(a, b)
    names = [name for name in {**a.record.manifests, **a.record.contents} if name not in drawn]
    if images := [name for name in names if have_other_images(a.record, b.record, name)]:
        return f"other {' and '.join(images)} images"
    if a.record.transform != b.record.transform:
        return "another way from an image to the input"
    ranked = [split for split in names if split in a.rules and split in b.rules]
    return "other groups or lists" if any(a.rules[split] != b.rules[split] for split in ranked) else ""


def _drawn(a: Conditions, b: Conditions) -> set[str]:
    """The splits whose images differ by the seed or the fold."""
    data = a.record.data, b.record.data
    if data[0].get("validation_fold", 0) != data[1].get("validation_fold", 0):
        return {"train", "validation"}
    shared = any(section.get("share", 1) != 1 for section in data)
    return {"train"} if shared and a.record.seed != b.record.seed else set()


@dataclass(frozen=True)
class Experiments:
    """The experiments of some runs.

    Args:
        names: readable run -> hash of its recipe, numbered where several experiments have the same.
        notes: why runs of one recipe are several experiments.
    """

    names: Mapping[Run, str]
    notes: tuple[str, ...]


def experiments_of(runs: Iterable[Run]) -> Experiments:
    """The experiments of some runs; a run joins the first one that has no difference to any of its trainings."""
    names: dict[Run, str] = {}
    notes: list[str] = []
    groups: dict[str, list[list[Conditions]]] = {}
    for run in runs:
        with contextlib.suppress(DataError):
            conditions = Conditions(run, run.read())
            of_recipe = groups.setdefault(conditions.record.experiment, [])
            same = (members for members in of_recipe if not any(difference(x, conditions) for x in members))
            group = next(same, None)
            if group is None:
                of_recipe.append(group := [])
            group.append(conditions)
    for recipe, of_recipe in groups.items():
        for number, group in enumerate(of_recipe, start=1):
            names |= dict.fromkeys((member.run for member in group), recipe if number == 1 else f"{recipe}-{number}")
            if number > 1:
                reason = next(filter(None, (difference(x, y) for x in of_recipe[0] for y in group)))
                runs_text = f"{_names(of_recipe[0])} and {_names(group)}"
                notes.append(f"{runs_text} have one recipe, but {reason}: no seeds of one experiment")
    return Experiments(names, tuple(notes))


def scores_of(runs: Sequence[Run]) -> list[Score]:
    """The scores of runs, with the name of their experiment and its notes; an unreadable run is an experiment."""
    experiments = experiments_of(runs)
    return [
        replace(
            score,
            experiment=experiments.names.get(run, f"{score.experiment} {run.name}"),
            notes=(*score.notes, *experiments.notes),
        )
        for run in runs
        for score in run.scores()
    ]


def _names(group: Sequence[Conditions]) -> str:
    return ", ".join(member.run.name for member in group)
