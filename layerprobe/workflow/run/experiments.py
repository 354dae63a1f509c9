"""Experiments: trainings that differ in the seed or the fold alone, on images of equal hashes.

The hash of a recipe, `experiment` in run.json, omits where the images lie, which are searched for, and by which groups
or lists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from layerprobe.data.splits import Dataset, manifest_sha256
from layerprobe.system.errors import BusyError, DataError, RecipeError
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import SPLITS, Score
from layerprobe.workflow.run.runs import Run, list_runs


def manifests_of(dataset: Dataset) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """`manifests` and `contents` of a data set whose images are hashed."""
    splits, names = dataset.splits, dataset.class_names
    return (
        {name: manifest_sha256(split, names) for name, split in splits.items()},
        {name: dataset.contents_sha256(name) for name in splits},
    )


def settled_splits(run: Run, splits: Sequence[str], *, trains: bool) -> list[str]:
    """The splits whose images may be no others: all once a layer was ranked, before that those that it trains on."""
    return [name for name in splits if run.is_measured or (trains and name == "train")]


def require_same_images(record: RunRecord, dataset: Dataset, splits: Sequence[str], *, fix: str) -> None:
    """Check that the images of some splits are those of a run; a split that its record does not have passes."""
    for name in splits:
        images = dataset.splits[name]
        if record.contents.get(name) in (None, dataset.contents_sha256(name)):
            continue
        same_by_size = record.manifests.get(name) == manifest_sha256(images, dataset.class_names)
        difference = "the same names and sizes, other contents" if same_by_size else "other names, classes or sizes"
        raise DataError(
            f"the {name} images are not those of the run: {difference}",
            file=record.data.get("root") or record.data["name"],
            fix=fix,
        )


def have_other_images(a: RunRecord, b: RunRecord, split: str) -> bool:
    """Whether a split of two runs is known to have other images or classes.

    Images without files are not compared between recipes: their size or scale may be that of the network.
    """
    if a.experiment != b.experiment and not (a.data.get("root") and b.data.get("root")):
        return False
    contents = {record.contents.get(split) for record in (a, b)}
    return None not in contents and len(contents) > 1


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
    return "other groups, lists or queries" if any(a.rules[split] != b.rules[split] for split in ranked) else ""


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


@dataclass(frozen=True, eq=False)
class Trainings:
    """For each seed a run of both experiments, which may be the same.

    Args:
        named: the run of each experiment that was asked for.
        pairs: by seed, at least two.
        left_out: a note on each skipped run.
    """

    named: tuple[Run, Run]
    pairs: tuple[tuple[Run, Run], ...]
    left_out: tuple[str, ...]
    is_one_experiment: bool = True


def pair_trainings(cache: Path, a: Run, b: Run, epochs: tuple[int | None, int | None]) -> Trainings:
    """Pair the runs of A's and of B's experiment that have the epoch, by default the last of `a` and of `b`."""
    recorded_runs = list_runs(cache)
    conditions = [Conditions(run, run.read()) for run in (a, b)]
    experiments = [_by_seed(recorded_runs, start, epoch) for start, epoch in zip(conditions, epochs, strict=True)]
    (runs_a, *_), (runs_b, *_) = experiments
    notes = list(dict.fromkeys(note for _, left_out, other in experiments for note in (*left_out, *other)))
    shared = sorted(runs_a.keys() & runs_b.keys())
    for seed in sorted(runs_a.keys() ^ runs_b.keys()):
        run = (runs_a.get(seed) or runs_b[seed]).name
        notes.append(f"{run} left out: the other experiment has no training with seed {seed}")
    is_one_experiment = not difference(*conditions)
    if len(shared) < 2:
        subject = (
            f"{a.name}'s experiment was" if is_one_experiment else f"the experiments of {a.name} and {b.name} were both"
        )
        count = f"{len(shared)} seed{'s' * (len(shared) != 1)}"
        other_notes = dict.fromkeys(note for *_, other in experiments for note in other)
        raise RecipeError(
            "; ".join([f"--seeds: {subject} trained to that epoch with {count}, and it takes 2", *other_notes]),
            fix="Train and probe others, such as --seed 1 --run NAME, or leave --seeds out",
        )
    return Trainings((a, b), tuple((runs_a[seed], runs_b[seed]) for seed in shared), tuple(notes), is_one_experiment)


def _by_seed(
    recorded_runs: Sequence[tuple[Run, RunRecord]], start: Conditions, epoch: int | None
) -> tuple[dict[int, Run], list[str], list[str]]:
    """Seed -> run of an experiment; notes on its skipped runs; notes on runs of the same recipe alone."""
    notes: list[str] = []
    different: dict[str, list[str]] = {}
    epoch = start.record.epochs_done if epoch is None else epoch
    runs = {start.record.seed: start.run}
    for run, record in sorted(recorded_runs, key=lambda item: item[0].name):
        if record.experiment != start.record.experiment or run.folder == start.run.folder:
            continue
        if reason := difference(start, Conditions(run, record)):
            different.setdefault(reason, []).append(run.name)
        elif epoch not in record.epochs:
            notes.append(f"{run.name} left out: it has no epoch {epoch}")
        elif record.seed in runs:
            notes.append(f"{run.name} left out: {runs[record.seed].name} has its seed {record.seed}")
        else:
            runs[record.seed] = run
    other_notes = [f"{', '.join(names)} left out: {why} than {start.run.name} has" for why, names in different.items()]
    return runs, notes, other_notes
