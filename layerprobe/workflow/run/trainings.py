"""The trainings of one experiment under several seeds, paired with those of another by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerprobe.system.errors import RecipeError
from layerprobe.values.records import RunRecord
from layerprobe.workflow.run.experiments import Conditions, why_apart
from layerprobe.workflow.run.runs import Run, list_runs


@dataclass(frozen=True, eq=False)
class Trainings:
    """Pairs of runs of two experiments, of one seed each.

    Args:
        seeds: ascending, at least two.
        pairs: for each seed the run of the first experiment and that of the second; often the same.
    """

    seeds: tuple[int, ...]
    pairs: tuple[tuple[Run, Run], ...]
    left_out: tuple[str, ...]
    one: bool = True


def pair_trainings(cache: Path, a: Run, b: Run, epochs: tuple[int | None, int | None]) -> Trainings:
    """All runs of A's and of B's experiment, paired by seed.

    Args:
        epochs: that are compared; None for the last of `a` and of `b`.
    """
    known = list_runs(cache)
    sides = [_by_seed(known, x, epoch) for x, epoch in zip((a, b), epochs, strict=True)]
    (first, *_), (second, *_) = sides
    notes = list(dict.fromkeys(note for _, left_out, apart in sides for note in (*left_out, *apart)))
    shared = sorted(first.keys() & second.keys())
    for seed in sorted(first.keys() ^ second.keys()):
        run = (first.get(seed) or second[seed]).name
        notes.append(f"{run} left out: the other experiment has no training with seed {seed}")
    one = not why_apart(Conditions(a, a.read()), Conditions(b, b.read()))
    if len(shared) < 2:
        what = f"{a.name}'s experiment was" if one else f"the experiments of {a.name} and {b.name} were both"
        count = f"{len(shared)} seed{'s' * (len(shared) != 1)}"
        told = dict.fromkeys(note for *_, apart in sides for note in apart)
        raise RecipeError(
            "; ".join([f"--seeds: {what} trained to that epoch with {count}, and it takes 2", *told]),
            fix="Train and probe others, such as --seed 1 --run NAME, or leave --seeds out",
        )
    return Trainings(tuple(shared), tuple((first[seed], second[seed]) for seed in shared), tuple(notes), one)


def _by_seed(
    known: Sequence[tuple[Run, RunRecord]], named: Run, epoch: int | None
) -> tuple[dict[int, Run], list[str], list[str]]:
    """Seed -> the run of a run's experiment that has the epoch; what is left out; and what is of its recipe alone."""
    notes: list[str] = []
    apart: dict[str, list[str]] = {}
    record = named.read()
    own = Conditions(named, record)
    wanted = record.epochs_done if epoch is None else epoch
    found = {record.seed: named}
    for run, other in sorted(known, key=lambda item: item[0].name):
        if other.experiment != record.experiment or run.folder == named.folder:
            continue
        if reason := why_apart(own, Conditions(run, other)):
            apart.setdefault(reason, []).append(run.name)
        elif other.epochs_done < wanted:
            notes.append(f"{run.name} left out: it has no epoch {wanted}")
        elif other.seed in found:
            notes.append(f"{run.name} left out: {found[other.seed].name} has its seed {other.seed}")
        else:
            found[other.seed] = run
    told = [f"{', '.join(runs)} left out: {reason} than {named.name} has" for reason, runs in apart.items()]
    return found, notes, told
