"""Whether `choose` finds the best layer where it is known: candidates planted on the features of a trained network.

    python benchmarks/planted.py [--cache DIR] [--draws N] [--figure docs/img/planted.png]

Trains LeNet by the recipe `quick` for 6 epochs, on 60 classes of glyphs, and takes the features of its layer pool5 (120
numbers) for 400 classes that it has not seen. 80 of them are kept to make the planted layers from. Of the others,
classes to choose on are drawn, and searched among themselves. The candidates:

- the best: pool5 itself;
- a copy: pool5 in another orthogonal basis, equal but for rounding, and dearer as a later layer;
- a memory: the outputs of a classifier that knows the 60 training classes by heart (kernel ridge regression to their
  labels), half as many bytes. It finds every training image;
- a rival that lacks what unseen classes need: pool5 whose parts along 16 directions in which the 80 classes differ are
  shrunk, by as much as makes it worse by 1 to 8 points. Of the directions by principal components of the classes' means
  they are the 5th to the 20th: the first 4 tell kinds of glyphs apart. It is an earlier layer, and so cheaper; or, for
  comparison, a later one, and so dearer.

The true difference is that of R@1 in a search among 100 unseen classes, the mean over 200 draws of these. Printed is
how often the highest mean of R@1, of equal ones the fewest bytes, selects the best, and its mean regret: the true
difference of the best and the selected one. MAP@R, by which `choose` separates near candidates, is left out. Two
minutes of one core, and less with --cache, where the trained run is kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.choice import pick
from layerprobe.statistics.units import UnitSums
from layerprobe.store import read_features
from layerprobe.values.layers import LayerKey

Array = NDArray[np.float64]
RUN, EPOCHS, CLASSES, IMAGES, LAYER = "planted", 6, 400, 20, LayerKey("pool5", "none")
DESIGN, DIRECTIONS = 80, slice(4, 20)
TEST_CLASSES, TRUTH_DRAWS = 100, 200
UNITS, POINTS = (10, 20, 40, 80), tuple(range(1, 9))
AMOUNTS = np.linspace(0.1, 1.0, 19)
BEST, COPY, MEMORY, RIVAL = range(4)
# Bytes of an image and place of the layer, as `Candidate.cost` has them first.
COSTS = {"cheaper": [(480, 2), (480, 3), (240, 4), (480, 1)], "dearer": [(480, 2), (480, 3), (240, 4), (480, 5)]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether `choose` finds the best layer where it is known.")
    parser.add_argument("--cache", type=Path, help="a folder that keeps the trained run")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    if arguments.cache is None:
        with tempfile.TemporaryDirectory() as folder:
            train, unseen = features(Path(folder))
    else:
        train, unseen = features(arguments.cache)
    world = planted(train, unseen)
    selected = selections(world, arguments.draws)
    print_tables(world, selected)
    if arguments.figure:
        draw(world, selected, arguments.figure)


def features(cache: Path) -> tuple[Array, Array]:
    """Unit features of training and of unseen classes, (classes, images, 120), of a run that is trained if need be."""
    files = [cache / RUN / "features" / f"epoch-{EPOCHS:04d}.{split}.h5" for split in ("train", "test")]
    if not all(file.exists() for file in files):
        sets = [f"data.test_classes={CLASSES}", "net.name=lenet", f"train.epochs={EPOCHS}"]
        first = ["train", "quick", *(part for text in sets for part in ("--set", text)), "--run", RUN]
        for command in (first, ["probe", RUN, "--epochs", "last", "--layers", "pool5"]):
            subprocess.run(
                [sys.executable, "-m", "layerprobe", *command],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"LAYERPROBE_CACHE": str(cache)},
            )
    # The rows are in the order of the classes, each with as many images.
    train, unseen = (unit(read_features(file, LAYER).astype(np.float64)) for file in files)
    return train.reshape(-1, IMAGES, train.shape[1]), unseen.reshape(CLASSES, IMAGES, -1)


@dataclass(frozen=True, eq=False)
class World:
    """The candidates as tables of `nearest_by_class`, and what is true of them.

    Args:
        best: of the unseen classes to draw from, like the following.
        copy: of the best one in another basis.
        memory: of the classifier.
        rivals: points -> of the rival that is worse by about these.
        truth: name -> R@1 in a search among 100 classes.
        on_train: name -> R@1 on the training classes.
    """

    best: Array
    copy: Array
    memory: Array
    rivals: dict[int, Array]
    truth: dict[str, float]
    on_train: dict[str, float]


def planted(train: Array, unseen: Array) -> World:
    """Plant the candidates on features of training and of unseen classes."""
    rng = np.random.default_rng(0)
    design, pool = unseen[:DESIGN], unseen[DESIGN:]
    basis = np.linalg.qr(rng.normal(size=(pool.shape[2],) * 2))[0]
    outputs = memorised(train)
    shrink = shrinking(design)
    best = nearest_by_class(pool)
    draws = [rng.choice(len(pool), TEST_CLASSES, replace=False) for _ in range(TRUTH_DRAWS)]

    def truth(table: Array) -> float:
        return float(np.mean([hits(table, classes).mean() for classes in draws]))

    lost = [truth(best) - truth(nearest_by_class(shrink(pool, amount))) for amount in AMOUNTS]
    lost = list(np.maximum.accumulate(lost))
    rivals = {
        points: nearest_by_class(shrink(pool, float(np.interp(points / 100, lost, AMOUNTS)))) for points in POINTS
    }
    copy, memory = nearest_by_class(pool @ basis), nearest_by_class(outputs(pool))
    named = {"best": best, "copy": copy, "memory": memory} | {f"rival {p}": table for p, table in rivals.items()}
    seen = {"best": train, "copy": train @ basis, "memory": outputs(train)}
    everyone = np.arange(len(train))
    on_train = {name: float(hits(nearest_by_class(part), everyone).mean()) for name, part in seen.items()}
    return World(best, copy, memory, rivals, {name: truth(table) for name, table in named.items()}, on_train)


def unit(features: Array) -> Array:
    found: Array = features / np.linalg.norm(features, axis=-1, keepdims=True)
    return found


def memorised(train: Array) -> Callable[[Array], Array]:
    """Kernel ridge regression of the training images' classes: unit features -> an output for each training class."""
    rows = train.reshape(-1, train.shape[2])
    width = np.median(1 - rows @ rows.T) / 2

    def kernel(features: Array) -> Array:
        found: Array = np.exp((features @ rows.T - 1) / width)
        return found

    labels = np.repeat(np.eye(len(train)), train.shape[1], axis=0)
    weights = np.linalg.solve(kernel(rows) + 1e-3 * np.eye(len(rows)), labels)

    def outputs(features: Array) -> Array:
        found: Array = kernel(features) @ weights
        return found

    return outputs


