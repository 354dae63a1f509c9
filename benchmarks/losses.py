"""Forward and backward pass of two losses, on the CPU with one thread: time and memory.

1. The batch-all smooth triplet against pytorch-metric-learning's TripletMarginLoss at batches of 32, 128, 512 and 1,024
   images, 4 a class, of 512 dimensions. Both compute the same: the peer has smooth_loss, no margin (its default is
   0.05), every triplet, the squared Euclidean distance of embeddings of length 4, and the mean over all triplets (its
   default leaves out those that cost nothing). Loss and gradient are compared with loops over the anchors in float64.
   The goals are 1.8, 3.5, 12 and 22 times the peer's speed, and a fifteenth of its memory at 1,024.
2. The class-subsampled softmax, with a step of its optimiser, against the number of sampled classes: 11,318 and
   1,000,000 classes of 512 dimensions, 75 images of 15 classes. Time and memory should grow with the sampled classes,
   not with all; the weights of all and their momentum are there before.

Every cell is a process of its own, the methods alternating over the repeats; medians of the process CPU time of a pass
after a warm-up. MB is what the first pass at that size adds to the process's peak, after passes at a small one.

    python benchmarks/losses.py
    python benchmarks/losses.py --part triplet --repeats 9
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DIM, PER_CLASS, SCALE = 512, 4, 4.0
BATCHES = {32: 300, 128: 60, 512: 6, 1024: 2}  # images -> passes that a cell is timed over
METHODS = ("layerprobe", "pytorch-metric-learning")
CLASSES = {11_318: (113, 1_132, 11_318), 1_000_000: (113, 1_132, 11_318, 100_000)}  # all -> sampled
Pass = Callable[[Tensor, Tensor], Tensor]


def peak() -> float:
    """MB that the process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def batch(images: int) -> tuple[Tensor, Tensor]:
    """Class means and noise, and the labels in a random order."""
    generator = torch.Generator().manual_seed(images)
    labels = torch.arange(images) // PER_CLASS
    means = torch.randn(images // PER_CLASS, DIM, generator=generator)
    embeddings = means[labels] + 2 * torch.randn(images, DIM, generator=generator)
    order = torch.randperm(images, generator=generator)
    return embeddings[order].requires_grad_(), labels[order]


def triplet(method: str) -> Pass:
    """The loss of a method, of embeddings of any length."""
    if method == "layerprobe":
        from layerprobe.losses.smooth_triplet import SmoothTriplet

        return SmoothTriplet(DIM, 1, scale=SCALE)
    from pytorch_metric_learning import distances, losses, reducers

    loss = losses.TripletMarginLoss(
        margin=0.0,
        smooth_loss=True,
        triplets_per_anchor="all",
        distance=distances.LpDistance(normalize_embeddings=False, p=2, power=2),
        reducer=reducers.MeanReducer(),
    )

    def scaled(embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = loss(SCALE * F.normalize(embeddings), labels)
        return value

    return scaled


def by_loops(embeddings: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """The smooth triplet and its gradient in float64, anchor by anchor."""
    features = embeddings.detach().double().requires_grad_()
    unit = features / features.norm(dim=1, keepdim=True)
    distances = SCALE**2 * (2 - 2 * unit @ unit.T)
    leaf = distances.detach().requires_grad_()
    total, count = 0.0, 0
    for anchor in range(len(labels)):
        same = labels == labels[anchor]
        negatives = leaf[anchor, ~same]
        same[anchor] = False
        losses = torch.log1p((leaf[anchor, same][:, None] - negatives).exp())
        losses.sum().backward()
        total, count = total + losses.sum().item(), count + losses.numel()
    assert leaf.grad is not None  # noqa: S101 - for the type checker
    distances.backward(leaf.grad / count)
    assert features.grad is not None  # noqa: S101
    return total / count, features.grad


def triplet_cell(images: int, method: str) -> dict[str, float]:
    """One method at one batch size in this process."""
    loss = triplet(method)

    def run(embeddings: Tensor, labels: Tensor) -> Tensor:
        embeddings.grad = None
        value = loss(embeddings, labels)
        value.backward()
        return value

    embeddings, labels = batch(32)
    for _ in range(3):
        run(embeddings, labels)
    embeddings, labels = batch(images)
    before = peak()
    value = run(embeddings, labels)
    added = peak() - before
    started = time.process_time()
    for _ in range(BATCHES[images]):
        run(embeddings, labels)
    seconds = (time.process_time() - started) / BATCHES[images]
    expected, gradient = by_loops(embeddings, labels)
    assert embeddings.grad is not None  # noqa: S101
    off = (embeddings.grad - gradient).norm() / gradient.norm()
    return {"cpu": seconds, "mb": added, "loss": abs(value.item() / expected - 1), "gradient": off.item()}


def softmax_cell(classes: int, sampled: int) -> dict[str, float]:
    """One number of sampled classes in this process."""
    from layerprobe.losses.subsampled_softmax import SubsampledSoftmax
    from layerprobe.training.loop import RowSGD

    torch.manual_seed(0)
    embeddings = torch.randn(75, DIM, requires_grad=True)
    loss = SubsampledSoftmax(DIM, classes, classes=20)
    optimizer = RowSGD(loss.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        loss(embeddings, torch.randint(classes, (15,)).repeat_interleave(5)).backward()
        optimizer.step()

    for _ in range(3):
        step()  # the first makes the momentum of all classes, as large as their weights
    loss.sampled = sampled
    before = peak()
    step()
    added = peak() - before
    passes = max(5, 20_000 // sampled)
    started = time.process_time()
    for _ in range(passes):
        step()
    return {"cpu": (time.process_time() - started) / passes, "mb": added}


def in_a_process(*cell: str) -> dict[str, Any]:
    """A cell, in a fresh interpreter."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--cell", *cell],
        env=os.environ | threads | {"OMP_WAIT_POLICY": "passive"},  # spinning waiters would count as CPU time
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare_triplets(repeats: int) -> list[str]:
    """A table of part 1."""
    lines = [
        "batch-all smooth triplet, forward and backward (a ratio is the peer's / layerprobe's)",
        f"  {'images':>6} {'':<24}{'CPU ms':>9}{'x':>7}{'MB':>8}{'x':>7}{'loss off':>11}{'gradient off':>14}",
    ]
    for images in BATCHES:
        cells: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
        for repeat in range(repeats):
            for method in METHODS[:: -1 if repeat % 2 else 1]:
                cells[method].append(in_a_process("triplet", str(images), method))
        own = {key: statistics.median(cell[key] for cell in cells[METHODS[0]]) for key in ("cpu", "mb")}
        for method, some in cells.items():
            cpu, added = (statistics.median(cell[key] for cell in some) for key in ("cpu", "mb"))
            lines.append(
                f"  {images:>6} {method:<24}{1000 * cpu:9.3f}{cpu / own['cpu']:7.2f}{added:8.1f}"
                f"{added / max(own['mb'], 0.1):7.1f}"
                f"{max(c['loss'] for c in some):11.1e}{max(c['gradient'] for c in some):14.1e}"
            )
    return lines


def compare_shares(repeats: int) -> list[str]:
    """A table of part 2."""
    lines = [
        "class-subsampled softmax, forward, backward and step",
        f"  {'classes':>9}{'sampled':>9}{'share':>9}{'CPU ms':>10}{'us a class':>12}{'MB':>9}{'kB a class':>12}",
    ]
    for classes, numbers in CLASSES.items():
        for sampled in numbers:
            cells = [in_a_process("softmax", str(classes), str(sampled)) for _ in range(repeats)]
            cpu, added = (statistics.median(cell[key] for cell in cells) for key in ("cpu", "mb"))
            lines.append(
                f"  {classes:>9,}{sampled:>9,}{sampled / classes:9.2%}{1000 * cpu:10.3f}{1e6 * cpu / sampled:12.2f}"
                f"{added:9.1f}{1000 * added / sampled:12.1f}"
            )
    return lines


def machine() -> str:
    """CPU and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "pytorch-metric-learning"))
    return f"{values.get('model name', 'unknown CPU')}, family {values.get('cpu family')}; {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("triplet", "softmax"), help="default: both")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        torch.set_num_threads(1)
        part, first, second = arguments.cell
        cell = triplet_cell(int(first), second) if part == "triplet" else softmax_cell(int(first), int(second))
        print(json.dumps(cell))
        return
    print(f"{machine()}; one thread, medians of {arguments.repeats} processes", flush=True)
    for part, table in (("triplet", compare_triplets), ("softmax", compare_shares)):
        if arguments.part in (None, part):
            print("\n".join(table(arguments.repeats)), flush=True)


if __name__ == "__main__":
    main()
