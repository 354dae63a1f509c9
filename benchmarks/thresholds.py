"""How often the intervals of `layerprobe threshold` hold the true rates, in simulations.

python benchmarks/thresholds.py [--draws N] [--unequal]

Images are Gaussian around Gaussian class centres, in 32 dimensions, compared by the cosine. The variance of the centres
along direction k is proportional to 1 (even), k^-1/2 (decaying) or 1/k (steep): the steeper, the fewer classes make up
most of the false accepts. In each draw, a threshold is set at a false accept rate on selection classes, and measured
with its intervals on as many other classes of the same population. The true rates at that threshold are those of
24,000 x 24,000 pairs of images of different classes, and of 1,000,000 pairs of one class.

With --unequal, classes differ in size (6 e^z images with z normal, or 3 x images with x of a Pareto distribution, 2 to
400), or each has a twin, or they lie in groups of 4 to 8: then classes of a pair or group share 90 or 60 % of the
variance of their centres. The true false accept rate is that of as many pairs within groups and beside them. Twins and
groups are shown with classes as units, and with clusters (--cluster).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.pair_rates import rate_intervals
from layerprobe.statistics.units import UnitSums, intervals
from layerprobe.values.retrieval import FloatArray

DIMENSIONS, NOISE = 32, 0.8
POWERS = {"even": 0.0, "decaying": -0.5, "steep": -1.0}
CASES = ((20, 4), (20, 20), (60, 4), (60, 12), (200, 4), (200, 12))
RATES = (1e-2, 1e-3)
PAIRED = 24_000  # images of each side of the true false accept rate
BINS = 200_000
UNEQUAL_DRAWS = {20: 600, 60: 300, 100: 200, 150: 150}  # classes -> draws
FEWEST, MOST = 2, 400  # images of a class
IntArray = NDArray[np.int64]
Float32Array = NDArray[np.float32]
Truth = tuple[FloatArray, FloatArray]  # (BINS + 1,) the rates of false and of true accepts


@dataclass(frozen=True)
class Population:
    """Classes around centres whose variances add up to 1."""

    deviations: FloatArray

    @classmethod
    def of(cls, power: float) -> Population:
        """Variances that fall as a power of the direction."""
        variances = np.arange(1, DIMENSIONS + 1) ** power
        return cls(np.sqrt(variances / variances.sum()))

    def images(self, rng: np.random.Generator, classes: int, images: int) -> FloatArray:
        """(classes, images, D) vectors of length 1."""
        centres = rng.standard_normal((classes, 1, DIMENSIONS)) * self.deviations
        noise = rng.standard_normal((classes, images, DIMENSIONS)) * NOISE / np.sqrt(DIMENSIONS)
        found: FloatArray = centres + noise
        found /= np.linalg.norm(found, axis=2, keepdims=True)
        return found

    def centres(self, rng: np.random.Generator, groups: IntArray, alike: float) -> FloatArray:
        """(classes, D) centres that share so much of their variance within groups (classes,)."""
        shared = rng.standard_normal((groups.max() + 1, DIMENSIONS))[groups]
        own = rng.standard_normal((len(groups), DIMENSIONS))
        centres: FloatArray = (np.sqrt(alike) * shared + np.sqrt(1 - alike) * own) * self.deviations
        return centres

    def around(self, rng: np.random.Generator, centres: FloatArray, classes: IntArray) -> Float32Array:
        """(N, D) an image of length 1 for each class of (N,)."""
        noise = rng.standard_normal((len(classes), DIMENSIONS)) * NOISE / np.sqrt(DIMENSIONS)
        found: FloatArray = centres[classes] + noise
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found.astype(np.float32)

    def rate_within(self, rng: np.random.Generator, alike: float) -> FloatArray:
        """(BINS + 1,) the rate of false accepts of two classes of a group."""
        counts, pairs = np.zeros(BINS, np.int64), np.arange(100_000)
        for _ in range(6):
            centres = self.centres(rng, np.repeat(pairs, 2), alike)
            first, second = (self.around(rng, centres, 2 * pairs + place) for place in range(2))
            counts += _histogram((first * second).sum(1))
        rates: FloatArray = np.r_[counts[::-1].cumsum()[::-1], 0] / counts.sum()
        return rates

    def true_rates(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """(BINS + 1,) the rates of false and of true accepts at thresholds from -1 to 1."""
        counts = np.zeros(BINS, np.int64)
        first, second = (self.images(rng, PAIRED, 1)[:, 0].astype(np.float32) for _ in range(2))
        for start in range(0, PAIRED, 500):
            counts += _histogram(first[start : start + 500] @ second.T)
        pairs = np.zeros(BINS, np.int64)
        for _ in range(20):
            both = self.images(rng, 50_000, 2)
            pairs += _histogram((both[:, 0] * both[:, 1]).sum(1))
        false, true = (np.r_[each[::-1].cumsum()[::-1], 0] / each.sum() for each in (counts, pairs))
        return false, true


def _histogram(cosines: FloatArray | Float32Array) -> np.ndarray:
    places = ((cosines.ravel() + 1) * (BINS / 2)).astype(np.int64)
    return np.bincount(np.clip(places, 0, BINS - 1), minlength=BINS)


@dataclass(frozen=True)
class Missed:
    """How often an interval lay above and below the truth, of so many intervals."""

    above: int
    below: int
    of: int

    @classmethod
    def among(cls, ends: FloatArray) -> Missed:
        """Of true rates and both ends (3, N), NaN where there is no interval."""
        truth, low, high = ends[:, np.isfinite(ends[1])]
        return cls(int((low > truth).sum()), int((high < truth).sum()), len(truth))

    def __str__(self) -> str:
        if not self.of:
            return "-"
        share = 100 * (1 - (self.above + self.below) / self.of)
        return f"{share:.1f} ({100 * self.above / self.of:.1f}, {100 * self.below / self.of:.1f})"


def coverage(population: Population, classes: int, images: int, draws: int, seed: int) -> list[tuple[float, str]]:
    """A row of the table for each rate: the rate, and the cells."""
    rng = np.random.default_rng([seed, classes, images])
    false, true = population.true_rates(np.random.default_rng(seed))
    grid = np.linspace(-1, 1, BINS + 1)
    of_class = np.repeat(np.arange(classes), images)
    apart = np.triu(of_class[:, None] != of_class, 1)
    pairs = np.triu(np.full((classes, classes), images**2), 1)
    together = np.full((1, classes), images * (images - 1) / 2)
    ends: dict[float, list[tuple[float, float, float, float, float, float, bool]]] = {rate: [] for rate in RATES}
    for _ in range(draws):
        own = population.images(rng, classes, images).reshape(-1, DIMENSIONS)
        new = population.images(rng, classes, images).reshape(-1, DIMENSIONS)
        impostors, similar = (own @ own.T)[apart], new @ new.T
        for rate in RATES:
            rejected = len(impostors) - int(rate * len(impostors)) - 1
            threshold = float(np.partition(impostors, rejected)[rejected]) + 1e-12
            cells = (similar >= threshold).reshape(classes, images, classes, images).sum((1, 3))
            accepted = np.triu(cells, 1)
            (far,) = rate_intervals(accepted[None], pairs)
            (tar,) = intervals(UnitSums((np.diag(cells)[None] - images) / 2, together))
            if far is None:
                raise ValueError(f"{classes} classes are too few for an interval")
            low, high = (np.nan, np.nan) if tar is None else (tar.low, tar.high)
            truth = float(np.interp(threshold, grid, false)), float(np.interp(threshold, grid, true))
            ends[rate].append((truth[0], far.low, far.high, truth[1], low, high, not accepted.any()))
    rows = []
    for rate, found in ends.items():
        far_true, far_low, far_high, tar_true, tar_low, tar_high, none = np.array(found, float).T
        rates = np.array([far_true, far_low, far_high]), np.array([tar_true, tar_low, tar_high])
        missed = [Missed.among(each) for each in rates]
        width = f"{np.median(far_low) / rate:.2f} to {np.median(far_high) / rate:.2f}"
        cells_of = (
            f"{100 * tar_true.mean():.0f} %",
            f"{100 * none.mean():.0f} %",
            str(missed[0]),
            width,
            str(missed[1]),
        )
        rows.append((rate, " | ".join(cells_of)))
    return rows


@dataclass(frozen=True)
class Unequal:
    """Classes of unequal size, or in groups of look-alikes.

    Args:
        shape: of the distribution of sizes: None for 8 images each, 0 for lognormal, else of Pareto.
        groups: fewest and most classes of a group.
        alike: share of the variance of centres that classes of a group have in common.
    """

    name: str
    classes: tuple[int, ...] = (20, 60, 150)
    shape: float | None = None
    groups: tuple[int, int] = (1, 1)
    alike: float = 0.0

    def sizes(self, rng: np.random.Generator, classes: int) -> IntArray:
        """(classes,) numbers of images."""
        if self.shape is None:
            return np.full(classes, 8)
        drawn = (
            6 * np.exp(rng.standard_normal(classes)) if not self.shape else 3 * (1 + rng.pareto(self.shape, classes))
        )
        sizes: IntArray = np.clip(np.round(drawn), FEWEST, MOST).astype(np.int64)
        return sizes

    def group_of(self, rng: np.random.Generator, classes: int) -> IntArray:
        """(classes,) the group of each; the last may be cut off."""
        return np.repeat(np.arange(classes), rng.integers(self.groups[0], self.groups[1] + 1, classes))[:classes]


UNEQUAL = (
    Unequal("lognormal", shape=0),
    Unequal("Pareto 2", shape=2),
    Unequal("Pareto 1.2", shape=1.2),
    Unequal("twins", groups=(2, 2), alike=0.9),
    Unequal("groups", (60, 100, 150), groups=(4, 8), alike=0.6),
)


@dataclass(frozen=True)
class Drawn:
    """Images of a draw.

    Args:
        sizes: (C,) of each class.
        groups: (C,) of each class.
        cosines: (N, N) of images, class by class.
    """

    sizes: IntArray
    groups: IntArray
    cosines: Float32Array

    @classmethod
    def of(cls, population: Population, case: Unequal, rng: np.random.Generator, classes: int) -> Drawn:
        """As many classes of a population."""
        sizes, groups = case.sizes(rng, classes), case.group_of(rng, classes)
        images = population.around(
            rng, population.centres(rng, groups, case.alike), np.repeat(np.arange(classes), sizes)
        )
        return cls(sizes, groups, images @ images.T)

    @property
    def pairs(self) -> IntArray:
        """(C, C) of images of two classes, above the diagonal."""
        pairs: IntArray = np.triu(np.outer(self.sizes, self.sizes), 1)
        return pairs

    def threshold(self, rate: float) -> float:
        """The lowest one with at most a rate of false accepts."""
        classes = np.repeat(np.arange(len(self.sizes)), self.sizes)
        impostors = self.cosines[np.triu(classes[:, None] != classes, 1)]
        rejected = len(impostors) - int(rate * len(impostors)) - 1
        return float(np.partition(impostors, rejected)[rejected]) + 1e-7

    def accepted(self, threshold: float) -> tuple[IntArray, IntArray]:
        """(C, C) false accepts above the diagonal, and (C,) true ones."""
        starts = np.r_[0, np.cumsum(self.sizes)[:-1]]
        rows = np.add.reduceat(self.cosines >= threshold, starts, axis=1, dtype=np.int32)
        cells = np.add.reduceat(rows, starts, axis=0, dtype=np.int64)
        return np.triu(cells, 1), (np.diag(cells) - self.sizes) // 2


def unequal_ends(
    population: Population, truth: Truth, case: Unequal, classes: int, seed: int
) -> dict[tuple[bool, float], FloatArray]:
    """Whether clusters are the units, and the rate -> (6, draws) true rates and both ends, of FAR and of TAR."""
    rng = np.random.default_rng([seed, classes, *case.name.encode()])
    false, true = truth
    within = population.rate_within(np.random.default_rng(seed), case.alike) if case.alike else false
    grid = np.linspace(-1, 1, BINS + 1)
    found: dict[tuple[bool, float], list[list[float]]] = {}
    for _ in range(UNEQUAL_DRAWS[classes]):
        setting, drawn = (Drawn.of(population, case, rng, classes) for _ in range(2))
        share = drawn.pairs[drawn.groups[:, None] == drawn.groups].sum() / drawn.pairs.sum()
        for rate in RATES:
            threshold = setting.threshold(rate)
            far, rate_of_group, tar = (float(np.interp(threshold, grid, each)) for each in (false, within, true))
            for clustered in (False, True)[: 1 + bool(case.alike)]:
                ends = _unequal_intervals(drawn, threshold, clustered)
                expected = (1 - share) * far + share * rate_of_group
                found.setdefault((clustered, rate), []).append([expected, *ends[:2], tar, *ends[2:]])
    return {key: np.array(rows).T for key, rows in found.items()}


def _unequal_intervals(drawn: Drawn, threshold: float, clustered: bool) -> list[float]:
    """Both ends of FAR and of TAR, NaN without an interval."""
    (impostor, genuine), pairs = drawn.accepted(threshold), drawn.pairs
    genuine_pairs, classes = drawn.sizes * (drawn.sizes - 1) // 2, None
    if clustered:
        merged, classes = np.eye(drawn.groups.max() + 1, dtype=np.int64)[drawn.groups], len(drawn.groups)
        impostor, pairs = merged.T @ impostor @ merged, merged.T @ pairs @ merged
        genuine, genuine_pairs = genuine @ merged, genuine_pairs @ merged
    (far,) = rate_intervals(impostor[None], pairs, classes=classes)
    (tar,) = intervals(UnitSums(genuine[None].astype(np.float64), genuine_pairs[None].astype(np.float64)))
    return [end for one in (far, tar) for end in ((np.nan, np.nan) if one is None else (one.low, one.high))]


def print_unequal(seed: int) -> None:
    """Print a row for each case, number of classes, unit and rate."""
    over = " | ".join(POWERS)
    print(f"| classes | units | rate | FAR held (above, below): {over} | all | interval | TAR held: {over} | all |")
    print("|---|---|---|" + "---|" * (2 * len(POWERS) + 3))
    populations = [Population.of(power) for power in POWERS.values()]
    known = [(population, population.true_rates(np.random.default_rng(seed))) for population in populations]
    for case in UNEQUAL:
        for classes in case.classes:
            by_population = [unequal_ends(*one, case, classes, seed) for one in known]
            for clustered, rate in by_population[0]:
                each = [found[clustered, rate] for found in by_population]
                together = np.concatenate(each, axis=1)
                far, tar = ([str(Missed.among(ends[at : at + 3])) for ends in (*each, together)] for at in (0, 3))
                low, high = (np.nanmedian(together[at] / together[0]) for at in (1, 2))
                cells = " | ".join([*far, f"{low:.2f} to {high:.2f}", *(held.split()[0] for held in tar)])
                units = "clusters" if clustered else "classes"
                print(f"| {case.name}, {classes} | {units} | {rate:g} | {cells} |", flush=True)


def main() -> None:
    """Print the table, a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unequal", action="store_true", help="classes of unequal size, twins and groups")
    given = parser.parse_args()
    if given.unequal:
        print_unequal(given.seed)
        return
    print("| centres | classes x images | rate | TAR | none accepted | FAR held (above, below) | interval | TAR held |")
    print("|---|---|---|---|---|---|---|---|")
    for name, power in POWERS.items():
        for classes, images in CASES:
            draws = given.draws if classes * images < 1000 else given.draws // 3
            for rate, cells in coverage(Population.of(power), classes, images, draws, given.seed):
                print(f"| {name} | {classes} x {images} | {rate:g} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
