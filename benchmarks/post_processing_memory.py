"""Memory and time of reducing a stored layer of Stanford Online Products' size, and of ranking what comes out.

    python benchmarks/post_processing_memory.py [--folder DIR] [--rows N] [--dim D] [--no-ranks] [CHAIN ...]

Writes made-up features of 59,551 training and 60,502 test images, 2,048 numbers each (1 GB), as feature files. For each
chain (by default `l2+pca:512+l2` and `l2+whiten:512:0.5+l2`) a process of its own fits it on the training features,
reduces the test features and ranks them, all in the way in which `probe` does it. It prints the seconds of each step
and the process's peak memory: all that it has held since it began, interpreter and torch included. Needs Linux.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from layerprobe import store
from layerprobe.store.features import FeatureArray
from layerprobe.values.layers import LayerKey

LAYER = LayerKey("layer4.3", "avg")
ROWS, TRAIN_SHARE, CLASS_SIZE = 60_502, 59_551 / 60_502, 5.3
CHAINS = ["l2+pca:512+l2", "l2+whiten:512:0.5+l2"]
LIMIT = 2e9  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory and time of reducing a stored layer.")
    parser.add_argument("chains", nargs="*", default=CHAINS, metavar="CHAIN")
    parser.add_argument("--folder", type=Path, help="where the features are written (default: the temporary folder)")
    parser.add_argument("--rows", type=int, default=ROWS, help="test images")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--no-ranks", action="store_true", help="stop when the features are post-processed")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.chains[0], arguments.measure, ranked=not arguments.no_ranks)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        write(Path(folder) / "train.h5", round(arguments.rows * TRAIN_SHARE), arguments.dim, seed=1)
        write(Path(folder) / "test.h5", arguments.rows, arguments.dim, seed=2)
        for chain in arguments.chains:
            ranks = ["--no-ranks"] if arguments.no_ranks else []
            subprocess.run([sys.executable, __file__, chain, "--measure", folder, *ranks], check=True)


def write(path: Path, rows: int, dim: int, *, seed: int) -> None:
    """Class means and noise around a common mean, the deviation of direction i falling as i^(-1/2)."""
    random = np.random.default_rng(seed)
    labels = random.integers(round(rows / CLASS_SIZE), size=rows)
    means = random.standard_normal((labels.max() + 1, dim), dtype=np.float32)
    deviations = np.arange(1, dim + 1, dtype=np.float32) ** -0.5

    def batches() -> Iterator[dict[LayerKey, FeatureArray]]:
        for start in range(0, rows, 1024):
            part = labels[start : start + 1024]
            noise = random.standard_normal((len(part), dim), dtype=np.float32)
            yield {LAYER: (means[part] + 1.5 * noise) * deviations + 0.5}

    key = store.FeatureKey("made-up", 0, path.stem, "none", "none", "none")
    images = store.Rows(labels, [str(i) for i in range(rows)])
    store.write_features(path, key, images, store.Columns({LAYER: dim}, "cpu", 1024), batches())


def measure(text: str, folder: Path, *, ranked: bool) -> None:
    import torch

    from layerprobe import nearest_positive_ranks
    from layerprobe.post_processing.applying import Blocks, process_blocks
    from layerprobe.post_processing.chain import parse_chain

    cpu, before, clock = torch.device("cpu"), peak(), Clock()
    with store.open_features(folder / "train.h5", LAYER) as train:
        post_process = parse_chain(text).fit(Blocks(train, cpu), train.shape[1], seed=0)
    print(f"{text}: fitted on {train.shape[0]:,} x {train.shape[1]:,} {clock}, peak {peak():,.0f} MB")
    with store.open_features(folder / "test.h5", LAYER) as test:
        values = process_blocks(Blocks(test, cpu), post_process, test.shape[0])
    print(f"  {values.shape[0]:,} post-processed to {values.shape[1]} numbers {clock}, peak {peak():,.0f} MB")
    if ranked:
        ranks = nearest_positive_ranks(values, store.read_feature_head(folder / "test.h5").rows[0])
        print(f"  ranked {clock}, R@1 {ranks.recall(1):.4f}, peak {peak():,.0f} MB")
    print(f"  limit {LIMIT / 1e6:,.0f} MB; {before:,.0f} MB before the first feature was read", flush=True)


def peak() -> float:
    """Megabytes, of 10^6 bytes, that this process has held at most.

    From Linux's /proc: the peak of `getrusage` begins with that of the process that started this one.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else float("nan")


class Clock:
    """Says the time since it was last asked."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __str__(self) -> str:
        wall, cpu = time.perf_counter(), time.process_time()
        text = f"in {wall - self._wall:.1f} s ({cpu - self._cpu:.1f} s CPU)"
        self._wall, self._cpu = wall, cpu
        return text


if __name__ == "__main__":
    main()
