"""How often the rule of `choose` takes what is worse than it allows, and whether optimism is what it says.

    python benchmarks/choice_rule.py [--sets N] [--run FOLDER]

`rule`: a cheap candidate is worse than a dear one by exactly what is allowed, 1 or 3 points. Every set draws classes
anew: a class has a hit rate of its own, normal on the logit scale, and the two candidates hit the same images but for
those that one alone hits; by how much they differ varies between the classes, and is skewed where few classes lose all
of it. Told is how often the cheap one passes beside the dear one, which should be 5 %, by the rule and by the upper end
of the bootstrap's two-sided 90 % interval of the difference; and how often it is the best by luck, which no rule can
mend.

`crowd`: 13 cheap candidates, each worse by exactly what is allowed, beside a dear one: how often any of them passes.

`optimism`: 14 candidates of 6 layers' likeness. The truth is the best's mean less the mean that it has on all classes
there could be.

With --run, the candidates are the layers of a run's stored ranks: classes are drawn from its test classes with
replacement, which stand for all there could be, and the true difference is what is allowed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from layerprobe.statistics.choice import folds_of, optimism, pick
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.store import read_stored_ranks

Array = NDArray[np.float64]
UNITS = (10, 20, 60, 200)
COSTS = [(0,), (1,)]


def main() -> None:
    parser = argparse.ArgumentParser(description="How often the rule of `choose` takes what is worse than it allows.")
    parser.add_argument("--sets", type=int, default=2000)
    parser.add_argument("--run", type=Path, action="append", default=[], help="a run's folder")
    arguments = parser.parse_args()
    print("kind      units  recall  within  passes  the best by luck", flush=True)
    for units in UNITS:
        for kind, recall in (("even", 0.7), ("even", 0.95), ("few", 0.7), ("few", 0.95), ("sizes", 0.7)):
            for within in (0.01, 0.03):
                print(simulated(kind, units, recall, within, arguments.sets), flush=True)
    print("\nunits  within  any of 13 passes  the best by luck", flush=True)
    for units in UNITS:
        for within in (0.01, 0.03):
            print(simulated_crowd(units, within, arguments.sets), flush=True)
    print("\nunits  apart  optimism  in truth, points", flush=True)
    for units in (10, 13, 20, 60):
        for apart in (0.0, 0.01):
            print(simulated_optimism(units, apart, arguments.sets), flush=True)
    for folder in arguments.run:
        print(f"\n{folder.name}: classes drawn with replacement from its test classes")
        print("units  pairs  passes, mean over pairs  most", flush=True)
        for row in of_run(folder, arguments.sets):
            print(row, flush=True)


def drawn(kind: str, units: int, recall: float, within: float, rng: np.random.Generator) -> UnitSums:
    """Hits of a cheap and a dear candidate on classes that are drawn anew."""
    counts = rng.integers(2, 61, units) if kind == "sizes" else np.full(units, 20)
    rate: Array = expit(np.log(recall / (1 - recall)) + rng.normal(0, 1, units))
    apart: Array = rng.normal(within, 2 * within, units)
    if kind == "few":  # one class in ten loses ten times as much
        apart = np.where(rng.uniform(size=units) < 0.1, 10 * within, 0.0)
    # Of 100 images 5 are hit by one alone, as chance has it; what the cheap one lacks comes on top of that.
    only = np.minimum(0.05, (1 - rate) / 2)
    lost = np.clip(only / 2 + apart, 0, 1)
    shares = np.stack([lost, only / 2])
    shares /= np.maximum(1, shares.sum(0))
    alone = rng.multinomial(counts, np.stack([*shares, 1 - shares.sum(0)], 1))
    both = rng.binomial(alone[:, 2], np.clip((rate - only / 2) / np.maximum(1 - only, 1e-9), 0, 1))
    sums = np.stack([both + alone[:, 1], both + alone[:, 0]]).astype(np.float64)
    return UnitSums(sums, np.stack([counts, counts]).astype(np.float64))


def simulated(kind: str, units: int, recall: float, within: float, sets: int) -> str:
    """A row of the first table. The truth of what the clipping leaves of `within` is measured first."""
    rng = np.random.default_rng(units)
    many = drawn(kind, 400_000, recall, within, rng).means
    true = float(many[1] - many[0])
    passed = lucky = 0
    for _ in range(sets):
        picked = pick(drawn(kind, units, recall, within, rng), COSTS, within=true)
        lucky += picked.best == 0
        passed += picked.best == 1 and 0 in picked.equivalent
    return (
        f"{kind:<10}{units:>5}{100 * many[1]:8.1f}{100 * true:8.2f}{100 * passed / sets:8.1f}{100 * lucky / sets:12.1f}"
    )


def simulated_crowd(units: int, within: float, sets: int) -> str:
    """A row of the second table. The classes' hit rates and what a candidate loses vary between the classes."""
    rng = np.random.default_rng(units)
    counts, costs = np.full((14, units), 20.0), [(place,) for place in range(14)]
    passed = lucky = 0
    for _ in range(sets):
        dear = rng.binomial(20, rng.beta(7, 2, units)) / 20
        cheap = dear - rng.normal(within, 0.03, (13, units))
        picked = pick(UnitSums(20 * np.concatenate([cheap, dear[None]]), counts), costs, within=within)
        lucky += picked.best < 13
        passed += picked.best == 13 and picked.place < 13
    return f"{units:>5}{100 * within:8.0f}{100 * passed / sets:18.1f}{100 * lucky / sets:18.1f}"


def simulated_optimism(units: int, apart: float, sets: int) -> str:
    """A row of the third table."""
    rng = np.random.default_rng(units)
    counts = np.full((14, units), 20.0)
    truth = 0.7 - apart * np.arange(14)
    told, true = [], []
    for row in range(sets):
        rate = np.clip(truth[:, None] + rng.normal(0, 0.15, units) + rng.normal(0, 0.07, (14, units)), 0, 1)
        cells = UnitSums(rng.binomial(20, rate).astype(np.float64), counts)
        told.append(optimism(cells, folds_of(range(units), seed=row)) or 0.0)
        true.append(cells.means.max() - truth[cells.means.argmax()])
    return f"{units:>5}{100 * apart:7.0f}{100 * np.mean(told):10.2f}{100 * np.mean(true):10.2f}"


def of_run(folder: Path, sets: int) -> Iterator[str]:
    """Rows of the fourth table."""
    stored = read_stored_ranks(max((folder / "ranks").glob("epoch-*.test.h5")))
    cells = unit_sums([ranks.hits(1) for ranks in stored.ranks.values()], stored.labels)
    for units in UNITS:
        rng = np.random.default_rng(units)
        draws = [rng.integers(cells.sums.shape[1], size=units) for _ in range(sets // 4)]
        passed = []
        for pair in combinations(range(len(cells.sums)), 2):
            places = sorted(pair, key=lambda place: cells.means[place])
            sums, counts = cells.sums[places], cells.counts[places]
            true = float(cells.means[places[1]] - cells.means[places[0]])
            picks = [pick(UnitSums(sums[:, drawn], counts[:, drawn]), COSTS, within=true) for drawn in draws]
            passed.append(float(np.mean([picked.best == 1 and 0 in picked.equivalent for picked in picks])))
        yield f"{units:>5}{len(passed):7}{100 * np.mean(passed):15.1f}{100 * max(passed):18.1f}"


if __name__ == "__main__":
    main()
