"""Exact Recall@K against the peers: CPU seconds, wall seconds, memory, and whether the numbers agree.

Every cell (a method on a case) is a process of its own: it loads the features, calls the method once on a tiny problem
(imports and set-up), then runs the clock. Methods alternate over the repeats; a ratio is peer / layerprobe of the
medians, where the peer gives R@1 alone at K = 1. MB is the peak of the resident memory over what was held when the
clock started. Features are class means and noise from one seed, of equal variance in all directions or, in the cases
`-trained`, of the spectrum of a trained layer; `--offset` makes them ReLU-like; an .npz has a network's own. Everyone
gets raw float32 and normalises inside the clock. Queries without another item of their class count as misses
everywhere. The goals are those of one thread. Linux only.

    python benchmarks/recall.py --cases cub sop --repeats 3 --threads 1 --json cells.json
    python benchmarks/recall.py --cases cub --peers-from cells.json     # measures layerprobe's own cells alone
    python benchmarks/recall.py --cases layers.npz --avx2
    python benchmarks/recall.py --device cuda

open-metric-learning is optional: it runs where it can be imported (its folder in PYTHONPATH).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recall_methods import CASES, METHODS, Case, Problem, given, read, write

Cell = dict[str, Any]  # case, method, threads, repeat; cpu and wall seconds, mb, recalls of each layer
OURS, AT_ONE = "layerprobe", "layerprobe, K = 1"
NEED_ONE = (AT_ONE, "faiss, K = 1", "pytorch-metric-learning")  # their ratios are to layerprobe's time at K = 1
# Instruction sets of torch, MKL, oneDNN, faiss and OpenBLAS.
LIMITED = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "FAISS_OPT_LEVEL": "avx2",
    "OPENBLAS_CORETYPE": "Haswell",
}
_PACKAGES = (
    "layerprobe",
    "torch",
    "faiss-gpu",
    "faiss-cpu",
    "pytorch-metric-learning",
    "open-metric-learning",
    "scikit-learn",
)


def measure(method: str, folder: Path, ks: Sequence[int]) -> Cell:
    """Runs one method on a folder's features in this process."""
    run, problems = METHODS[method], read(folder)
    tiny = np.random.default_rng(0).standard_normal((256, 16), dtype=np.float32), np.arange(256) % 32
    try:
        run(Problem(*tiny, *(() if problems[0].gallery is None else tiny)), (1, 2))
    except ModuleNotFoundError as error:
        return {"missing": error.name}
    with contextlib.suppress(OSError):  # where it is not allowed, the peak of the imports may hide some of the method's
        Path("/proc/self/clear_refs").write_text("5")
    before, wall, cpu = peak(), time.perf_counter(), time.process_time()
    recalls = [run(problem, ks) for problem in problems]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"cpu": cpu, "wall": wall, "mb": peak() - before, "recalls": recalls}


