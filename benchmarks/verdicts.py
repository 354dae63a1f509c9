"""How often the verdicts of `choose` hold, and the regret of its rule: planted candidates.

    python benchmarks/verdicts.py [--sets N] [--classes U,...]

A set of data draws classes anew: 14 candidates, 20 queries a class. A class has an effect that all candidates share and
one of its own on each, normal or with Student's t of 3 degrees of freedom, so that two candidates differ by a paired
standard deviation of 5, 8 or 12 points a class. The candidates are equal; or differ in steps of 0.3 or 1 point; or one
is better by 1, 2, 3 or 5. Seven are raw, 128 to 1,024 numbers, seven post-processed, 64 or 128; which is better is
drawn. The true means are those of 400,000 classes.

In the same gallery, means are near 70 %. In a larger one, means of the classes that are chosen on are saturated, near
93 %, and in the gallery that the choice is for misses are twice as many. A finer measure, as MAP@R is, is not planted:
without one the rule takes the best mean.

For each cell: how often conclusive although the true loss is above `within` (1 point), how often conclusive, how often
significant, how often the true loss is at most the bound, the mean expected and true loss in points, the regret of the
former rule (the cheapest at most half a point below the best mean), and the numbers that it stores compared with the
best mean. A last table has the optimism of the best of 14 candidates and its truth.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.choice import folds_of, optimism, pick, resample_choice
from layerprobe.statistics.units import UnitSums
from layerprobe.statistics.verdict import judge

Array = NDArray[np.float64]
QUERIES, CANDIDATES, WITHIN = 20, 14, 0.01
MEANS = {"same": 0.7, "larger": 0.93}  # gallery that the choice is for -> mean of the candidates
GROWTH = 2.0  # of misses in the larger gallery
POPULATION = 400_000
DIMS = (128, 256, 256, 512, 512, 512, 1024, 64, 64, 64, 64, 128, 128, 128)
RAW = (True,) * 7 + (False,) * 7
SCENARIOS = {
    "equal": np.zeros(CANDIDATES),
    "steps of 0.3": -0.003 * np.arange(CANDIDATES),
    "steps of 1": -0.01 * np.arange(CANDIDATES),
    **{f"one by {gain}": np.eye(CANDIDATES)[0] * gain / 100 for gain in (1, 2, 3, 5)},
}


@dataclass(frozen=True)
class Cell:
    """A cell of the table; `sd` is a paired standard deviation of classes, as a share."""

    classes: int
    effects: str
    sd: float
    scenario: str
    gallery: str = "same"

    def drawn(self, means: Array, classes: int, rng: np.random.Generator) -> Array:
        """(C, U) hits of classes that are drawn anew."""
        shape = (len(means), classes)
        own = rng.normal(size=shape) if self.effects == "normal" else rng.standard_t(3, shape) / 3**0.5
        rates = means[:, None] + rng.normal(0, 0.1, classes) + self.sd / 2**0.5 * own
        # The same fraction of a query is rounded in all candidates: their hits are paired.
        return np.clip(np.floor(QUERIES * rates + rng.random(classes)), 0, QUERIES)


def row(cell: Cell, sets: int) -> Array:
    """Means over sets: wrongly conclusive, conclusive, significant, covered, expected and true loss, former, sizes."""
    given = MEANS[cell.gallery] + SCENARIOS[cell.scenario]
    true = np.concatenate([cell.drawn(given, 50_000, np.random.default_rng(k)).mean(1)[None] for k in range(8)])
    measured, grown = true.mean(0) / QUERIES, cell.gallery == "larger"
    growth = GROWTH if grown else 1.0
    places = list(SCENARIOS).index(cell.scenario), list(MEANS).index(cell.gallery)
    rng = np.random.default_rng([cell.classes, round(100 * cell.sd), *places])
    counts, costs, found = np.full((CANDIDATES, cell.classes), float(QUERIES)), [(dim,) for dim in DIMS], []
    for seed in range(sets):
        order = rng.permutation(CANDIDATES)
        cells = UnitSums(cell.drawn(given[order], cell.classes, rng), counts)
        truth = 1 - growth * (1 - measured[order])
        picked = pick(cells, costs, RAW)
        judged = judge(cells, picked, within=WITHIN, growth=growth, seed=seed)
        near = np.flatnonzero(cells.means >= cells.means.max() - WITHIN / 2 - 1e-9)
        former = min(near.tolist(), key=lambda place: DIMS[place])
        loss, before = truth.max() - truth[[picked, former]]
        conclusive = judged.verdict != "inconclusive"
        found.append((
            conclusive and loss > WITHIN + 1e-4,  # what a finite population blurs
            conclusive,
            judged.verdict == "significant",
            judged.max_loss is not None and loss <= judged.max_loss + 1e-4,
            100 * growth * resample_choice(cells, costs, RAW, seed=seed)[0],
            100 * loss,
            100 * before,
            DIMS[picked],
            DIMS[former],
        ))  # fmt: skip
    means: Array = np.array(found, np.float64).mean(0)
    return means


def verdict_table(classes: list[int], sets: int) -> None:
    shares = "wrongly conclusive, conclusive, significant, covered"
    print(f"gallery classes effects  sd  candidates   | {shares} | expected, true, former | size")
    rows: dict[str, list[Array]] = {gallery: [] for gallery in MEANS}
    for cell in (
        Cell(units, effects, sd, scenario, gallery)
        for gallery in MEANS
        for units in classes
        for effects in ("normal", "t3")
        for sd in (0.05, 0.08, 0.12)
        for scenario in SCENARIOS
    ):
        found = row(cell, sets)
        rows[cell.gallery].append(found)
        told = "  ".join(f"{100 * share:5.1f}" for share in found[:4])
        losses = "  ".join(f"{loss:4.2f}" for loss in found[4:7])
        size = f"{found[8] / found[7]:4.2f}"
        name = f"{cell.gallery:7} {cell.classes:4}  {cell.effects:6} {100 * cell.sd:3.0f}  {cell.scenario:12}"
        print(f"{name} | {told} | {losses} | {size}", flush=True)
    for gallery, of_gallery in [*rows.items(), ("all", [one for each in rows.values() for one in each])]:
        every = np.array(of_gallery)
        means = every.mean(0)
        worst = f"wrongly conclusive {100 * every[:, 0].max():.1f}, covered {100 * every[:, 3].min():.1f}"
        print(f"{gallery}: worst: {worst}; mean covered {100 * means[3]:.1f}")
        losses = f"expected {means[4]:.3f}, true {means[5]:.3f}, of the former rule {means[6]:.3f}"
        print(f"{gallery}: loss {losses}; numbers that it stores {means[8] / means[7]:.2f}")


def eight_equal(classes: list[int], sets: int) -> None:
    print("\neight equal candidates: clear in percent")
    for units in classes:
        for effects in ("normal", "t3"):
            rng, clear, cell = np.random.default_rng(units), 0, Cell(units, effects, 0.08, "equal")
            for seed in range(sets):
                hits = cell.drawn(np.full(8, MEANS["same"]), units, rng)
                cells = UnitSums(hits, np.full(hits.shape, float(QUERIES)))
                picked = pick(cells, [(dim,) for dim in DIMS[:8]], RAW[:8])
                clear += judge(cells, picked, within=WITHIN, seed=seed).verdict == "significant"
            print(f"{units:5}  {effects:6}  {100 * clear / sets:5.1f}", flush=True)


def optimism_table(sets: int) -> None:
    print("\nclasses  apart  optimism  in truth, points")
    for units in (10, 13, 20, 60):
        for apart in (0.0, 0.01):
            rng = np.random.default_rng(units)
            counts, truth = np.full((CANDIDATES, units), float(QUERIES)), MEANS["same"] - apart * np.arange(CANDIDATES)
            told, true = [], []
            for seed in range(sets):
                noise = rng.normal(0, 0.15, units) + rng.normal(0, 0.07, (CANDIDATES, units))
                hits = rng.binomial(QUERIES, np.clip(truth[:, None] + noise, 0, 1)).astype(np.float64)
                cells = UnitSums(hits, counts)
                told.append(optimism(cells, folds_of(range(units), seed=seed)) or 0.0)
                true.append(cells.means.max() - truth[cells.means.argmax()])
            print(f"{units:5}{100 * apart:7.0f}{100 * np.mean(told):10.2f}{100 * np.mean(true):10.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="How often the verdicts of `choose` hold.")
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--classes", default="20,60,200")
    arguments = parser.parse_args()
    classes = [int(text) for text in arguments.classes.split(",")]
    verdict_table(classes, arguments.sets)
    eight_equal([10, *classes], arguments.sets)
    optimism_table(5 * arguments.sets)


if __name__ == "__main__":
    main()
