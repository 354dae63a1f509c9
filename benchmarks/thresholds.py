"""How often the intervals of `layerprobe threshold` hold the true rates, in simulations.

python benchmarks/thresholds.py [--draws N]

Images are Gaussian around Gaussian class centres, in 32 dimensions, compared by the cosine. The variance of the centres
along direction k is proportional to 1 (even), k^-1/2 (decaying) or 1/k (steep): the steeper, the fewer classes make up
most of the false accepts. In each draw, a threshold is set at a false accept rate on choosing classes, and measured
with its intervals on as many other classes of the same population. The true rates at that threshold are those of
24,000 x 24,000 pairs of images of different classes, and of 1,000,000 pairs of one class.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from layerprobe.statistics.means import intervals
from layerprobe.statistics.pair_rates import rate_intervals
from layerprobe.statistics.units import UnitSums
from layerprobe.values.arrays import FloatArray

DIMENSIONS, NOISE = 32, 0.8
POWERS = {"even": 0.0, "decaying": -0.5, "steep": -1.0}
CASES = ((20, 4), (20, 20), (60, 4), (60, 12), (200, 4), (200, 12))
RATES = (1e-2, 1e-3)
PAIRED = 24_000  # images of each side of the true false accept rate
BINS = 200_000


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


def _histogram(cosines: FloatArray | np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> np.ndarray:
    places = ((cosines.ravel() + 1) * (BINS / 2)).astype(np.int64)
    return np.bincount(np.clip(places, 0, BINS - 1), minlength=BINS)


@dataclass(frozen=True)
class Missed:
    """How often an interval lay above and below the truth, of so many intervals."""

    above: int
    below: int
    of: int

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
        there = np.isfinite(tar_low)
        missed = [
            Missed(int((far_low > far_true).sum()), int((far_high < far_true).sum()), draws),
            Missed(int((tar_low > tar_true)[there].sum()), int((tar_high < tar_true)[there].sum()), int(there.sum())),
        ]
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


def main() -> None:
    """Print the table, a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| centres | classes x images | rate | TAR | none accepted | FAR held (above, below) | interval | TAR held |")
    print("|---|---|---|---|---|---|---|---|")
    for name, power in POWERS.items():
        for classes, images in CASES:
            draws = given.draws if classes * images < 1000 else given.draws // 3
            for rate, cells in coverage(Population.of(power), classes, images, draws, given.seed):
                print(f"| {name} | {classes} x {images} | {rate:g} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
