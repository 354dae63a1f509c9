"""The tables of docs/results/findings.md, from the scores of trainings.

    python benchmarks/findings.py STUDY SCORES.csv [--start START.csv ...] [--pool avg]
    python benchmarks/findings.py shift SCORES.csv ...

STUDY is the name or file of a study, and SCORES.csv what `layerprobe study STUDY --scores SCORES.csv` wrote; START.csv
has further layers at epoch 0, of runs of 0 epochs with the same seeds. For each cell of the study, tables in Markdown:
R@1 of each layer on test classes at the first and the last epoch, raw and after the post-processing that is best on
validation classes, where there are some; at the last epoch the layers partially whitened and whitened to 128
dimensions; the change since the first epoch, by epoch; and at the last epoch the difference from the first cell.

`shift` takes the scores.csv of runs named shift-SEED-TABLE-EPOCH, TABLE as `benchmarks/emoji.py shift` calls it, and
prints R@1 of each layer at the first and the last epoch.

A number is the mean over the trainings of a cell, in percent; in brackets the 95 % interval of this mean, in braces
that of a new run with a class split of its own. Differences are paired by training.
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
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey
from layerprobe.values.scores import Score, read_scores
from layerprobe.workflow.study.plan import plan_without_data
from layerprobe.workflow.study.study_file import load_study

PARTIALLY_WHITENED, WHITENED = "l2+whiten:128:0.5+l2", "l2+whiten:128:1+l2"

# Epoch, split, layer and post-processing -> R@1 in percent.
Recalls = Mapping[tuple[int, str, LayerKey, str], float]


def recalls(scores: Sequence[Score]) -> dict[str, Recalls]:
    """Run -> its R@1 by cosine."""
    found: dict[str, dict[tuple[int, str, LayerKey, str], float]] = {}
    for score in scores:
        if (score.metric, score.ranked.similarity) == ("R@1", "cosine") and score.value is not None:
            key = score.epoch, score.split, score.ranked.layer, score.ranked.post_processing
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
    """The trainings of a cell, each with its own test classes, and the runs whose scores are not there."""

    each: Sequence[Recalls]
    missing: Sequence[str] = ()

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
        return self.post_processed(layer, epoch, NO_POST_PROCESSING)

    def post_processed(self, layer: LayerKey, epoch: int, post_processing: str) -> NDArray[np.float64]:
        """(S,) R@1 on test after post-processing."""
        return np.array([one[epoch, "test", layer, post_processing] for one in self.each])

    @property
    def has_validation(self) -> bool:
        """Whether all trainings have validation classes."""
        return all(any(split == "validation" for _, split, *_ in one) for one in self.each)

    def best(self, layer: LayerKey, epoch: int) -> NDArray[np.float64]:
        """(S,) R@1 on test after the post-processing that is best on validation."""
        return np.array([one[epoch, "test", layer, best_post_processing(one, layer, epoch)] for one in self.each])


def best_post_processing(training: Recalls, layer: LayerKey, epoch: int) -> str:
    """The post-processing of a layer, or none, with the highest R@1 on validation; of equal ones the first."""
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


def shift_recalls(scores: Sequence[Score]) -> dict[tuple[str, str], dict[int, NDArray[np.float64]]]:
    """Table of a shift and layer -> epoch -> (S,) R@1 on test without post-processing."""
    values: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for run, recall in recalls([score for score in scores if score.split == "test"]).items():
        name = re.fullmatch(r"shift-(\d+)-(.+)-(\d+)", run)
        if name is None:
            raise SystemExit(f"findings.py: {run} is not named shift-SEED-TABLE-EPOCH")
        for (_, _, layer, post_processing), value in recall.items():
            if post_processing == NO_POST_PROCESSING:
                epochs = values.setdefault((name[2], layer.layer), {})
                epochs.setdefault(int(name[3]), {})[int(name[1])] = value
    seeds = {key: sorted(set.intersection(*map(set, epochs.values()))) for key, epochs in values.items()}
    return {
        key: {epoch: np.array([by_seed[seed] for seed in seeds[key]]) for epoch, by_seed in sorted(epochs.items())}
        for key, epochs in values.items()
    }


def by_shift(scores: Sequence[Score]) -> list[list[str]]:
    """R@1 of each table of a shift, by layer: means over the seeds at the first and the last epoch."""
    rows = [["queries", "layer", "before", "after", "change"]]
    for (table, layer), epochs in shift_recalls(scores).items():
        first, *_, last = epochs.values()
        rows.append([table, f"`{layer}`", shown(first), shown(last), shown(last - first, sign=True, further=True)])
    return rows


def by_share(shares: Mapping[str, Trainings], pool: str) -> list[list[str]]:
    """R@1 after training on each share of the classes, in ascending order, and the last share less the first."""
    least, *_, most = shares.values()
    start, end = least.epochs[0], least.epochs[-1]
    smallest, *_, largest = shares
    layers = least.layers(pool)
    difference = f"{largest.removesuffix(' %')} minus {smallest}"
    rows = [[f"layer@{pool}", f"epoch {start}", *shares, difference, f"less that of `{layers[-1].layer}`"]]
    gains = {layer: most.raw(layer, end) - least.raw(layer, end) for layer in layers}
    for layer, gain in gains.items():
        less = "-" if layer == layers[-1] else shown(gain - gains[layers[-1]], sign=True)
        levels = [shown(trainings.raw(layer, end)) for trainings in shares.values()]
        before = shown(least.raw(layer, start))
        rows.append([f"`{layer.layer}`", before, *levels, shown(gain, sign=True, further=True), less])
    return rows


def at_equal_dimension(trainings: Trainings, pool: str, post_processing: str) -> list[list[str]]:
    """Each layer at the last epoch after post-processing, less the last layer after it, and less the last layer raw."""
    last, embedding = trainings.epochs[-1], trainings.layers(pool)[-1]
    rows = [[f"layer@{pool}", post_processing, f"minus `{embedding.layer}`", f"minus `{embedding.layer}`, raw"]]
    for layer in trainings.layers(pool):
        if all((last, "test", layer, post_processing) in one for one in trainings.each):
            values = trainings.post_processed(layer, last, post_processing)
            less = shown(values - trainings.post_processed(embedding, last, post_processing), sign=True, further=True)
            over_raw = shown(values - trainings.raw(embedding, last), sign=True, further=True)
            rows.append([f"`{layer.layer}`", shown(values), "-" if layer == embedding else less, over_raw])
    return rows


def by_epoch(trainings: Trainings, pool: str) -> list[list[str]]:
    """The change of each layer's R@1 since the first epoch."""
    first, *later = trainings.epochs
    rows = [[f"layer@{pool}", f"epoch {first}", *(f"{epoch}" for epoch in later)]]
    for layer in trainings.layers(pool):
        if any((epoch, "test", layer, NO_POST_PROCESSING) not in trainings.each[0] for epoch in later):
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


