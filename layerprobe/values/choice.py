"""The result of `layerprobe choose`: the layer to ship, its uncertainty and its costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer, layer_names
from layerprobe.values.scores import Score

SETTLED_SHARE = 0.6  # of resamples that choose the same candidate; below it the choice is not settled
FOLDS = 5  # of cross-fitting


@dataclass(frozen=True)
class Candidate:
    """A layer at an epoch that can be shipped, with its pool, reduction and similarity.

    Args:
        epoch: 0 = before any step; None for features without an epoch.
        dim: numbers, or bits, of an image's vector.
        run: the run's or the experiment's name if several compete; else empty.
    """

    epoch: int | None
    ranked: RankedLayer
    dim: int
    position: int
    run: str = ""

    @property
    def bytes_per_image(self) -> int:
        """4 for each number, 1/8 for each bit."""
        return -(-self.dim // 8) if self.ranked.similarity == "hamming" else 4 * self.dim

    @property
    def steps(self) -> int:
        """The number of reductions in its chain."""
        return 0 if self.ranked.reduction == NO_REDUCTION else self.ranked.reduction.count("+") + 1

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """A lower one is cheaper: bytes an image, then position, then length of the chain, then epoch."""
        return (self.bytes_per_image, self.position, self.steps, self.epoch or 0)


def candidate_names(candidates: Sequence[Candidate], run: str) -> list[str]:
    """`pool5.2@max`, or `netA#16:pool5.2@max` if candidates differ in run or epoch."""
    names = layer_names(candidate.ranked for candidate in candidates)
    if len({(candidate.run, candidate.epoch) for candidate in candidates}) == 1:
        return names
    return [f"{c.run or run}#{c.epoch}:{name}" for c, name in zip(candidates, names, strict=True)]


@dataclass(frozen=True)
class Ship:
    """The layer to ship.

    Args:
        epoch: of the weights; None for features without an epoch.
        dim: numbers, or bits, of an image's vector.
    """

    layer: str
    pool: str
    reduction: str
    epoch: int | None
    dim: int
    bytes_per_image: int

    @property
    def name(self) -> str:
        """The layer with its reduction: `pool5.2@max/l2+whiten:128:0.5+l2`."""
        return str(RankedLayer(LayerKey(self.layer, self.pool), self.reduction, ""))


@dataclass(frozen=True)
class TruncationSavings:
    """The shares of the network's parameters and multiply-adds after a layer, in [0, 1]: not needed to use it."""

    parameters: float
    operations: float


@dataclass(frozen=True)
class Choice:
    """The candidate chosen without looking at the test classes, and its score there.

    Args:
        run: the run's name; the experiment's of several trainings; empty for features without a run.
        test: the same on test classes; if cross-fitted, each fold by the choice on the other folds. None without test
            classes.
        best_on_test: the candidate with the highest score on test, chosen there. None without test classes.
        regret: best_on_test - test, a share; None without test classes.
        optimism: selection bias of best_on_test: its score minus what the best on four folds of the test classes
            reaches on the fifth. None without test classes, or with fewer than 10.
        shares: candidate -> share of the resamples of classes that choose it, the largest first; without those that are
            never chosen.
        settled: whether the share of the chosen candidate is at least 60 %.
        equivalent: the other candidates that are at most `within` worse than the best by the same rule, the cheapest
            first.
        within: how much worse than the best a cheaper candidate may be, in points.
        cut: what comes after the layer in the network; None if that is not known.
    """

    run: str
    chosen: Score
    test: Score | None
    best_on_test: Score | None
    ship: Ship
    regret: float | None
    optimism: float | None
    shares: Mapping[str, float]
    settled: bool
    equivalent: tuple[str, ...] = ()
    within: float = 1.0
    cut: TruncationSavings | None = None
    notes: tuple[str, ...] = field(default=())
