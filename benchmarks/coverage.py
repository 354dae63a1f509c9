"""How often intervals hold the truth, in simulated sets of queries: classes, or clusters of them, against one gallery.

    python benchmarks/coverage.py [--sets N] [--only mean|null|bands|gap|seeds]

Every set of queries draws its units anew. A class has a hit rate of its own on the logit scale, around that of its
layer, normal or with heavy tails (Student's t with 3 degrees of freedom, of the same standard deviation), and each of
its queries hits or misses by it; the truth is the hit rate of all classes there could be, each weighed by its queries.
A thousand sets of all tables take half an hour of one thread.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import product

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from layerprobe.statistics.bootstrap import bands, between, differences, holm
from layerprobe.statistics.seeds import over_seeds
from layerprobe.statistics.units import UnitSums, intervals
from layerprobe.values.intervals import Difference, Interval

FloatArray = NDArray[np.float64]

UNITS = (10, 20, 60, 200)
LAYERS = 14
# Sets that share the draws of units: few enough that the luck of the draws averages out.
SHARED = 50
POPULATION = 400_000
LIKE_CUB, LIKE_SOP, CLUSTERS = "classes of 41 to 60", "of 2 to 12", "clusters of 1 to 12"
UNEQUAL, HARDER = "of 2 to 300", "of 2 to 300, larger harder"
Effects = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return rng.normal(size=shape)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Of Student's t with 3 degrees of freedom, whose variance is 3."""
    return rng.standard_t(3, shape) / 3**0.5


