"""The tables of docs/findings.md, from the scores of trainings.

    python benchmarks/findings.py STUDY SCORES.csv [--start START.csv ...] [--pool avg]
    python benchmarks/findings.py shift SCORES.csv ...

STUDY is the name or file of a study, and SCORES.csv what `layerprobe study STUDY --scores SCORES.csv` wrote; START.csv
has further layers at epoch 0, of runs of 0 epochs with the same seeds. For each cell of the study, tables in Markdown:
R@1 of each layer on test classes at the first and the last epoch, raw and after the post-processing that is best on
validation classes, where there are some; the change since the first epoch, by epoch; and at the last epoch the
difference from the first cell.

`shift` takes the scores.csv of runs named shift-SEED-TABLE-EPOCH, TABLE as `benchmarks/emoji.py shift` calls it, and
prints R@1 of each layer at the first and the last epoch.

A number is the mean over the trainings of a cell, in percent; in brackets the 95 % interval of this mean, in braces
that of one further training with a class split of its own. Differences are paired by training.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.seeds import further_interval, mean_interval
from layerprobe.system.errors import LayerprobeError
from layerprobe.values.intervals import Interval
from layerprobe.values.keys import NO_REDUCTION, LayerKey
from layerprobe.values.scores import Score, read_scores
from layerprobe.workflow.study.plan import plan_without_data
from layerprobe.workflow.study.study_file import load_study

# Epoch, split, layer and reduction -> R@1 in percent.
Recalls = Mapping[tuple[int, str, LayerKey, str], float]


def recalls(scores: Sequence[Score]) -> dict[str, Recalls]:
    """Run -> its R@1 by cosine."""
    found: dict[str, dict[tuple[int, str, LayerKey, str], float]] = {}
    for score in scores:
        if (score.metric, score.similarity) == ("R@1", "cosine") and score.value is not None:
            key = score.epoch, score.split, score.layer_key, score.reduction
            found.setdefault(score.run, {})[key] = 100 * score.value
    return dict(found)


def with_start(training: Recalls, start: Recalls) -> Recalls:
    """A training with the layers at epoch 0 of a run that was not trained, as far as its network has them.

    Raises:
        ValueError: a number that both have and that differs.
    """
    layers = {layer for _, _, layer, _ in training}
    added = {key: value for key, value in start.items() if key[2] in layers}
    if differing := [key for key, value in added.items() if training.get(key, value) != value]:
        raise ValueError(f"not the start of this training: {differing[0]}")
    return {**added, **training}


@dataclass(frozen=True)
class Trainings:
    """The trainings of a cell, each with its own test classes."""

    each: Sequence[Recalls]

    @property
    def epochs(self) -> list[int]:
        """Those that all trainings have, in order."""
        return sorted(set.intersection(*({epoch for epoch, *_ in one} for one in self.each)))

    def layers(self, pool: str) -> list[LayerKey]:
        """Those of a pool, and vectors, in network order."""
        ends = self.epochs[0], self.epochs[-1]
        first, last = ({key[2]: None for key in self.each[0] if key[0] == epoch} for epoch in ends)
        return [layer for layer in first if layer in last and layer.pool in (pool, "none")]

    def raw(self, layer: LayerKey, epoch: int) -> NDArray[np.float64]:
        """(S,) R@1 on test without post-processing."""
        return np.array([one[epoch, "test", layer, NO_REDUCTION] for one in self.each])

    @property
    def has_validation(self) -> bool:
        """Whether all trainings have validation classes."""
        return all(any(split == "validation" for _, split, *_ in one) for one in self.each)

    def best(self, layer: LayerKey, epoch: int) -> NDArray[np.float64]:
        """(S,) R@1 on test after the post-processing that is best on validation."""
        return np.array([one[epoch, "test", layer, best_reduction(one, layer, epoch)] for one in self.each])


def best_reduction(training: Recalls, layer: LayerKey, epoch: int) -> str:
    """The reduction of a layer, or none, with the highest R@1 on validation; of equal ones the first."""
    known = {key[3]: value for key, value in training.items() if key[:3] == (epoch, "validation", layer)}
    return max(known, key=known.__getitem__)


def shown(each: NDArray[np.float64], *, sign: bool = False, further: bool = False) -> str:
    """The mean of trainings with its interval, and that of a further training."""
    form = "{:+.1f}" if sign else "{:.1f}"
    text = form.format(each.mean())
    if (interval := mean_interval(each)) is not None:
        text += f" [{_ends(interval, form)}]"
    if further and (interval := further_interval(each)) is not None:
        text += f" {{{_ends(interval, form)}}}"
    return text


def _ends(interval: Interval, form: str) -> str:
    return f"{form.format(interval.low)}, {form.format(interval.high)}"


def by_layer(trainings: Trainings, pool: str) -> list[list[str]]:
    """Each layer before and after, raw and at its best post-processing, and the last epoch against the last layer."""
    first, last = trainings.epochs[0], trainings.epochs[-1]
    layers = trainings.layers(pool)
    embedding = layers[-1]
    rows = [[f"layer@{pool}", f"epoch {first}", f"epoch {last}", "change", "minus embedding"]]
    if trainings.has_validation:
        rows[0] += [f"best, {first}", f"best, {last}", "minus embedding, best"]
    for layer in layers:

        def less(of: Callable[[LayerKey, int], NDArray[np.float64]], layer: LayerKey = layer) -> str:
            values = of(layer, last) - of(embedding, last)
            return "-" if layer == embedding else shown(values, sign=True, further=True)

        before, after = trainings.raw(layer, first), trainings.raw(layer, last)
        cells = [shown(before), shown(after), shown(after - before, sign=True, further=True), less(trainings.raw)]
        if trainings.has_validation:
            cells += [shown(trainings.best(layer, first)), shown(trainings.best(layer, last)), less(trainings.best)]
        rows.append([f"`{layer.layer}`", *cells])
    return rows


def between(trainings: Trainings, other: Trainings, pool: str) -> list[list[str]]:
    """At the last epoch, each layer less that of another cell, and less the same difference of the last layer."""
    last = trainings.epochs[-1]
    layers = [layer for layer in trainings.layers(pool) if layer in other.layers(pool)]
    rows = [[f"layer@{pool}", "difference", f"less that of `{layers[-1].layer}`"]]
    changes = {layer: trainings.raw(layer, last) - other.raw(layer, last) for layer in layers}
    for layer, change in changes.items():
        lead = change - changes[layers[-1]]
        own = layer == layers[-1]
        rows.append(
            [f"`{layer.layer}`", shown(change, sign=True, further=True), "-" if own else shown(lead, sign=True)]
        )
    return rows


def by_shift(scores: Sequence[Score]) -> list[list[str]]:
    """R@1 of each table of a shift, by layer: means over the seeds at the first and the last epoch."""
    found: dict[tuple[str, LayerKey], dict[int, dict[int, float]]] = {}
    for run, own in recalls([score for score in scores if score.split == "test"]).items():
        name = re.fullmatch(r"shift-(\d+)-(.+)-(\d+)", run)
        if name is None:
            raise SystemExit(f"findings.py: {run} is not named shift-SEED-TABLE-EPOCH")
        for (_, _, layer, reduction), value in own.items():
            if reduction == NO_REDUCTION:
                epochs = found.setdefault((name[2], layer), {})
                epochs.setdefault(int(name[3]), {})[int(name[1])] = value
    rows = [["queries", "layer", "before", "after", "change"]]
    for (table, layer), epochs in found.items():
        seeds = sorted(set.intersection(*(set(values) for values in epochs.values())))
        first, last = (np.array([epochs[epoch][seed] for seed in seeds]) for epoch in (min(epochs), max(epochs)))
        rows.append(
            [table, f"`{layer.layer}`", shown(first), shown(last), shown(last - first, sign=True, further=True)]
        )
    return rows


def by_epoch(trainings: Trainings, pool: str) -> list[list[str]]:
    """The change of each layer's R@1 since the first epoch."""
    first, *later = trainings.epochs
    rows = [[f"layer@{pool}", f"epoch {first}", *(f"{epoch}" for epoch in later)]]
    for layer in trainings.layers(pool):
        if any((epoch, "test", layer, NO_REDUCTION) not in trainings.each[0] for epoch in later):
            continue
        start = trainings.raw(layer, first)
        changes = [shown(trainings.raw(layer, epoch) - start, sign=True) for epoch in later]
        rows.append([f"`{layer.layer}`", f"{start.mean():.1f}", *changes])
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its heading."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The tables of docs/findings.md, from the scores of trainings.")
    parser.add_argument("study", metavar="STUDY", help="a study, or `shift`")
    parser.add_argument("scores", type=Path, nargs="+", metavar="SCORES.csv")
    parser.add_argument("--start", type=Path, nargs="+", default=[], metavar="START.csv")
    parser.add_argument("--pool", default="avg")
    arguments = parser.parse_args()
    scores = [score for path in arguments.scores for score in read_scores(path)]
    if arguments.study == "shift":
        print(markdown(by_shift(scores)))
        return
    found, untrained = recalls(scores), [score for path in arguments.start for score in read_scores(path)]
    seeds = {score.run: score.seed for score in [*scores, *untrained]}
    start = {seeds[run]: own for run, own in recalls(untrained).items()}
    found = {run: with_start(own, start.get(seeds[run], {})) for run, own in found.items()}
    first: Trainings | None = None
    for cell in plan_without_data(load_study(arguments.study), Path("cache"), "cpu")[0]:
        if missing := [training.run for training in cell.trainings if training.run not in found]:
            print(f"\n### {cell}: without {', '.join(missing)}")
            continue
        trainings = Trainings([found[training.run] for training in cell.trainings])
        print(f"\n### {cell}: {len(trainings.each)} trainings")
        print(f"\n{markdown(by_layer(trainings, arguments.pool))}")
        print(f"\n{markdown(by_epoch(trainings, arguments.pool))}")
        if first is not None:
            print(f"\n{markdown(between(trainings, first, arguments.pool))}")
        first = first or trainings


if __name__ == "__main__":
    try:
        main()
    except LayerprobeError as error:
        raise SystemExit(f"findings.py: {error}") from error
