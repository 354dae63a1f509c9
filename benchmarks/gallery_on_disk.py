"""Exact Recall@K of 10,000 queries in a gallery of 2 million vectors of 256 numbers that stays on disk.

    python benchmarks/gallery_on_disk.py [--folder DIR] [--items N] [--memory MB]

Writes the gallery (2 GB) into a temporary folder, ranks it in a process of its own, and prints time and that process's
peak memory, all it has held since it began: interpreter and torch included.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import numpy as np

QUERIES, DIM, CLASSES = 10_000, 256, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Exact Recall@K in a gallery on disk.")
    parser.add_argument("--folder", type=Path, help="where the gallery is written (default: the temporary folder)")
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--memory", type=int, default=300, help="MB that the search may take")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments.rank, arguments.memory)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "gallery.h5"
        write(path, arguments.items)
        subprocess.run([sys.executable, __file__, "--rank", str(path), "--memory", str(arguments.memory)], check=True)


def write(path: Path, items: int) -> None:
    """Class means and noise, in random order of classes, as `/features`; the queries beside them."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((CLASSES, DIM), dtype=np.float32)
    with h5py.File(path, "w") as file:
        for name, count in (("queries", QUERIES), ("features", items)):
            labels = rng.integers(CLASSES, size=count)
            file[f"{name}_labels"] = labels
            rows = file.create_dataset(name, (count, DIM), np.float32, chunks=(512, DIM))
            for start in range(0, count, 2**16):
                part = labels[start : start + 2**16]
                noise = rng.standard_normal((len(part), DIM), dtype=np.float32)
                rows[start : start + len(part)] = means[part] + 2.2 * noise


def rank(path: Path, memory: int) -> None:
    from layerprobe import nearest_positive_ranks

    with h5py.File(path) as file:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        wall, cpu = time.perf_counter(), time.process_time()
        ranks = nearest_positive_ranks(
            file["queries"],
            file["queries_labels"][()],
            gallery=file["features"],
            gallery_labels=file["features_labels"][()],
            memory=memory * 10**6,
        )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        shape = file["features"].shape
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    recalls = ", ".join(f"R@{k} {ranks.recall(k):.4f}" for k in (1, 10, 100, 1000))
    print(f"{len(ranks):,} queries, gallery {shape[0]:,} x {shape[1]} on disk: {recalls}")
    print(f"{wall:.1f} s wall, {cpu:.1f} s CPU; peak {peak:.0f} MB, of which {before:.0f} MB before the search")


if __name__ == "__main__":
    main()
