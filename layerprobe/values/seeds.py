"""The mean and range of scores over several trainings of one experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import takewhile

from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import Interval, IntervalKind, SamplingUnits
from layerprobe.values.scores import Score, shared_notes

_Cell = tuple[object, ...]


def over_seeds(scores: Sequence[Score]) -> list[Score]:
    """Replace the scores of an experiment's trainings by their means.

    `low` and `high` are the lowest and the highest training. Numbers missing in some trainings are skipped, with a
    note. A mean is None if a training has no valid value. Its run is named by `trainings`, its seed is None, and its n
    the number of trainings. Scores of a single training are unchanged.
    """
    by_run: dict[str, list[Score]] = {}
    for score in scores:
        by_run.setdefault(score.run, []).append(score)
    means: list[Score] = []
    for name, runs in trainings(scores).items():
        means += by_run[name] if runs == (name,) else _mean(name, [by_run[run] for run in runs])
    return means


def trainings(scores: Iterable[Score]) -> dict[str, tuple[str, ...]]:
    """The runs that `over_seeds` merges, by the name of their mean: `netA-s* (3 seeds)`.

    Runs of the same experiment are merged if they share some number; other runs keep their names.
    """
    scores = list(scores)
    groups: dict[str, dict[str, int | None]] = {}
    for score in scores:
        groups.setdefault(score.experiment, {})[score.run] = score.seed
    cells: dict[str, set[_Cell]] = {run: set() for runs in groups.values() if len(runs) > 1 for run in runs}
    for score in scores:
        if score.run in cells:
            cells[score.run].add(_cell(score))
    names: dict[str, tuple[str, ...]] = {}
    for experiment, runs in groups.items():
        together = len(runs) > 1 and bool(set.intersection(*(cells[run] for run in runs)))
        if not together:
            names |= {run: (run,) for run in runs}
            continue
        name = _name(runs)
        names[name if name not in names else f"{experiment} {name}"] = tuple(runs)
    return names


def facts_over_seeds(data: Mapping[str, DataFacts], groups: Mapping[str, Sequence[str]]) -> dict[str, DataFacts]:
    """The facts that all trainings of a group share.

    Args:
        groups: name -> runs, from `trainings`.
    """
    shared_facts = {}
    for name, runs in groups.items():
        run_facts = [data[run] for run in runs if run in data]
        if run_facts:
            first_facts = run_facts[0]
            same = {
                split: facts
                for split, facts in first_facts.splits.items()
                if all(k.splits.get(split) == facts for k in run_facts)
            }
            shared_facts[name] = replace(first_facts, splits=same)
    return shared_facts


def _name(runs: Mapping[str, int | None]) -> str:
    # Folds of one experiment may have the same seed.
    noun = "seeds" if len(set(runs.values())) == len(runs) else "trainings"
    shared = takewhile(lambda letters: len(set(letters)) == 1, zip(*runs, strict=False))
    prefix = "".join(letters[0] for letters in shared)
    return f"{f'{prefix}*' if prefix else ', '.join(runs)} ({len(runs)} {noun})"


def _cell(score: Score) -> _Cell:
    return score.epoch, score.split, score.ranked, score.metric


def _mean(name: str, runs: Sequence[Sequence[Score]]) -> list[Score]:
    """The means over some trainings, in the order of the first one's scores."""
    tables = [{_cell(score): score for score in run_scores} for run_scores in runs]
    shared = set.intersection(*(set(table) for table in tables))
    kinds: dict[tuple[str, str], list[Score]] = {}
    for score in (score for run_scores in runs for score in run_scores):
        kinds.setdefault(_kind(score), []).append(score)
    notes = {
        kind: (f"mean of {len(runs)} trainings", *_left_out(run_scores, shared)) for kind, run_scores in kinds.items()
    }
    shared_scores = [score for score in runs[0] if _cell(score) in shared]
    return [_mean_of([table[_cell(score)] for table in tables], name, notes[_kind(score)]) for score in shared_scores]


def _kind(score: Score) -> tuple[str, str]:
    """The scores that a figure shows together."""
    return score.metric, score.ranked.reduction


def _left_out(scores: Sequence[Score], shared: Set[_Cell]) -> list[str]:
    """A note on the epochs without any shared number, and the number of skipped ones at other epochs."""
    shared_epochs = {score.epoch for score in scores if _cell(score) in shared}
    alone = [score for score in scores if _cell(score) not in shared]
    epochs = sorted({score.epoch for score in alone} - shared_epochs)
    skipped = {_cell(score) for score in alone if score.epoch in shared_epochs}
    layers = {score.ranked for score in alone if score.epoch in shared_epochs}
    parts = [f"epoch{'s' * (len(epochs) > 1)} {', '.join(map(str, epochs))}"] if epochs else []
    parts += [f"{_count(len(skipped), 'number')} of {_count(len(layers), 'layer')}"] if skipped else []
    return [f"left out, as not all trainings have them: {' and '.join(parts)}"] if parts else []


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _mean_of(scores: Sequence[Score], name: str, notes: Sequence[str]) -> Score:
    values = [score.value for score in scores]
    valid = [value for value in values if value is not None]
    all_valid = len(valid) == len(values)
    common = shared_notes(score.notes for score in scores)
    single = [f"{score.run}: {note}" for score in scores for note in score.notes if note not in common]
    return replace(
        scores[0],
        run=name,
        seed=None,
        value=sum(valid) / len(valid) if all_valid else None,
        interval=Interval(min(valid), max(valid)) if all_valid else None,
        n=len(scores),
        notes=(*common, *single, *notes),
        units=SamplingUnits(IntervalKind(trainings=True), len(scores)) if all_valid else None,
    )
