"""The trainings of two experiments, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerprobe.system.errors import RecipeError
from layerprobe.values.records import RunRecord
from layerprobe.workflow.run.experiments import Conditions, difference
from layerprobe.workflow.run.runs import Run, list_runs


@dataclass(frozen=True, eq=False)
class Trainings:
    """For each seed a run of both experiments, which may be the same.

    Args:
        seeds: ascending, at least two.
        left_out: a note on each skipped run.
        one: whether both experiments are the same.
    """

    seeds: tuple[int, ...]
    pairs: tuple[tuple[Run, Run], ...]
    left_out: tuple[str, ...]
    one: bool = True


def pair_trainings(cache: Path, a: Run, b: Run, epochs: tuple[int | None, int | None]) -> Trainings:
    """Pair the runs of A's and of B's experiment that have the epoch, by default the last of `a` and of `b`."""
    known = list_runs(cache)
    named = [Conditions(run, run.read()) for run in (a, b)]
    experiments = [_by_seed(known, each, epoch) for each, epoch in zip(named, epochs, strict=True)]
    (first, *_), (second, *_) = experiments
    notes = list(dict.fromkeys(note for _, left_out, other in experiments for note in (*left_out, *other)))
    shared = sorted(first.keys() & second.keys())
    for seed in sorted(first.keys() ^ second.keys()):
        run = (first.get(seed) or second[seed]).name
        notes.append(f"{run} left out: the other experiment has no training with seed {seed}")
    one = not difference(*named)
    if len(shared) < 2:
        what = f"{a.name}'s experiment was" if one else f"the experiments of {a.name} and {b.name} were both"
        count = f"{len(shared)} seed{'s' * (len(shared) != 1)}"
        others = dict.fromkeys(note for *_, other in experiments for note in other)
        raise RecipeError(
            "; ".join([f"--seeds: {what} trained to that epoch with {count}, and it takes 2", *others]),
            fix="Train and probe others, such as --seed 1 --run NAME, or leave --seeds out",
        )
    return Trainings(tuple(shared), tuple((first[seed], second[seed]) for seed in shared), tuple(notes), one)


def _by_seed(
    known: Sequence[tuple[Run, RunRecord]], named: Conditions, epoch: int | None
) -> tuple[dict[int, Run], list[str], list[str]]:
    """Seed -> run of an experiment; notes on its skipped runs; notes on runs of the same recipe alone."""
    notes: list[str] = []
    different: dict[str, list[str]] = {}
    epoch = named.record.epochs_done if epoch is None else epoch
    runs = {named.record.seed: named.run}
    for run, record in sorted(known, key=lambda item: item[0].name):
        if record.experiment != named.record.experiment or run.folder == named.run.folder:
            continue
        if reason := difference(named, Conditions(run, record)):
            different.setdefault(reason, []).append(run.name)
        elif epoch not in record.epochs:
            notes.append(f"{run.name} left out: it has no epoch {epoch}")
        elif record.seed in runs:
            notes.append(f"{run.name} left out: {runs[record.seed].name} has its seed {record.seed}")
        else:
            runs[record.seed] = run
    others = [f"{', '.join(names)} left out: {why} than {named.run.name} has" for why, names in different.items()]
    return runs, notes, others
