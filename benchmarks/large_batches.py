"""Memory and time of a training step by the batch: whole batches beside chunks (`train.chunk`).

    python benchmarks/large_batches.py [FIGURE] [--net NAME] [--size PX] [--chunk N] [--batches N,N,...] [--device cuda]

Each cell is a process of its own with one thread, which takes one step and then times some more, on made-up images, by
the loop that trains recipes. Memory is what the steps add to that of network, images and libraries: the most that the
process holds on a CPU, the peak of torch's tensors on a GPU. Gradients and momentum are part of it. Seconds are the
process's on a CPU and the clock's on a GPU. Prints a table and, with FIGURE, draws it. Needs Linux.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # before torch: waiters would count as CPU time

import numpy as np
import torch

from layerprobe.data.loading import class_batches
from layerprobe.data.splits import Image, Split
from layerprobe.data.transforms import Normalise
from layerprobe.losses.loss import loss as build_loss
from layerprobe.nets.net import Net
from layerprobe.registry import LOSSES, NETS, load
from layerprobe.training.loop import Plan, Trainer
from layerprobe.training.schedule import Schedule

PER_CLASS, DIM = 4, 512
_RESULT = re.compile(r"^([\d.]+) s ([\d.]+) MB$", re.MULTILINE)


def trainer(net_name: str, loss: str, size: int, plan: tuple[int, int], device: torch.device) -> Trainer:
    """What trains batches of the plan's first number of images, in chunks of its second."""
    batch, chunk = plan
    labels = np.repeat(np.arange(batch // PER_CLASS), PER_CLASS)
    values = np.random.default_rng(0).integers(0, 256, (len(labels), size, size, 3), np.uint8)

    def image(index: int) -> Image:
        pixels: Image = values[index]
        return pixels

    net: Net = load("network", NETS, net_name)(fc=(DIM,), seed=0)
    net.module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks device with memory_format
    training = Plan(
        epochs=10**6,
        batches=lambda epoch: class_batches(labels, batch_size=batch, images_per_class=PER_CLASS, seed=0, epoch=epoch),
        batches_per_epoch=1,
        images_per_batch=batch,
        schedule=Schedule((10**9,)),
        chunk=chunk,
    )
    split = Split("train", labels, tuple(map(str, range(len(labels)))), image)
    built = build_loss(loss, DIM, batch // PER_CLASS).to(device)
    return Trainer(net, built, split, Normalise.of(0.5, 0.25), training)


def measure(trained: Trainer, steps: int) -> None:
    """Print the median seconds of a step, and the megabytes that the steps add."""
    on_gpu = trained.device.type == "cuda"
    if not on_gpu:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = torch.cuda.memory_allocated() / 1e6 if on_gpu else peak()
    marks = list[float]()

    def after_step(loss: float) -> bool:  # noqa: ARG001 - the trainer's callback
        if on_gpu:
            torch.cuda.synchronize()
        marks.append(time.perf_counter() if on_gpu else time.process_time())
        return len(marks) <= steps

    for _ in trained.epochs(after_step=after_step):
        pass
    held = torch.cuda.max_memory_allocated() / 1e6 if on_gpu else peak()
    print(f"{statistics.median(np.diff(marks)):.4f} s {held - before:.1f} MB")


def peak() -> float:
    """Megabytes, of 10^6 bytes, that this process has held at most since the peak was reset."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 / 1e6 if match else float("nan")


def draw(path: Path, title: str, batches: list[int], rows: dict[str, list[tuple[float, float]]]) -> None:
    """Two panels by the batch: MB, and seconds of a step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, column, label in zip(figure.subplots(1, 2), (1, 0), ("memory, MB", "seconds of a step"), strict=True):
        for name, cells in rows.items():
            axes.plot(batches, [cell[column] for cell in cells], marker="o", label=name)
        axes.set(xlabel="images of a batch", ylabel=label)
        axes.set_xticks(batches[-3:] if len(batches) > 3 else batches)
        axes.set_ylim(0, 1.1 * max(cell[column] for cells in rows.values() for cell in cells))
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc="outside upper center", ncols=2, title=title)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", type=Path, nargs="?")
    parser.add_argument("--net", choices=sorted(NETS), default="resnet18")
    parser.add_argument("--loss", choices=sorted(LOSSES), default="smooth_triplet")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--batches", default="32,64,128,256,512")
    parser.add_argument("--steps", type=int, default=3, help="that are timed, after the first one")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--cell", type=int, help=argparse.SUPPRESS)  # a batch, in a process of its own
    options = parser.parse_args()
    if options.cell:
        plan = (options.cell, options.chunk)
        measure(trainer(options.net, options.loss, options.size, plan, options.device), options.steps)
        return
    batches = [int(batch) for batch in options.batches.split(",")]
    chunked = f"chunks of {options.chunk}"
    rows: dict[str, list[tuple[float, float]]] = {"whole batch": [], chunked: []}
    settings = ["--net", options.net, "--loss", options.loss, "--size", str(options.size)]
    settings += ["--steps", str(options.steps), "--device", str(options.device)]
    print(f"{options.net}, {options.size} px, {options.loss}, {options.device}")
    print(f"| batch | MB, whole | {chunked} | ratio | s a step, whole | {chunked} | ratio |\n{'|---' * 7}|")
    for batch in batches:
        for name, chunk in zip(rows, (0, options.chunk), strict=True):
            command = [sys.executable, __file__, *settings, "--chunk", str(chunk), "--cell", str(batch)]
            text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            seconds, megabytes = map(float, _RESULT.findall(text)[-1])
            rows[name].append((seconds, megabytes))
        (s, m), (s_chunked, m_chunked) = (cells[-1] for cells in rows.values())
        cells = (f"{m:,.0f}", f"{m_chunked:,.0f}", f"{m_chunked / m:.2f}", f"{s:.2f}", f"{s_chunked:.2f}")
        print(f"| {batch} | {' | '.join(cells)} | {s_chunked / s:.2f} |", flush=True)
    if options.figure:
        draw(options.figure, f"{options.net}, {options.size} px", batches, rows)


if __name__ == "__main__":
    main()
