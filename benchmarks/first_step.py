"""CPU seconds from the start of Python to the first step of a training on a million images of 100,000 classes.

Everything but the images is real: the recipe, its plan of 50 epochs, the batches of the first, one step of LeNet.
Before, the batches of all epochs were made to count them; `--before` times one epoch as they were made then.

    python benchmarks/first_step.py --before
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning waiters would count as CPU time

import numpy as np

from layerprobe.data.splits import Image, LabelArray, Split
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.training.loop import Trainer
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.train.building import build_plan

GOAL = 15.0  # CPU seconds


def black(index: int) -> Image:  # noqa: ARG001 - any image
    """An image."""
    return np.zeros((32, 32, 3), np.uint8)


def of_numpy(labels: LabelArray, batch_size: int, per_class: int) -> float:
    """CPU seconds in which numpy's own weighted choice draws the batches of an epoch, from those of 500 batches."""
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(sizes)[:-1])
    rng, started = np.random.default_rng(0), time.process_time()
    for _ in range(500):
        for c in rng.choice(len(sizes), batch_size // per_class, replace=False, p=sizes / sizes.sum()):
            rng.choice(members[c], per_class, replace=False)
    return (time.process_time() - started) / 500 * (len(labels) // batch_size)


def main() -> None:
    """Print the seconds of each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--before", action="store_true")
    arguments = parser.parse_args()
    labels = np.random.default_rng(0).permutation(np.arange(arguments.images) % arguments.classes)
    settings = ("net.name=lenet", f"train.epochs={arguments.epochs}", "data.image_size=32")
    recipe = load_recipe("quick", Overrides(settings=settings))
    marks = [("imports and labels", time.process_time())]
    plan = build_plan(recipe, labels, workers=0)
    marks.append((f"plan: {plan.batches_per_epoch:,} batches an epoch, counted", time.process_time()))
    net = from_recipe.build_net(recipe)
    loss = from_recipe.build_loss(recipe, embedding_dim=net.embedding_dim, num_classes=arguments.classes)
    split = Split("train", labels, tuple(map(str, range(len(labels)))), black)
    trainer = Trainer(net, loss, split, from_recipe.build_normalise(recipe), plan, labels)
    marks.append(("images, network and loss", time.process_time()))
    plan.batches(1)
    marks.append(("batches of one epoch", time.process_time()))
    for _ in trainer.epochs(after_step=lambda _: False):
        pass
    marks.append(("batches of one epoch and a step", time.process_time()))
    before, made_once = 0.0, 0.0
    for name, second in marks:
        print(f"{name:<50} {second - before:6.1f}")
        made_once = second - before if name == "batches of one epoch" else made_once
        before = second
    print(f"{'the first step from the start':<50} {before - made_once:6.1f}   goal {GOAL:.0f}")
    if arguments.before:
        seconds = of_numpy(labels, recipe.train.batch_size, recipe.train.images_per_class or 2)
        print(f"{'batches of one epoch by numpy, as before':<50} {seconds:6.1f}   x{seconds / made_once:.1f}")
        print(f"{'of all epochs, as before to count them':<50} {seconds * arguments.epochs:6.0f}")


if __name__ == "__main__":
    main()
