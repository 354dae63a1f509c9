"""k-means against faiss and scikit-learn from the same random rows: CPU seconds a restart, inertia, NMI.

Every cell is a process of its own with one thread, the methods alternating over the repeats; medians of the process CPU
seconds of all restarts together, without imports and without loading. A ratio is peer / layerprobe; the goal is 1.5.
All start from the rows that layerprobe draws for a seed (it draws them inside its clock). faiss.Kmeans makes at most 25
iterations and stops when nothing changes; scikit-learn has its defaults with init=rows, n_init=1; layerprobe goes on to
the fixed point. At a limit the peers' labels are of one assignment more than layerprobe's; those of faiss are searched
for outside its clock. Inertia is reckoned anew in float64 for all, from the labels. MB is what the process's peak grew
by. Features are class means and noise of a falling spectrum from one seed, ReLU-like and L2-normalised.

    python benchmarks/kmeans.py --repeats 5
    python benchmarks/kmeans.py --large
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]
Starts = Mapping[int, Rows]  # seed -> (k, D)


@dataclass(frozen=True)
class Case:
    """What is clustered.

    Args:
        count: N.
        classes: also k.
        restarts: seeds 0, 1 ...
        iterations: for all alike; None for each method's own limit.
    """

    count: int
    classes: int
    restarts: int
    iterations: int | None = None
    dim: int = 512


CASES = {"cub": Case(5_924, 100, 10), "sop": Case(60_502, 11_316, 1, 10)}


def features(case: Case) -> tuple[Rows, Labels]:
    rng = np.random.default_rng(0)
    labels = np.arange(case.count) % case.classes
    spectrum = np.arange(1, case.dim + 1) ** -0.3
    values = 0.3 * rng.standard_normal((case.classes, case.dim))[labels] + rng.standard_normal((case.count, case.dim))
    values = np.maximum(values * spectrum, 0)
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32), labels


def layerprobe(rows: Rows, starts: Starts, case: Case) -> tuple[float, list[tuple[Labels, int]]]:
    import torch

    from layerprobe.metrics.kmeans import kmeans

    torch.set_num_threads(1)
    kmeans(rows[:64], 4, seeds=[0])
    started = time.process_time()
    found = kmeans(rows, case.classes, seeds=list(starts), iterations=case.iterations or 100)
    return time.process_time() - started, [(one.labels, one.iterations) for one in found]


def faiss(rows: Rows, starts: Starts, case: Case) -> tuple[float, list[tuple[Labels, int]]]:
    import faiss

    faiss.omp_set_num_threads(1)
    seconds, found = 0.0, []
    for start in starts.values():
        started = time.process_time()
        # Without the last it would take a sample of 256 rows a cluster.
        clustering = faiss.Kmeans(
            case.dim, case.classes, niter=case.iterations or 25, max_points_per_centroid=case.count
        )
        clustering.train(rows, init_centroids=start)
        seconds += time.process_time() - started
        iterations = 0 if clustering.obj is None else len(clustering.obj)
        found.append((clustering.index.search(rows, 1)[1][:, 0], iterations))
    return seconds, found


def scikit_learn(rows: Rows, starts: Starts, case: Case) -> tuple[float, list[tuple[Labels, int]]]:
    from sklearn.cluster import KMeans

    limits = {} if case.iterations is None else {"max_iter": case.iterations, "tol": 0}
    KMeans(4, init=rows[:4], n_init=1).fit(rows[:64])
    started = time.process_time()
    fits = [KMeans(case.classes, init=start, n_init=1, **limits).fit(rows) for start in starts.values()]
    return time.process_time() - started, [(one.labels_.astype(np.int64), one.n_iter_) for one in fits]


METHODS: Mapping[str, Callable[[Rows, Starts, Case], tuple[float, list[tuple[Labels, int]]]]] = {
    "layerprobe": layerprobe,
    "faiss": faiss,
    "scikit-learn": scikit_learn,
}


def inertia(rows: Rows, labels: Labels) -> float:
    """Sum of the squared distances to the means of the clusters, in float64."""
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    wide = rows[order].astype(np.float64)
    means = np.add.reduceat(wide, starts) / counts[:, None]
    return float(((wide - np.repeat(means, counts, axis=0)) ** 2).sum())


def measure(name: str, method: str, folder: Path) -> dict[str, Any]:
    """One method on one case in this process."""
    from sklearn.metrics import normalized_mutual_info_score

    from layerprobe.metrics.kmeans import initial_rows

    case, rows, labels = CASES[name], np.load(folder / "features.npy"), np.load(folder / "labels.npy")
    starts = {seed: rows[initial_rows(rows, case.classes, seed)] for seed in range(case.restarts)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, found = METHODS[method](rows, starts, case)
    return {
        "cpu": seconds / case.restarts,
        "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e6,
        "iterations": statistics.mean(int(count) for _, count in found),
        "inertia": [inertia(rows, clusters) for clusters, _ in found],
        "nmi": [float(normalized_mutual_info_score(labels, clusters)) for clusters, _ in found],
    }


def in_a_process(name: str, method: str, folder: Path) -> dict[str, Any]:
    """`measure`, in a fresh interpreter."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--cell", name, method, str(folder)],
        env=os.environ | threads | {"OMP_WAIT_POLICY": "passive"},  # spinning waiters would count as CPU time
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    cell: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return cell


