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
    return Trainings(
        tuple(shared), tuple((runs_a[seed], runs_b[seed]) for seed in shared), tuple(notes), is_one_experiment
    )


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