def shrinking(design: Array) -> Callable[[Array, float], Array]:
    """Shrinks the directions of features in which the classes of `design` differ, by an amount from 0 to 1."""
    centres = design.mean(1)
    mean = centres.mean(0)
    directions = np.linalg.svd(centres - mean, full_matrices=False)[2][DIRECTIONS]

    def shrink(features: Array, amount: float) -> Array:
        found: Array = features - amount * ((features - mean) @ directions.T) @ directions
        return found

    return shrink


def nearest_by_class(features: Array) -> Array:
    """(C * I, C) the cosine of each image and the nearest other image of each class, of (C, I, D) features."""
    classes, images, dim = features.shape
    rows = unit(features.reshape(-1, dim))
    found = np.empty((len(rows), classes))
    for start in range(0, len(rows), images):  # one class at a time
        block = rows[start : start + images] @ rows.T
        np.fill_diagonal(block[:, start : start + images], -np.inf)
        found[start : start + images] = block.reshape(images, classes, images).max(2)
    return found


def hits(table: Array, classes: NDArray[np.int64]) -> Array:
    """(C', I) whether each image of some classes has its nearest in its own, where only these are searched.

    Args:
        table: of `nearest_by_class`.
        classes: (C',) places of the drawn ones.
    """
    images = len(table) // table.shape[1]
    drawn = table.reshape(-1, images, table.shape[1])[classes][:, :, classes]  # (C', I, C')
    own = np.arange(len(classes))
    nearest = drawn[own, :, own].copy()
    drawn[own, :, own] = -np.inf
    found: Array = (nearest > drawn.max(2)).astype(np.float64)
    return found