def layers_apart(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Effects that all layers share, and of half that variance their own."""
    return rng.normal(0, 1.5**0.5, shape)


EFFECTS: dict[str, Effects] = {"normal": normal, "t3": heavy_tailed}


def units(
    rng: np.random.Generator, kind: str, shape: tuple[int, ...], logit: float, effects: Effects = normal
) -> UnitSums:
    """Hits and queries of units.

    In clusters, two thirds of the variance are the classes' own. Where larger classes are harder, an e-fold larger
    one has a logit lower by 0.3.
    """
    if kind == CLUSTERS:
        classes = np.arange(12) < rng.integers(1, 13, (*shape, 1))
        counts = classes * rng.integers(10, 31, (*shape, 12))
        own = (2 / 3) ** 0.5 * effects(rng, counts.shape)
        rates = expit(logit + (1 / 3) ** 0.5 * effects(rng, (*shape, 1)) + own)
        return UnitSums(rng.binomial(counts, rates).sum(-1).astype(float), counts.sum(-1).astype(float))
    own = effects(rng, shape)
    if kind in (UNEQUAL, HARDER):
        logs = rng.normal(3, 0.8, shape)
        counts = np.exp(logs).round().astype(int).clip(2, 300)
        own -= 0.3 * (logs - 3) * (kind == HARDER)
    else:
        counts = rng.integers(41, 61, shape) if kind == LIKE_CUB else rng.integers(2, 13, shape)
    return UnitSums(rng.binomial(counts, expit(logit + own)).astype(float), counts.astype(float))


def truth(kind: str, logit: float, effects: Effects = normal) -> float:
    """The hit rate of a population of units."""
    size = POPULATION // (10 if kind == CLUSTERS else 1)
    return float(units(np.random.default_rng(1), kind, (1, size), logit, effects).means[0])


def bootstrap_t(cells: UnitSums, seed: int) -> list[Interval | None]:
    """The band of each mean alone, for comparison: the two-sided bootstrap-t."""
    rows = (UnitSums(cells.sums[[row]], cells.counts[[row]]) for row in range(len(cells.sums)))
    return [bands(row, seed=seed)[0] for row in rows]


def pieces(sets: int) -> Iterator[tuple[int, int]]:
    """A seed, and a number of sets that share draws of units."""
    for start in range(0, sets, SHARED):
        yield start + 1, min(SHARED, sets - start)


def covered(found: Sequence[Interval | Difference | None], true: float) -> str:
    """Share of the intervals that hold the truth, the shares below and above it, and the mean width, in percent."""
    made = [(one.low, one.high) for one in found if one is not None and one.low is not None and one.high is not None]
    low, high = np.array(made).T
    below, above = (high < true).mean(), (low > true).mean()
    text = f"{100 * (1 - below - above):5.1f} ({100 * below:4.1f} {100 * above:4.1f}) {100 * (high - low).mean():5.1f}"
    return f"{text} {len(found) - len(made):5}"


def mean_table(sets: int) -> None:
    print("Means. Covered, truth above and below the interval, mean width in points, sets without an interval;")
    print("then the same of the bootstrap-t")
    for kind, (name, effects) in product((LIKE_CUB, LIKE_SOP, CLUSTERS, UNEQUAL, HARDER), EFFECTS.items()):
        for number, logit in product(UNITS, (0.0, 2.0, 3.2, 4.2, 5.3)):
            rng, true = np.random.default_rng(0), truth(kind, logit, effects)
            found: list[Interval | None] = []
            drawn: list[Interval | None] = []
            for seed, some in pieces(sets):
                cells = units(rng, kind, (some, number), logit, effects)
                found += intervals(cells)
                drawn += bootstrap_t(cells, seed)
            shown = f"{covered(found, true)} | {covered(drawn, true)}"
            print(f"{kind:<27}{name:<7}{number:4} {100 * true:5.1f} | {shown}", flush=True)


def null_cells(rng: np.random.Generator, sets: int, number: int, logit: float) -> list[UnitSums]:
    """Differences of 14 layers and a further one, all of one true recall, on the same queries of each set.

    A class has an effect that all layers share and one of its own in every layer, of half that variance.
    """
    counts = np.broadcast_to(rng.integers(5, 61, (sets, 1, number)), (sets, LAYERS + 1, number))
    effects = rng.normal(0, 1, (sets, 1, number)) + rng.normal(0, 0.5**0.5, counts.shape)
    hits = rng.binomial(counts, expit(logit + effects)).astype(float)
    return [
        UnitSums(hits[one, 1:] - hits[one, :1], counts[one, 1:].astype(float)) for one in range(sets)
    ]  # a set's layers are one table


def null_table(sets: int) -> None:
    print("Null comparisons of classes of 5 to 60. Rejected alone, and sets of 14 in which Holm rejects any")
    for number in UNITS:
        for logit in (0.0, 3.2):
            rng, alone, together = np.random.default_rng(0), 0, 0
            for seed, some in pieces(sets):
                tables = null_cells(rng, some, number, logit)
                cells = UnitSums(
                    *(np.concatenate([getattr(one, part) for one in tables]) for part in ("sums", "counts"))
                )
                p = [found.p for found in differences(cells, resamples=2000, seed=seed)]
                for start in range(0, len(p), LAYERS):
                    own = p[start : start + LAYERS]
                    alone += rejected(own[:1])
                    together += rejected(holm(own))
            recall = 100 * truth(LIKE_CUB, logit, layers_apart)
            print(
                f"{number:4} units, recall {recall:4.1f}: {100 * alone / sets:5.1f} %  {100 * together / sets:5.1f} %"
            )


def rejected(p: Sequence[float | None]) -> bool:
    return any(value is not None and value < 0.05 for value in p)


def bands_table(sets: int) -> None:
    print("Bands of 14 layers. Sets in which all hold, and in which the best layer's does; the same of intervals")
    logits = np.linspace(0, 3, LAYERS)
    for number in (20, 60):
        rng = np.random.default_rng(0)
        true = np.array([truth(LIKE_CUB, logit, layers_apart) for logit in logits])
        held = np.zeros((2, 2))
        for start in range(sets):
            counts = np.broadcast_to(rng.integers(41, 61, number), (LAYERS, number))
            effects = rng.normal(0, 1, number) + rng.normal(0, 0.5**0.5, counts.shape)
            hits = rng.binomial(counts, expit(logits[:, None] + effects)).astype(float)
            cells = UnitSums(hits, counts.astype(float))
            best = int(cells.means.argmax())
            for row, found in enumerate((bands(cells, seed=start), intervals(cells))):
                holds = [one is not None and one.low <= at <= one.high for one, at in zip(found, true, strict=True)]
                held[row] += (all(holds), holds[best])
        print(f"{number:4} units: {'  '.join(f'{100 * share:5.1f} %' for share in held.ravel() / sets)}")


def gap_table(sets: int) -> None:
    print("Gaps of train and test classes of 41 to 60. Covered, truth above and below, width, without an interval")
    for train, test in ((10, 10), (100, 20), (20, 100), (60, 60), (100, 100)):
        for logits in ((2.0, 0.5), (4.2, 2.0), (0.5, 0.5)):
            rng = np.random.default_rng(0)
            true = truth(LIKE_CUB, logits[0]) - truth(LIKE_CUB, logits[1])
            found: list[Difference] = []
            for seed, some in pieces(sets):
                pair = (units(rng, LIKE_CUB, (some, n), at) for n, at in zip((train, test), logits, strict=True))
                found += between(*pair, seed=seed, resamples=2000)
            print(f"{train:4} and {test:4} units, gap {100 * true:5.1f}: {covered(found, true)}")


def seeds_table(sets: int) -> None:
    print("A difference of 2 points over S trainings on 60 classes, which vary by 10 points; covered: the mean over")
    print("trainings, a new run on these classes, one on 60 others; the share of the variance between")
    print("trainings that is the interaction of training and class. Expected: 92 to 98, more only where it dominates")
    for number in (3, 5, 10):
        for effects in EFFECTS:
            for spread, own in ((1.0, 0.0), (1.0, 3.0), (1.0, 10.0), (0.0, 10.0)):
                each = [seeds_hold(number, EFFECTS[effects], spread, own, seed) for seed in range(sets)]
                held: FloatArray = np.mean(each, axis=0)
                share = (own**2 / 60) / (spread**2 + own**2 / 60)
                shown = "  ".join(f"{100 * one:5.1f}" for one in held)
                kept = held.min() >= 0.92 and (held.max() <= 0.98 or share > 0.5)
                print(f"{number:3} trainings, {effects:6}, sd {spread} of trainings, {own:4} of interaction:"
                      f" {shown} | {100 * share:3.0f} %{'' if kept else ', NOT AS EXPECTED'}", flush=True)  # fmt: skip
    print(
        "The same over 3 trainings, normal effects, classes of 2 to 300 queries: 6 e^N(0, 1), or 3 (1 + Pareto(shape))"
    )
    for sizes in SIZES:
        for classes in (20, 60):
            for spread, own in ((1.0, 0.0), (0.0, 10.0)):
                held = np.mean([unequal_hold(sizes, classes, spread, own, seed) for seed in range(sets)], axis=0)
                shown = "  ".join(f"{100 * one:5.1f}" for one in held)
                print(
                    f"{sizes:10}, {classes} classes, sd {spread} of trainings, {own:4} of interaction: {shown}",
                    flush=True,
                )


def seeds_hold(number: int, effects: Effects, spread: float, own: float, seed: int) -> FloatArray:
    """(3,) whether each of the three statements holds in a set."""
    rng = np.random.default_rng([number, seed])

    shifts = rng.normal(0, spread, (number + 1, 1))
    means = 2 + shifts + 10 * effects(rng, (120,)) + own * effects(rng, (number + 1, 120))
    found = over_seeds(UnitSums(means[:number, :60], np.ones((number, 60))), seed=seed, resamples=100)
    if found.same_classes is None or found.other_classes is None:
        raise SystemExit("no interval")
    low, high = ends(found.trainings)
    same, other = means[number, :60].mean(), means[number, 60:].mean()
    return np.array([
        low <= 2 <= high,
        found.same_classes.low <= same <= found.same_classes.high,
        found.other_classes.low <= other <= found.other_classes.high,
    ], np.float64)  # fmt: skip


SIZES: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "lognormal": lambda rng, classes: 6 * np.exp(rng.standard_normal(classes)),
    "Pareto 2": lambda rng, classes: 3 * (1 + rng.pareto(2, classes)),
    "Pareto 1.2": lambda rng, classes: 3 * (1 + rng.pareto(1.2, classes)),
}


def unequal_hold(sizes: str, classes: int, spread: float, own: float, seed: int) -> FloatArray:
    """(2,) whether the mean over 3 trainings, and a new run on other classes, lie in their intervals."""
    rng = np.random.default_rng([classes, seed])
    here, elsewhere = (np.clip(np.round(SIZES[sizes](rng, classes)), 2, 300) for _ in range(2))
    means = (
        2 + rng.normal(0, spread, (4, 1)) + 10 * rng.normal(size=2 * classes) + own * rng.normal(size=(4, 2 * classes))
    )
    found = over_seeds(UnitSums(means[:3, :classes] * here, np.tile(here, (3, 1))), seed=seed, resamples=100)
    if found.other_classes is None:
        raise SystemExit("no interval")
    low, high = ends(found.trainings)
    other = np.average(means[3, classes:], weights=elsewhere)
    return np.array([low <= 2 <= high, found.other_classes.low <= other <= found.other_classes.high], np.float64)


def ends(found: Difference) -> tuple[float, float]:
    if found.low is None or found.high is None:
        raise SystemExit("no interval")
    return found.low, found.high


TABLES = {"mean": mean_table, "null": null_table, "bands": bands_table, "gap": gap_table, "seeds": seeds_table}


def main() -> None:
    parser = argparse.ArgumentParser(description="How often intervals hold the truth, in simulated sets of queries.")
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--only", choices=list(TABLES))
    arguments = parser.parse_args()
    print(f"{arguments.sets} sets each")
    for name, table in TABLES.items():
        if arguments.only in (None, name):
            table(arguments.sets)


if __name__ == "__main__":
    main()
