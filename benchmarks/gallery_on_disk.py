"""Exact Recall@K, MAP@R and thresholds of 10,000 queries in 2 million vectors of 256 numbers that stay on disk.

    python benchmarks/gallery_on_disk.py [--folder DIR] [--items N] [--memory MB] [--queries N] [--only NAME,...]

Writes the gallery (2 GB) into a temporary folder, measures it in a process of its own, and prints time and that
process's peak memory, all it has held since it began: interpreter and torch included. For comparison, the products of
all pairs alone in float32, and MAP@R of some queries as it was computed before: every pair in float64, the negatives
of a query among its positives by two binary searches each.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import numpy as np

QUERIES, DIM, CLASSES = 10_000, 256, 20_000
COMPARED, ITEMS = 128, 100_000  # queries and items of the comparisons
RATES = (1e-3, 1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Exact Recall@K in a gallery on disk.")
    parser.add_argument("--folder", type=Path, help="where the gallery is written (default: the temporary folder)")
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--memory", type=int, default=300, help="MB that the search may take")
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--only", default="precision,threshold", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if arguments.measure:
        measure(arguments.measure, arguments.memory * 10**6, arguments.queries, names)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "gallery.h5"
        write(path, arguments.items)
        flags = ["--memory", str(arguments.memory), "--queries", str(arguments.queries), "--only", arguments.only]
        subprocess.run([sys.executable, __file__, "--measure", str(path), *flags], check=True)


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


Search = dict[str, Any]


def measure(path: Path, memory: int, count: int, names: Sequence[str]) -> None:
    """Print CPU time, that of a pair, and the peak memory so far, of each measure."""
    from layerprobe.system.memory import keep_freed_memory

    keep_freed_memory()  # as the command line does
    with h5py.File(path) as file:
        search: Search = {
            "features": file["queries"][:count],
            "labels": file["queries_labels"][:count],
            "gallery": file["features"],
            "gallery_labels": file["features_labels"][()],
            "memory": memory,
        }
        items = file["features"].shape[0]
        print(f"{count:,} queries, gallery {items:,} x {DIM} on disk; {peak():.0f} MB before", flush=True)
        total, alone = 0.0, seconds_of_products(search)
        print(f"products alone: {1e9 * alone:.2f} ns a pair", flush=True)
        for name in names:
            started = time.process_time()
            text = MEASURES[name](search)
            seconds = time.process_time() - started
            total += seconds
            of_pair = seconds / count / items
            ratio = f"{1e9 * of_pair:.2f} ns a pair, {of_pair / alone:.1f} times the products"
            print(f"{name}: {seconds:.1f} s CPU, {ratio}, peak {peak():.0f} MB: {text}", flush=True)
        before = seconds_before(search)
        print(f"all: {total:.1f} s CPU; MAP@R before: {1e9 * before:.0f} ns a pair", flush=True)


def peak() -> float:
    """MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def recall(search: Search) -> str:
    """Recall@K alone."""
    from layerprobe import nearest_positive_ranks

    ranks = nearest_positive_ranks(**search)
    return ", ".join(f"R@{k} {ranks.recall(k):.4f}" for k in (1, 10, 100, 1000))


def precision(search: Search) -> str:
    """MAP@R, R-precision and mAP, and Recall@K, which the same search gives."""
    from layerprobe.metrics.precision import precision_and_ranks
    from layerprobe.ranking import retrieval

    arguments = {key: value for key, value in search.items() if key != "memory"}
    (values, _), ranks = precision_and_ranks(replace(retrieval(**arguments), memory=search["memory"]))
    means = {name: of_queries.mean() for name, of_queries in values.items()}
    means |= {f"R@{k}": ranks.recall(k) for k in (1, 10, 100, 1000)}
    return ", ".join(f"{name} {mean:.4f}" for name, mean in means.items())


def threshold(search: Search) -> str:
    """Thresholds at false accept rates, the pairs that they accept by class, and the equal error rate."""
    from layerprobe.measure.pair_thresholds import AcceptedCounts, locate
    from layerprobe.ranking.all_pairs import all_pairs

    setting = all_pairs(search["features"][:2000], search["labels"][:2000])
    thresholds = locate(setting, RATES).thresholds
    pairs = all_pairs(**search)
    counts = AcceptedCounts(pairs, thresholds)
    equal = locate(pairs, (), counts.count).counts.equal_error_rate()
    accepted = counts.accepted()
    rates = accepted.genuine.sum(1) / accepted.genuine_pairs.sum()
    texts = [f"TAR {true:.4f} at FAR {rate:g}" for rate, true in zip(RATES, rates, strict=True)]
    return ", ".join([*texts, f"EER {equal:.4f}"])


MEASURES = {"recall": recall, "precision": precision, "threshold": threshold}


def seconds_of_products(search: Search) -> float:
    """CPU time of a pair: the products of some tiles in float32."""
    import torch

    rows = torch.from_numpy(search["features"][:1024])
    block = torch.from_numpy(search["gallery"][:1024])
    started = time.process_time()
    for _ in range(50):
        rows @ block.T
    return (time.process_time() - started) / 50 / len(rows) / len(block)


def seconds_before(search: Search) -> float:
    """CPU time of a pair, as MAP@R was computed before."""
    import torch

    queries, items = (
        torch.nn.functional.normalize(torch.from_numpy(rows).double())
        for rows in (search["features"][:COMPARED], search["gallery"][:ITEMS])
    )
    labels, item_labels = (torch.from_numpy(search[key]) for key in ("labels", "gallery_labels"))
    started = time.process_time()
    for rows in torch.arange(len(queries)).split(max(1, 2**20 // len(items))):
        similarities = queries[rows] @ items.T
        same = labels[rows, None] == item_labels[: len(items)]
        levels = similarities.masked_fill(~same, -torch.inf).topk(max(1, int(same.sum(1).max()))).values
        negatives = similarities.masked_fill(same, -torch.inf)
        for bounds in (levels - 1e-12, levels + 1e-12):
            passed = torch.searchsorted(bounds.flip(1).contiguous(), negatives)
            counts = torch.zeros(len(bounds), bounds.shape[1] + 1, dtype=torch.int64)
            counts.scatter_add_(1, passed, torch.ones_like(passed)).flip(1).cumsum(1)
    return (time.process_time() - started) / len(queries) / len(items)


if __name__ == "__main__":
    main()