def cells_of(study: str, scores: Sequence[Score], start: Sequence[Score] = ()) -> dict[str, Trainings]:
    """Cell of a study -> its trainings, with further layers at epoch 0."""
    seeds = {score.run: score.seed for score in [*scores, *start]}
    untrained = {seeds[run]: recall for run, recall in recalls(start).items()}
    trained = {run: with_start(recall, untrained.get(seeds[run], {})) for run, recall in recalls(scores).items()}
    cells = {}
    for cell in plan_without_data(load_study(study), Path("cache"))[0]:
        runs = [training.run for training in cell.trainings]
        cells[str(cell)] = Trainings(
            [trained[run] for run in runs if run in trained], [run for run in runs if run not in trained]
        )
    return cells


def tables_of(study: str, scores: Sequence[Score], start: Sequence[Score] = (), pool: str = "avg") -> str:
    """What the command prints: a heading and the tables of each cell of a study, or the table of the shift."""
    if study == "shift":
        return markdown(by_shift(scores))
    parts, first = [], None
    for cell, trainings in cells_of(study, scores, start).items():
        if trainings.missing:
            parts.append(f"### {cell}: without {', '.join(trainings.missing)}")
            continue
        parts += [f"### {cell}: {len(trainings.each)} trainings", markdown(by_layer(trainings, pool))]
        for post_processing in (PARTIALLY_WHITENED, WHITENED):
            if len(rows := at_equal_dimension(trainings, pool, post_processing)) > 1:
                parts.append(markdown(rows))
        parts.append(markdown(by_epoch(trainings, pool)))
        if first is not None:
            parts.append(markdown(between(trainings, first, pool)))
        first = first or trainings
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="The tables of the findings, from the scores of trainings.")
    parser.add_argument("study", metavar="STUDY", help="a study, or `shift`")
    parser.add_argument("scores", type=Path, nargs="+", metavar="SCORES.csv")
    parser.add_argument("--start", type=Path, nargs="+", default=[], metavar="START.csv")
    parser.add_argument("--pool", default="avg")
    arguments = parser.parse_args()
    scores = [score for path in arguments.scores for score in read_scores(path)]
    start = [score for path in arguments.start for score in read_scores(path)]
    print(tables_of(arguments.study, scores, start, arguments.pool))


if __name__ == "__main__":
    try:
        main()
    except LayerprobeError as error:
        raise SystemExit(f"findings.py: {error}") from error
