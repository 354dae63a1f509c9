"""Whether `choose` is right to try maps that are fitted with classes: regret with and without them.

    python benchmarks/learned_choice.py RUN [RUN ...] [--layers L,...] [--classes 10,20,58] [--draws 20] [--csv FILE]
        [--frozen]

RUN is the folder of a run whose train and test features of its last epoch are stored (`layerprobe probe`). Each draw
divides the test classes: some are chosen on, the others are the test gallery. Of a trained network post-processing is
fitted on the train classes. With `--frozen`, of a network that has seen none of these classes, they are fitted on the
classes that are chosen on, within folds.

`layerprobe.choose` chooses twice, among raw, partially whitened and learned candidates, and among those without labels.
Printed, means over the draws, in points of R@1 on the test classes: the regret of both choices, the best candidate of
all on test less the preferred one; the gain of the first over the second; of the first the stated loss, the "at most"
for that gallery, how often it holds; how often the preferred candidate is learned, what the text says it gains; and
the seconds of both.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from layerprobe import choose, store
from layerprobe.post_processing import supervised

COLUMNS = ("regret", "without", "gain", "stated", "at most", "holds %", "learned %", "said gain", "s", "s without")
Layers = Mapping[str, NDArray[np.float32]]


def read_split(run: Path, split: str, layers: Sequence[str]) -> tuple[Layers, NDArray[np.int64]]:
    """The features of a split at the last epoch, by layer, and (N,) its classes."""
    file = max((run / "features").glob(f"epoch-*.{split}.h5"))
    head = store.read_feature_head(file)
    wanted = [key for key in head.dims if not layers or key.layer in layers]
    return {str(key): store.read_features(file, key) for key in wanted}, head.rows[0].astype(np.int64)


def row_of(layers: Layers, labels: NDArray[np.int64], splits: NDArray[np.str_], *, frozen: bool) -> list[float]:
    """The columns of one draw."""
    start = time.process_time()
    choice = choose(layers, labels, splits=splits, seen=not frozen)
    middle = time.process_time()
    with mock.patch.object(supervised, "FEWEST_CLASSES", len(labels)):
        without = choose(layers, labels, splits=splits, seen=not frozen)
    end = time.process_time()
    values = [x.value for x in (choice.best_on_test, choice.preferred_test, without.preferred_test) if x is not None]
    best, preferred, plain = (100 * (np.nan if value is None else value) for value in values)
    regret = best - preferred
    said = np.nan if choice.labels is None or choice.labels.gain is None else 100 * choice.labels.gain.difference
    stated = np.nan if choice.expected_loss is None else choice.expected_loss
    max_loss = np.nan if choice.max_loss is None else choice.max_loss
    learned = float("lwhiten" in choice.preferred.post_processing)
    holds = np.nan if choice.max_loss is None else 100.0 * (regret <= choice.max_loss)
    return [regret, best - plain, preferred - plain, stated, max_loss, holds, 100 * learned, said,
            middle - start, end - middle]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Regret of choose with and without learned maps.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--layers", default="", metavar="L,...")
    parser.add_argument("--classes", default="10,20,58", metavar="C,...")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--frozen", action="store_true")
    arguments = parser.parse_args()
    names = arguments.layers.split(",") if arguments.layers else []
    print(f"{'run':24}{'classes':>8}" + "".join(f"{name:>11}" for name in COLUMNS))
    lines = []
    for run in arguments.runs:
        test, test_labels = read_split(run, "test", names)
        train, train_labels = read_split(run, "train", names)
        rng = np.random.default_rng(sum(map(ord, run.name)))
        for count in map(int, arguments.classes.split(",")):
            rows = []
            for _ in range(arguments.draws):
                order = rng.permutation(np.unique(test_labels))
                chosen_on = np.isin(test_labels, order[:count])
                labels = test_labels.copy()
                splits = np.where(chosen_on, "train" if arguments.frozen else "validation", "test")
                layers = test
                if not arguments.frozen:
                    layers = {name: np.concatenate([train[name], values]) for name, values in test.items()}
                    labels = np.concatenate([train_labels + labels.max() + 1, labels])
                    splits = np.concatenate([np.full(len(train_labels), "train"), splits])
                rows.append(row_of(layers, labels, splits, frozen=arguments.frozen))
            means = np.nanmean(np.array(rows), 0)
            lines.append([run.name, count, *(f"{value:.4f}" for value in means)])
            print(f"{run.name[:23]:24}{count:8}" + "".join(f"{value:11.2f}" for value in means), flush=True)
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["run", "classes", *COLUMNS], *lines])


if __name__ == "__main__":
    main()