def peak() -> float:
    """Largest resident memory since `clear_refs`, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))


def in_a_process(name: str, ks: Sequence[int], method: str, folder: Path, arguments: argparse.Namespace) -> Cell:
    """`measure`, in a fresh interpreter."""
    threads = arguments.threads
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recall", "--cell", method, str(folder), *map(str, ks)],
        cwd=Path(__file__).parents[1],
        # Spinning waiters would count as CPU time.
        env=os.environ | counts | {"OMP_WAIT_POLICY": "passive"} | (LIMITED if arguments.avx2 else {}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    cell: Cell = json.loads(done.stdout.splitlines()[-1])
    return {"case": name, "method": method, "threads": threads} | cell


def cells_of(name: str, methods: Sequence[str], arguments: argparse.Namespace) -> tuple[Case, list[Cell]]:
    """Every repeat of every method on one case, the methods in turn."""
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as folder:
        if name in CASES:
            case = CASES[name]
            write(case, arguments.offset, Path(folder))
        else:
            case = given(Path(name), Path(folder))
        for repeat in range(arguments.repeats):
            for method in methods[:: -1 if repeat % 2 else 1]:
                if any(cell["method"] == method and "missing" in cell for cell in cells):
                    continue
                cells.append(in_a_process(name, case.ks, method, Path(folder), arguments) | {"repeat": repeat})
                print(f"  {name} {method} {cells[-1].get('cpu', 0):.2f} s", file=sys.stderr)
    return case, cells


def table(name: str, case: Case, cells: Sequence[Cell]) -> list[str]:
    """Medians of a case, the ratios to layerprobe at the same K, and the largest difference of any R@K."""
    goals = case.goals if cells[0]["threads"] == 1 else {}
    size = f"{case.queries:,}" + (f" x {case.gallery:,}" if case.gallery else "")
    dims = f"{case.dims[0]}" if len(case.dims) == 1 else f"{len(case.dims)} layers of {sum(case.dims):,} numbers"
    lines = [
        f"{name}: {size} x {dims}, {case.classes:,} classes, K = {', '.join(map(str, case.ks))}",
        f"  {'':<24}{'CPU s':>8}{'wall s':>8}{'MB':>7}{'CPU x':>7}{'wall x':>7}{'goal':>6}  R@1 %  max |R@K - ours|",
    ]
    for method in METHODS:
        ours = [cell for cell in cells if cell["method"] == (AT_ONE if method in NEED_ONE else OURS)]
        some = [cell for cell in cells if cell["method"] == method]
        if not some:
            continue
        if "missing" in some[0]:
            lines.append(f"  {method:<24}not installed: {some[0]['missing']}")
            continue
        cpu, wall, mb = (statistics.median(cell[key] for cell in some) for key in ("cpu", "wall", "mb"))
        line = f"  {method:<24}{cpu:8.3f}{wall:8.3f}{mb:7.0f}"
        ratios = [statistics.median(cell[key] for cell in ours) for key in ("cpu", "wall")] if ours else []
        line += "".join(f"{value / own:7.2f}" for value, own in zip((cpu, wall), ratios, strict=False)) or " " * 14
        first = statistics.mean(recalls["1"] for recalls in some[0]["recalls"])
        line += f"{goals.get(method, ''):>6}{100 * first:7.2f}"
        lines.append(line + (f"  {difference(some, ours):.1e}" if ours else ""))
    return lines


def difference(some: Sequence[Cell], ours: Sequence[Cell]) -> float:
    """Largest difference of any R@K that both have, over all repeats."""
    mine = ours[0]["recalls"]
    pairs = ((cell["recalls"][layer], own) for cell in (*some, *ours) for layer, own in enumerate(mine))
    return max(abs(float(theirs[k] - own[k])) for theirs, own in pairs for k in theirs)


def machine() -> dict[str, Any]:
    """CPU, those of its flags that matter here, and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(values.get("flags", "").split())
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    name, family, model = (values.get(key, "unknown") for key in ("model name", "cpu family", "model"))
    return {
        "cpu": f"{name}, family {family} model {model}",
        "flags": {flag: flag in flags for flag in ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")},
        "cores": os.cpu_count(),
        "versions": versions,
    }


def on_cpu(arguments: argparse.Namespace) -> None:
    here, methods = machine(), list(arguments.methods)
    flags = ", ".join(flag if has else f"no {flag}" for flag, has in here["flags"].items())
    print(f"{here['cpu']}, {here['cores']} cores, {flags}; {arguments.threads} thread(s)")
    print(", ".join(f"{package} {version}" for package, version in here["versions"].items()))
    known: list[Cell] = []
    if arguments.peers_from:
        earlier = json.loads(arguments.peers_from.read_text())
        if earlier["offset"] != arguments.offset:
            raise SystemExit(f"error: {arguments.peers_from}: has other features. Give --offset to both or to none.")
        own = (OURS, AT_ONE)
        known = [c for c in earlier["cells"] if c["method"] not in own and c["threads"] == arguments.threads]
        methods = [method for method in methods if method in own]
        print(f"peers not measured now but read from {arguments.peers_from} ({earlier['date']}, {earlier['cpu']})")
    if arguments.avx2:
        print("limited: " + ", ".join(f"{name}={value}" for name, value in LIMITED.items()))
    print(f"medians of {arguments.repeats} repeats" + (", ReLU-like features" if arguments.offset else ""), flush=True)
    measured: list[Cell] = []
    for name in arguments.cases:
        case, cells = cells_of(name, methods, arguments)
        measured += cells
        chosen = [cell for cell in measured + known if cell["case"] == name and cell["method"] in arguments.methods]
        print("\n".join(table(name, case, chosen)), flush=True)
        if arguments.json:
            record = here | {"date": time.strftime("%Y-%m-%d %H:%M"), "offset": arguments.offset, "cells": measured}
            arguments.json.write_text(json.dumps(record, indent=1))


def on_gpu(arguments: argparse.Namespace) -> None:
    """Milliseconds on the GPU, beside matrix product and topk there, and the share of the GPU's own limit."""
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: skipped")
        return
    square = torch.randn(2**14, 2**14, device="cuda", dtype=torch.bfloat16)
    speed = 2 * len(square) ** 3 / milliseconds(partial(torch.mm, square, square), arguments.repeats)[0]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16 product at {speed / 1e9:.0f} TFLOP/s")
    print(f"medians of {arguments.repeats} repeats; limit: 2 Q G D operations at that speed; float32 topk, no TF32")
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in arguments.cases:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            write(case, arguments.offset, Path(folder))
            problems = [tensors_of(problem, "cuda") for problem in read(Path(folder))]
        limit = 2 * case.queries * (case.gallery or case.queries) * sum(case.dims) / speed
        print(f"{name}: limit {limit:.3f} ms")
        found = []
        for method, run in (("layerprobe", layerprobe_on), ("torch-topk", topk_on)):
            took, recalls = milliseconds(partial(each, run, problems, case.ks), arguments.repeats)
            found.append({"recalls": [{str(k): value for k, value in some.items()} for some in recalls]})
            gap = difference(found[-1:], found[:1])
            print(f"  {method:<12}{took:10.2f} ms, {limit / took:6.1%} of the limit, max |R@K - ours| {gap:.1e}")


def milliseconds(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median by CUDA events after one call that sets things up, and what the work returns."""
    import torch

    returned, took = work(), []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end))
    return statistics.median(took), returned


def tensors_of(problem: Problem, device: str) -> dict[str, Any]:
    """The arguments of `recall_at_k`, on the device."""
    import torch

    return {name: None if part is None else torch.from_numpy(part).to(device) for name, part in vars(problem).items()}


def each(
    run: Callable[[dict[str, Any], Sequence[int]], dict[int, float]], problems: list[dict[str, Any]], ks: Sequence[int]
) -> list[dict[int, float]]:
    return [run(problem, ks) for problem in problems]


def layerprobe_on(tensors: dict[str, Any], ks: Sequence[int]) -> dict[int, float]:
    from layerprobe import recall_at_k

    return recall_at_k(**tensors, ks=ks, lone="miss")


def topk_on(tensors: dict[str, Any], ks: Sequence[int]) -> dict[int, float]:
    """What a user writes: blocks of similarities, the query's own masked, topk, hits."""
    import torch
    from torch.nn.functional import normalize

    queries, gallery = tensors["features"], tensors["gallery"]
    searched = normalize(queries if gallery is None else gallery)
    labels = tensors["labels" if gallery is None else "gallery_labels"]
    reached = torch.zeros(len(ks), dtype=torch.long, device=queries.device)
    for start in range(0, len(queries), 4096):
        rows = slice(start, start + 4096)
        similarities = normalize(queries[rows]) @ searched.T
        if gallery is None:
            similarities[:, rows].fill_diagonal_(-torch.inf)
        positive = labels[similarities.topk(max(ks)).indices] == tensors["labels"][rows, None]
        reached += torch.stack([positive[:, :k].any(1).sum() for k in ks])
    return dict(zip(ks, (reached / len(queries)).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), help=f"{', '.join(CASES)}, or an .npz of features")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", default="1", help="a number, or 'all'")
    parser.add_argument("--offset", action="store_true", help="ReLU-like features: a common offset, none negative")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the cells there")
    parser.add_argument("--peers-from", type=Path, metavar="FILE", help="reads the peers' cells from an earlier --json")
    parser.add_argument("--avx2", action="store_true", help="limits the instruction sets of all libraries to AVX2")
    parser.add_argument("--cell", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        method, folder, *ks = arguments.cell
        print(json.dumps(measure(method, Path(folder), list(map(int, ks)))))
        return
    for name in arguments.cases:
        if name not in CASES and not name.endswith(".npz"):
            parser.error(f"--cases {name}: {', '.join(CASES)}, or an .npz of features")
    arguments.threads = len(os.sched_getaffinity(0)) if arguments.threads == "all" else int(arguments.threads)
    if arguments.device == "cuda":
        on_gpu(arguments)
    else:
        on_cpu(arguments)


if __name__ == "__main__":
    main()