def compare(name: str, methods: Sequence[str], repeats: int) -> list[str]:
    """A table of one case."""
    case = CASES[name]
    cells: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    with tempfile.TemporaryDirectory() as folder:
        rows, labels = features(case)
        np.save(f"{folder}/features.npy", rows)
        np.save(f"{folder}/labels.npy", labels)
        for repeat in range(repeats):
            for method in methods[:: -1 if repeat % 2 else 1]:
                cells[method].append(in_a_process(name, method, Path(folder)))
                print(f"  {name} {method} {cells[method][-1]['cpu']:.3f} s", file=sys.stderr)
    limit = "" if case.iterations is None else f", {case.iterations} iterations"
    lines = [
        f"{name}: {case.count:,} x {case.dim}, k = {case.classes:,}, {case.restarts} restart(s){limit}",
        f"  {'':<14}{'CPU s each':>11}{'CPU x':>7}{'iterations':>12}{'MB':>7}"
        f"{'inertia':>11}{'sd':>7}{'NMI':>9}{'sd':>8}",
    ]
    own = statistics.median(cell["cpu"] for cell in cells[methods[0]])
    for method, some in cells.items():
        cpu, last = statistics.median(cell["cpu"] for cell in some), some[-1]
        spread = [statistics.stdev(last[key]) if case.restarts > 1 else 0.0 for key in ("inertia", "nmi")]
        lines.append(
            f"  {method:<14}{cpu:11.4f}{cpu / own:7.2f}{last['iterations']:12.1f}{max(c['mb'] for c in some):7.0f}"
            f"{statistics.mean(last['inertia']):11.2f}{spread[0]:7.2f}{statistics.mean(last['nmi']):9.4f}{spread[1]:8.4f}"
        )
    return lines


def machine() -> str:
    """CPU and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = [flag for flag in ("avx2", "avx512f") if flag in values.get("flags", "").split()]
    installed = {found.metadata["Name"]: found.version for found in metadata.distributions()}
    names = [name for name in ("torch", "faiss-cpu", "faiss-gpu", "scikit-learn", "numpy") if name in installed]
    cpu = f"{values.get('model name', 'unknown CPU')}, family {values.get('cpu family')}, {os.cpu_count()} cores"
    return f"{cpu}, {' '.join(flags)}; " + ", ".join(f"{name} {installed[name]}" for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="the first is 1.00")
    parser.add_argument("--repeats", type=int, help="default: 5, large 1")
    parser.add_argument("--large", action="store_true", help="the size of Stanford Online Products: minutes")
    parser.add_argument("--cell", nargs=3, metavar=("CASE", "METHOD", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        name, method, folder = arguments.cell
        print(json.dumps(measure(name, method, Path(folder))))
        return
    repeats = arguments.repeats or (1 if arguments.large else 5)
    print(f"{machine()}; one thread, medians of {repeats}", flush=True)
    print("\n".join(compare("sop" if arguments.large else "cub", arguments.methods, repeats)))


if __name__ == "__main__":
    main()