@dataclass(frozen=True)
class Selected:
    """How often, of all draws of classes, and at what cost.

    Args:
        best: the best is selected.
        copy: the copy is.
        memory: the memory is.
        regret: the mean true difference of the best and the selected one, in points.
        seen: the mean difference of the best and the rival on the drawn classes, in points.
    """

    best: float
    copy: float
    memory: float
    regret: float
    seen: float


def selections(world: World, draws: int) -> dict[tuple[str, int, int], Selected]:
    """Cost of the rival, its points and the number of drawn classes -> how often each is selected."""
    rng = np.random.default_rng(1)
    selected = {}
    for units in UNITS:
        drawn = [rng.choice(world.best.shape[1], units, replace=False) for _ in range(draws)]
        fixed = [[hits(table, classes).sum(1) for table in (world.best, world.copy, world.memory)] for classes in drawn]
        counts = np.full((4, units), float(IMAGES))
        for points, table in world.rivals.items():
            cells = [
                UnitSums(np.stack([*sums, hits(table, classes).sum(1)]), counts)
                for sums, classes in zip(fixed, drawn, strict=True)
            ]
            truth = np.array([world.truth[name] for name in ("best", "copy", "memory", f"rival {points}")])
            seen = float(np.mean([cell.means[BEST] - cell.means[RIVAL] for cell in cells]))
            for cost, costs in COSTS.items():
                places = np.array([pick(cell, costs, [True] * 4) for cell in cells])
                selected[cost, points, units] = Selected(
                    float((places == BEST).mean()),
                    float((places == COPY).mean()),
                    float((places == MEMORY).mean()),
                    float(100 * (truth[BEST] - truth[places]).mean()),
                    100 * seen,
                )
    return selected


def print_tables(world: World, selected: dict[tuple[str, int, int], Selected]) -> None:
    print("R@1 in a search among 100 unseen classes, and on the 60 training classes, in percent")
    for name, value in world.truth.items():
        seen = f"{100 * world.on_train[name]:8.1f}" if name in world.on_train else ""
        print(f"{name:<10}{100 * value:8.1f}{seen}")
    head = "points" + "".join(f"{f'{units} classes':>16}" for units in UNITS)
    print(f"\nbest selected, in percent of the draws, where the rival is cheaper (dearer)\n{head}")
    for points in POINTS:
        pairs = [[selected[cost, points, units].best for cost in COSTS] for units in UNITS]
        print(f"{points:>6}" + "".join(f"{100 * cheaper:8.1f} ({100 * dearer:5.1f})" for cheaper, dearer in pairs))
    print(f"\nmean regret in points, the rival cheaper; in brackets, its difference seen on the drawn classes\n{head}")
    for points in POINTS:
        row = [selected["cheaper", points, units] for units in UNITS]
        print(f"{points:>6}" + "".join(f"{one.regret:8.2f} ({one.seen:5.2f})" for one in row))
    memory = {units: max(one.memory for key, one in selected.items() if key[2] == units) for units in UNITS}
    copy = max(one.copy for one in selected.values())
    print(f"\nselected, in percent of the draws at most: the copy {100 * copy:.1f}")
    print("the memory", ", ".join(f"{100 * share:.1f} of {units} classes" for units, share in memory.items()))


def draw(world: World, selected: dict[tuple[str, int, int], Selected], path: Path) -> None:
    """How often the best is selected, and the mean regret, against the true difference."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    # Okabe and Ito's colours, which people with colour blindness tell apart; the markers differ, too.
    styles = dict(zip(UNITS, (("#D55E00", "o"), ("#E69F00", "s"), ("#0072B2", "^"), ("#000000", "D")), strict=True))
    x = [100 * (world.truth["best"] - world.truth[f"rival {points}"]) for points in POINTS]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for units, (colour, marker) in styles.items():
        row = [selected["cheaper", points, units] for points in POINTS]
        for panel, values in ((left, [100 * one.best for one in row]), (right, [one.regret for one in row])):
            panel.plot(x, values, color=colour, marker=marker, markersize=5, label=f"{units} classes")
    left.set(ylabel="best layer selected, % of draws", ylim=(0, 102))
    right.set(ylabel="mean regret, points", ylim=(0, None))
    for panel in (left, right):
        panel.set(xlabel="true difference to a cheaper layer, points", xticks=POINTS)
        panel.grid(alpha=0.3)
    left.legend(loc="lower right", title="selected on", fontsize="small", title_fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
