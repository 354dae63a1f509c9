"""Every loss trained for the same few minutes: test R@1 of the embedding before and after, and the time of a step.

VGG16-BN with fc6 of 512 on images of 32 pixels, a folder a class (the first half of the classes trains), each loss with
its default batches and options but for those shown in its row. The goal is 10 points more than at epoch 0.

    python benchmarks/train_losses.py DIR --epochs 8
    python benchmarks/train_losses.py DIR --epochs 8 --losses triplet,margin
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning waiters would count as CPU time

import torch

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.registry import LOSSES
from layerprobe.system.progress import Task
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train

COMMON = (
    "data.image_size=32", "data.invert=true", "data.mean=0.08", "data.std=0.25", "data.augment=affine",
    "train.decay_at=[0.7]",
)  # fmt: skip
_ADAM = ("train.optimizer=adam", "train.weight_decay=0")
# What a loss needs to train in so few steps, beside its defaults.
SETTINGS: dict[str, tuple[str, ...]] = {
    # Its margin of 0.2 is for pretrained networks: from scratch the positives' pull collapses everything first.
    "contrastive": ("loss.margin=9", "train.learning_rate=1e-3"),
    # Embeddings of any length, as in Fehervari et al. 2019, who train these by Adam: SGD at 0.01 diverges.
    "lifted_structure": (*_ADAM, "train.learning_rate=1e-4"),
    # In 64 dimensions, as there: products and squared distances of 512 begin so large that the softmax learns slowly.
    "n_pairs": (*_ADAM, "train.learning_rate=3e-4", "net.fc=[64]"),
    "prototypical": (
        *_ADAM,
        "train.learning_rate=3e-4",
        "train.images_per_class=4",
        "loss.support=2",
        "net.fc=[64]",
    ),
    "angular": ("loss.normalise=true",),
    # The loss is a sum over the batch.
    "structured_clustering": ("train.learning_rate=1e-3",),
    "supcon": ("train.learning_rate=1e-3",),
    # The memory is to be used within these steps.
    "cross_batch_memory": ("loss.warmup=168", "train.learning_rate=1e-3"),
    # Made for millions of faces: at 64 and the whole margin nothing is learnt in so few steps from scratch.
    "arcface": ("loss.scale=16", "loss.margin=0.2"),
    "cosface": ("loss.scale=16", "loss.margin=0.1"),
}


class Quiet:
    """Counts batches and says nothing."""

    def __init__(self) -> None:
        self.steps = 0

    def say(self, text: str) -> None:
        """Only warnings are shown."""
        if text.startswith("warning"):
            print(f"  {text}")

    @contextlib.contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[Task]:  # noqa: ARG002 - a listener's signature
        """Every task is this."""
        yield self

    def advance(self, steps: int = 1, **figures: float) -> None:  # noqa: ARG002 - a task's signature
        """A training batch shows its loss."""
        self.steps += "loss" in figures


def trained(loss: str, root: Path, cache: Path, epochs: int) -> tuple[float, float, float, float]:
    """Test R@1 before and after, CPU seconds of training, CPU milliseconds of a step."""
    settings = (*COMMON, f"train.epochs={epochs}", f"loss.name={loss}", *SETTINGS.get(loss, ()))
    recipe = load_recipe("netA", Overrides(f"folder:{root}", settings))
    counter, started = Quiet(), time.process_time()
    run = train(TrainRequest(recipe, True, cache, loss, "cpu", 0), counter)
    seconds = time.process_time() - started
    request = ProbeRequest(layers=("fc6",), epochs=f"0,{epochs}", splits=("test",), ks=(1,), device="cpu", workers=0)
    before, after = (score.value or 0.0 for score in probe(run, request, Quiet()))
    return before, after, seconds, 1000 * seconds / max(1, counter.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="a folder with a folder of images a class")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--losses", help="names, by commas; all of them unless given")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| loss | test R@1 at epoch 0 | after | gain | CPU s | CPU ms a step | settings |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for loss in arguments.losses.split(",") if arguments.losses else LOSSES:
        with tempfile.TemporaryDirectory() as cache:
            before, after, seconds, step = trained(loss, arguments.root, Path(cache), arguments.epochs)
        settings = " ".join(SETTINGS.get(loss, ()))
        print(
            f"| {loss} | {before:.1%} | {after:.1%} | {100 * (after - before):+.1f} | {seconds:.0f} | {step:.0f} |"
            f" {settings} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
