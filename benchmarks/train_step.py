"""Our training loop against a bare loop of the same step: images per CPU second, and their ratio.

Both train the same network on the same pixels with the same loss and optimiser settings, in interleaved pairs in one
process; the median of the ratios is what counts. The goal is 0.95.

    python benchmarks/train_step.py --net vgg16_bn --pairs 7
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning waiters would count as CPU time

import numpy as np
import torch

from layerprobe.data.loading import class_batches
from layerprobe.data.splits import Image, LabelArray, Split
from layerprobe.data.transforms import Normalise
from layerprobe.losses.smooth_triplet import SmoothTriplet
from layerprobe.nets.net import Net
from layerprobe.registry import NETS, load
from layerprobe.training.loop import Plan, Trainer
from layerprobe.training.schedule import Schedule

BATCH, PER_CLASS, CLASSES, IMAGES = 32, 4, 16, 20


class Pixels:
    """Random images that lie in memory."""

    def __init__(self, count: int, size: int) -> None:
        self.values = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8)

    def __call__(self, index: int) -> Image:
        """(H, W, 3) of one image."""
        image: Image = self.values[index]
        return image


def build(net: str) -> Net:
    """The network in the format that training uses."""
    built: Net = load("network", NETS, net)(fc=(512,), seed=0)
    built.module.to(memory_format=torch.channels_last)
    return built


def ours(net: str, pixels: Pixels, labels: LabelArray) -> Callable[[int], float]:
    """Steps of the Trainer -> CPU seconds."""
    split = Split("train", labels, tuple(map(str, range(len(labels)))), pixels)
    plan = Plan(
        epochs=10**6,
        batches=lambda epoch: class_batches(labels, batch_size=BATCH, images_per_class=PER_CLASS, seed=0, epoch=epoch),
        batches_per_epoch=len(labels) // BATCH,
        images_per_batch=BATCH,
        schedule=Schedule((10**9,)),
    )
    trainer = Trainer(build(net), SmoothTriplet(512, CLASSES), split, Normalise.of(0.5, 0.25), plan)

    def run(steps: int) -> float:
        done = 0

        def after_step(loss: float) -> bool:  # noqa: ARG001 - the trainer's callback
            nonlocal done
            done += 1
            return done < steps

        started = time.process_time()
        for _ in trainer.epochs(after_step=after_step):
            pass
        return time.process_time() - started

    return run


def bare(net: str, pixels: Pixels, labels: LabelArray) -> Callable[[int], float]:
    """Steps of a loop that only steps -> CPU seconds; its batches lie ready as float tensors."""
    module, loss = build(net).module.train(), SmoothTriplet(512, CLASSES)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    normalise = Normalise.of(0.5, 0.25)
    batches = class_batches(labels, batch_size=BATCH, images_per_class=PER_CLASS, seed=0, epoch=1)
    ready = [(normalise(torch.from_numpy(pixels.values[batch])), torch.from_numpy(labels[batch])) for batch in batches]

    def run(steps: int) -> float:
        started = time.process_time()
        for step in range(steps):
            images, classes = ready[step % len(ready)]
            value = loss(module(images), classes)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
        return time.process_time() - started

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=sorted(NETS), default="vgg16_bn")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5, help="steps of one measurement")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    pixels = Pixels(len(labels), arguments.size)
    runs = {"ours": ours(arguments.net, pixels, labels), "bare": bare(arguments.net, pixels, labels)}
    for run in runs.values():
        run(2)  # sets things up
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for pair in range(arguments.pairs):
        for name in sorted(runs, reverse=pair % 2 == 1):
            seconds[name].append(runs[name](arguments.steps))
    images = BATCH * arguments.steps
    ratios = [b / o for o, b in zip(seconds["ours"], seconds["bare"], strict=True)]
    print(f"{arguments.net} {arguments.size} px, batch {BATCH}, {arguments.threads} thread, {arguments.pairs} pairs")
    for name, values in seconds.items():
        print(f"  {name}: {images / statistics.median(values):8.1f} images per CPU second")
    print(f"  ratio ours / bare: {statistics.median(ratios):.3f} (goal 0.95; {min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
