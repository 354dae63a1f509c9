"""Choice: which layer to ship, how sure that is, and what it costs; filled in by `layerprobe choose`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer, layer_names
from layerprobe.values.scores import Score

SETTLED_SHARE = 0.6  # of the resamples that choose the same candidate: below it, the choice is not settled
FOLDS = 5  # of cross-fitting


@dataclass(frozen=True)
class Candidate:
    """What could be shipped: a layer at an epoch, pooled, reduced and searched in one way.

    Args:
        epoch: 0 = before any step; None for features that come without one.
        dim: numbers, or bits, of an image's vector.
        place: of the layer in the network; of `A+B` that of its last layer.
        run: the run's name, or the experiment's, where several are chosen among; else empty.
    """

    epoch: int | None
    ranked: RankedLayer
    dim: int
    place: int
    run: str = ""

    @property
    def bytes_per_image(self) -> int:
        """Four for each number; packed bits an eighth for each."""
        return -(-self.dim // 8) if self.ranked.similarity == "hamming" else 4 * self.dim

    @property
    def steps(self) -> int:
        """How many reductions its chain has."""
        return 0 if self.ranked.reduction == NO_REDUCTION else self.ranked.reduction.count("+") + 1

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """A lower one is cheaper: fewest bytes an image, then the earlier layer, the shorter chain and the epoch."""
        return (self.bytes_per_image, self.place, self.steps, self.epoch or 0)


def candidate_names(candidates: Sequence[Candidate], run: str) -> list[str]:
    """`pool5.2@max`, or `netA#16:pool5.2@max` where candidates differ in their run or epoch.

    Args:
        run: of candidates that name none.
    """
    names = layer_names(candidate.ranked for candidate in candidates)
    if len({(candidate.run, candidate.epoch) for candidate in candidates}) == 1:
        return names
    return [f"{c.run or run}#{c.epoch}:{name}" for c, name in zip(candidates, names, strict=True)]


@dataclass(frozen=True)
class Ship:
    """What to ship.

    Args:
        layer: its name, or `A+B`.
        reduction: none, or the chain of reductions.
        epoch: whose weights; None for features that come without one.
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
    """How much of the network comes after a layer, and need not be run or stored to use it.

    Args:
        parameters: of the network's parameters, the share after the layer, in [0, 1].
    """

    parameters: float
    operations: float


@dataclass(frozen=True)
class Choice:
    """Which candidate is chosen, without looking at the test classes, and how good it is there.

    Args:
        run: the run's name; the experiment's where several runs are chosen among; empty for features without a run.
        chosen: the candidate on the classes that it was chosen on.
        test: the same on test classes, which it was not chosen on; of cross-fitting, what the choice on the other folds
            gives on each fold. None where there are no test classes.
        best_on_test: the candidate of the highest score on test: chosen by looking. None likewise.
        regret: best_on_test - test, a share; None likewise.
        optimism: by how much the score of best_on_test is too high as it was chosen on the same classes: it less what
            the best on four folds of the test classes gives on the fifth. None likewise, or below 10 classes.
        shares: candidate -> share of the resamples of classes that choose it, the largest first; those never chosen are
            left out.
        settled: whether the chosen one's share is at least 60 %.
        equivalent: candidates that could be chosen as well: at most `within` worse than the best by the same rule, the
            cheapest first.
        within: how much worse than the best a cheaper candidate may be, in points.
        cut: how much of the network the layer leaves out; None where the network is not known.
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
