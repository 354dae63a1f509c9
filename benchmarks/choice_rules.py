"""Rules to choose a layer, side by side on trained networks: regret, stated and true loss, bytes.

    python benchmarks/choice_rules.py RUN [RUN ...] [--draws 40] [--classes 20] [--csv FILE]

RUN is the folder of a run whose train and test features of its last epoch are stored (`layerprobe probe`). Candidates
are its layers raw and partially whitened to 64 and 128 dimensions, fitted on train; once all of them, once those of the
last four layers. Each draw divides the test classes: `--classes` of them are chosen on, searched among themselves, the
others are the test gallery.

The rules: the former one, the cheapest candidate at most half a point below the best mean; the best mean, of equal ones
the cheapest; the present one, `pick`. Printed for each run, in points: the mean regret of each rule, its best on test
less the chosen one; of the present rule the mean stated loss, the mean upper bound, how often it holds, how often a
choice is conclusive (within 1 point) and how often wrongly. Last the means over the runs, with the bytes of an image.
`docs_table` makes the table of docs/results/choice.md of the files that `--csv` writes.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.post_processing.applying import Blocks, process_blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.statistics.choice import pick, resample_choice
from layerprobe.statistics.units import UnitSums
from layerprobe.statistics.verdict import growth_of_differences, judge

Array = NDArray[np.float64]
DIMENSIONS = {f"l2+whiten:{size}:0.5+l2": size for size in (64, 128)}
WITHIN, LAST = 0.01, 4
RULES = ("former", "best mean", "present")
COLUMNS = ("former", "best mean", "present", "stated", "max loss", "holds %", "conclusive %", "wrongly %")


@dataclass(frozen=True, eq=False)
class Candidate:
    """A layer with its post-processing.

    Args:
        similarities: (N, N) cosines of the test images; -inf of an image with itself.
        cost: bytes of an image, then the place of the layer, then the length of the chain.
    """

    place: int
    raw: bool
    similarities: Array
    cost: tuple[int, ...]


def candidates_of(run: Path) -> tuple[list[Candidate], NDArray[np.int64]]:
    """The candidates of a run, and (N,) the classes of its test images."""
    test = max((run / "features").glob("epoch-*.test.h5"))
    train = test.with_name(test.name.replace("test", "train"))
    cpu, made = torch.device("cpu"), []
    for place, (layer, dim) in enumerate(store.read_feature_head(test).dims.items()):
        features, fitted_on = store.read_features(test, layer), store.read_features(train, layer)
        for text in ("none", *DIMENSIONS):
            chain, size = parse_chain(text), DIMENSIONS.get(text, dim)
            if size > min(dim, len(fitted_on) - 1):
                continue
            values = features.astype(np.float64)
            if text != "none":
                fit = chain.fit(Blocks(fitted_on, cpu), dim, seed=0)
                values = np.asarray(process_blocks(Blocks(features, cpu), fit, len(features)), np.float64)
            values /= np.linalg.norm(values, axis=1, keepdims=True)
            similarities = values @ values.T
            np.fill_diagonal(similarities, -np.inf)
            made.append(Candidate(place, text == "none", similarities, (4 * size, place, len(chain.parts))))
    return made, store.read_feature_head(test).rows[0].astype(np.int64)


def closer_of(
    candidate: Candidate, labels: NDArray[np.int64], classes: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The negatives closer than the nearest positive of each image of some classes, and its class."""
    rows = np.flatnonzero(np.isin(labels, classes))
    values, same = candidate.similarities[np.ix_(rows, rows)], labels[rows, None] == labels[None, rows]
    nearest = np.where(same, values, -np.inf).max(1, keepdims=True)
    return (np.where(same, -np.inf, values) > nearest).sum(1), labels[rows]


def average_precisions_of(candidate: Candidate, labels: NDArray[np.int64], classes: Array) -> Array:
    """(U,) sums of MAP@R over the images of each class, searched among these classes."""
    rows = np.flatnonzero(np.isin(labels, classes))
    values, same = candidate.similarities[np.ix_(rows, rows)], labels[rows, None] == labels[None, rows]
    positives = same.sum(1) - 1
    depth = int(positives.max())
    nearest = np.argsort(-values, axis=1, kind="stable")[:, :depth]
    right = np.take_along_axis(same, nearest, 1) & (np.arange(depth) < positives[:, None])
    precisions = np.cumsum(right, 1) / np.arange(1, depth + 1)
    return by_class((precisions * right).sum(1) / positives, labels[rows])


def by_class(values: NDArray[np.generic], labels: NDArray[np.int64]) -> Array:
    """(U,) sums of the values of each class."""
    sums: Array = np.bincount(np.unique(labels, return_inverse=True)[1], values).astype(np.float64)
    return sums


