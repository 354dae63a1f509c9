"""What intervals cost that are read from stored ranks: ten layers, 30 epochs and 2 splits of CUB's size, 6 values of K.

    python benchmarks/intervals.py [--epochs N] [--queries N] [--classes N]

Writes rank files of random counts to a temporary folder, reads them, and makes the intervals of all cells of a split.
Seconds of the clock, CPU seconds, and the most memory so far. For the size of Stanford Online Products:
`--queries 60502 --classes 11316 --epochs 3`.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import query_values
from layerprobe.statistics.bootstrap import bands, between, differences
from layerprobe.statistics.units import UnitSums, intervals, unit_sums
from layerprobe.store import FeatureKey, RankEntry, RankKey, Rows, read_rank_file, write_ranks
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks

LAYERS, SPLITS, KS = 10, 2, (1, 2, 4, 8, 16, 32)
KEY = RankKey(FeatureKey("run", 0, "test", "weights", "transform", "images"), None, "search", 1e-12)


@contextmanager
def timed(what: str) -> Iterator[None]:
    clock, own = time.perf_counter(), time.process_time()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:<48}{time.perf_counter() - clock:7.2f} s{time.process_time() - own:8.2f} CPU s{peak:8.0f} MiB")


def write(folder: Path, epochs: int, labels: NDArray[np.int64]) -> list[Path]:
    """A rank file for each epoch and split; hits of a class go together."""
    rng, count, paths = np.random.default_rng(0), len(labels), []
    rows = Rows(labels.astype(np.int32), [f"{row}.jpg" for row in range(count)])
    zeros, ones = np.zeros(count, np.int32), np.ones(count, np.int32)
    for epoch in range(epochs):
        for split in range(SPLITS):
            entries = {}
            for layer in range(LAYERS):
                means = rng.exponential(3, labels.max() + 1)[labels]
                closer = (rng.geometric(1 / (1 + means)) - 1).astype(np.int32)
                entries[RankedLayer(LayerKey(f"layer{layer}", "max"), "none", "cosine")] = RankEntry(
                    KEY, Ranks(closer, closer, zeros, ones)
                )
            paths.append(folder / f"{epoch}-{split}.h5")
            write_ranks(paths[-1], rows, entries)
    return paths


def read(paths: list[Path]) -> list[UnitSums]:
    """The sums of each split's cells over the classes: epochs x layers x K of them."""
    found = []
    for split in range(SPLITS):
        parts = []
        for path in paths[split::SPLITS]:
            stored = read_rank_file(path).stored
            values = [query_values(ranks, {}, f"R@{k}") for ranks in stored.ranks.values() for k in KS]
            parts.append(unit_sums(np.array(values), stored.labels))
        found.append(
            UnitSums(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("sums", "counts")))
        )
    return found


def part(cells: UnitSums, places: slice) -> UnitSums:
    return UnitSums(cells.sums[places], cells.counts[places])


def main() -> None:
    parser = argparse.ArgumentParser(description="What intervals cost that are read from stored ranks.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--queries", type=int, default=5924)
    parser.add_argument("--classes", type=int, default=100)
    arguments = parser.parse_args()
    labels = np.arange(arguments.queries) * arguments.classes // arguments.queries
    with tempfile.TemporaryDirectory() as folder:
        with timed(f"write {arguments.epochs * SPLITS} rank files"):
            paths = write(Path(folder), arguments.epochs, labels)
        with timed("read them, and sum over classes"):
            train, test = read(paths)
    with timed(f"intervals of {SPLITS * len(train.sums)} cells"):
        for split in (train, test):
            intervals(split)
    of_r1, first = slice(None, None, len(KS)), slice(0, LAYERS * len(KS), len(KS))
    r1, start = part(test, of_r1), part(test, first)
    with timed(f"gaps of {len(r1.sums)} cells, 10,000 draws"):
        between(part(train, of_r1), r1)
    with timed("a band for the best of the last epoch's layers"):
        bands(part(test, slice(-LAYERS * len(KS), None, len(KS))))
    with timed(f"differences of {LAYERS} layers, 10,000 draws"):
        differences(part(test, slice(-LAYERS * len(KS), None, len(KS))).minus(start))


if __name__ == "__main__":
    main()