@dataclass(frozen=True, eq=False)
class Draw:
    """The values of C candidates where classes are chosen on, and their recall on the others.

    Args:
        hits: (C, U) of the classes that are chosen on.
        counts: (C, U)
        misses_among_half: (C,) miss rates among half of the negatives.
        truth: (C,) R@1 on the other classes.
        average_precisions: index of a candidate -> (U,) of MAP@R.
        classes: chosen on, and tested.
    """

    hits: Array
    counts: Array
    misses_among_half: Array
    truth: Array
    average_precisions: Callable[[int], Array]
    classes: tuple[int, int]

    @classmethod
    def of(cls, candidates: Sequence[Candidate], labels: NDArray[np.int64], chosen_on: Array, test: Array) -> Draw:
        """A draw of the classes of a run."""
        closer = [closer_of(candidate, labels, chosen_on) for candidate in candidates]
        hits = np.array([by_class(count == 0, names) for count, names in closer])
        counts = np.tile(by_class(np.ones(len(closer[0][1])), closer[0][1]), (len(candidates), 1))
        among_half = np.array([(1 - 0.5 ** count.astype(np.float64)).mean() for count, _ in closer])
        truth = np.array([(closer_of(candidate, labels, test)[0] == 0).mean() for candidate in candidates])

        def average_precisions(place: int) -> Array:
            return average_precisions_of(candidates[place], labels, chosen_on)

        return cls(hits, counts, among_half, truth, average_precisions, (len(chosen_on), len(test)))


def row_of(candidates: Sequence[Candidate], places: Sequence[int], draw: Draw, seed: int) -> Array:
    """Regrets of the rules among some candidates, what the present one states, and the bytes of the rules."""
    chosen = list(places)
    cells, truth = UnitSums(draw.hits[chosen], draw.counts[chosen]), draw.truth[chosen]
    costs, raw = [candidates[place].cost for place in chosen], [candidates[place].raw for place in chosen]
    misses, among_half = 1 - float(cells.means.mean()), float(draw.misses_among_half[chosen].mean())
    growth = growth_of_differences(misses, among_half, *draw.classes) or 1.0
    near, best = (
        np.flatnonzero(cells.means >= cells.means.max() - slack - 1e-9).tolist() for slack in (WITHIN / 2, 0.0)
    )

    def finer(near: Sequence[int]) -> UnitSums:
        sums = np.array([draw.average_precisions(chosen[place]) for place in near])
        return UnitSums(sums, cells.counts[: len(sums)])

    picked = pick(cells, costs, raw, finer)
    picks = [min(near, key=costs.__getitem__), min(best, key=costs.__getitem__), picked]
    judged = judge(cells, picked, within=WITHIN, growth=growth, seed=seed)
    lost, conclusive = truth.max() - truth[picks], judged.verdict != "inconclusive"
    max_loss = judged.max_loss or 0.0
    stated = growth * resample_choice(cells, costs, raw, seed=seed)[0]
    told = [stated, max_loss, float(lost[-1] <= max_loss), float(conclusive), float(conclusive and lost[-1] > WITHIN)]
    return np.array([*(100 * lost), *(100 * value for value in told), *(costs[place][0] for place in picks)])


def docs_table(files: Mapping[str, Path]) -> str:
    """Means over the runs of each file, in Markdown.

    Args:
        files: what the runs are -> the file that `--csv` wrote of them.
    """
    head = ("networks", "candidates", "best mean", "choose", "expected loss", "upper bound", "bound holds")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for called, file in files.items():
        with file.open(newline="", encoding="utf-8") as opened:
            rows = list(csv.reader(opened))[1:]
        for name, shown in (("all", "seven layers"), ("last four", "last four")):
            values = [np.array(row[2:], np.float64) for row in rows if row[1] == name]
            lines.append(_docs_row(f"{called} ({len(values)})", shown, np.mean(values, 0)))
    return "\n".join(lines)


def _docs_row(called: str, name: str, means: Array) -> str:
    points = [f"{value:.2f}" for value in means[1:5]]
    return f"| {' | '.join([called, name, *points, f'{means[5]:.0f} %'])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Rules to choose a layer on trained networks.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--csv", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    print(f"{'':34}" + "".join(f"{name:>11}" for name in COLUMNS))
    rows: dict[str, list[Array]] = {}
    lines = [",".join(["run", "candidates", *COLUMNS, *(f"bytes {rule}" for rule in RULES)])]
    for run in arguments.runs:
        candidates, labels = candidates_of(run)
        rng, classes = np.random.default_rng(sum(map(ord, run.name))), np.unique(labels)
        last = max(candidate.place for candidate in candidates) - LAST
        late = [place for place, candidate in enumerate(candidates) if candidate.place > last]
        sets = {"all": list(range(len(candidates))), "last four": late}
        told: dict[str, list[Array]] = {name: [] for name in sets}
        for seed in range(arguments.draws):
            order = rng.permutation(classes)
            draw = Draw.of(candidates, labels, order[: arguments.classes], order[arguments.classes :])
            for name, places in sets.items():
                told[name].append(row_of(candidates, places, draw, seed))
        for name, values in told.items():
            means = np.mean(values, 0)
            rows.setdefault(name, []).append(means)
            lines.append(",".join([run.name, name, *(f"{value:.4f}" for value in means)]))
            print(f"{run.name[:22]:24}{name:10}" + "".join(f"{value:11.2f}" for value in means[:8]), flush=True)
    if arguments.csv is not None:
        arguments.csv.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, means_of in rows.items():
        means = np.mean(means_of, 0)
        print(f"{'mean of the runs':24}{name:10}" + "".join(f"{value:11.2f}" for value in means[:8]))
        print(f"{'':24}{'bytes':10}" + "".join(f"{value:11.0f}" for value in means[8:]))


if __name__ == "__main__":
    main()
