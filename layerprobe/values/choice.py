"""The result of `layerprobe choose`: the layer to ship, its uncertainty and its costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from layerprobe.values.indexes import IndexCosts
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer, layer_names
from layerprobe.values.scores import Score

FOLDS = 5  # of cross-fitting
Advice = Literal["switch", "keep", "either", "unknown"]
Verdict = Literal["clear", "settled", "open"]


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

    @property
    def ship(self) -> Ship:
        """The candidate as what to ship."""
        layer = self.ranked.layer
        return Ship(layer.layer, layer.pool, self.ranked.reduction, self.epoch, self.dim, self.bytes_per_image)


def candidate_names(candidates: Sequence[Candidate], run: str, among: Sequence[Candidate] | None = None) -> list[str]:
    """`pool5.2@max`, or `netA#16:pool5.2@max` if those `among` which they are chosen differ in run or epoch."""
    names = layer_names(candidate.ranked for candidate in candidates)
    if len({(candidate.run, candidate.epoch) for candidate in among or candidates}) == 1:
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
    def ranked(self) -> RankedLayer:
        """The layer with its reduction, by no similarity."""
        return RankedLayer(LayerKey(self.layer, self.pool), self.reduction, "")

    @property
    def name(self) -> str:
        """The layer with its reduction: `pool5.2@max/l2+whiten:128:0.5+l2`."""
        return str(self.ranked)


@dataclass(frozen=True)
class TruncationSavings:
    """The shares of the network's parameters and multiply-adds after a layer, in [0, 1]: not needed to use it."""

    parameters: float
    operations: float


@dataclass(frozen=True)
class Gain:
    """A difference on test of what is shipped and the embedding, paired by queries, as a share.

    Args:
        low: lower end of its 95 % interval over classes; None with fewer than 10 of these.
    """

    difference: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Embedding:
    """What is used today: the embedding without a reduction, at the last measured epoch.

    Args:
        test: its score on test.
        alike: the score on test of the embedding at the shipped epoch and post-processing; None if that is `test`, or
            is not measured.
        gain: of the shipped layer over `alike`: the part of the gain that is the layer's; None likewise.
    """

    layer: Ship
    test: Score
    alike: Score | None = None
    gain: Gain | None = None


@dataclass(frozen=True)
class Price:
    """What an image costs with the shipped layer.

    Args:
        bytes: of its vector.
        share_of_multiply_adds: of the network's, up to the layer; None if unknown.
    """

    bytes: int
    share_of_multiply_adds: float | None


@dataclass(frozen=True)
class Choice:
    """The candidate chosen without looking at the test classes, and its score there.

    Args:
        run: the run's name; the experiment's of several trainings; empty for features without a run.
        chosen: its score on the classes that are chosen on.
        test: the same on test classes; if cross-fitted, each fold by the choice on the other folds, so that it is of
            the procedure. None without test classes.
        embedding: None if the embedding is not known or not measured on test.
        gain: of what is shipped over the embedding; of the procedure if cross-fitted. None without one of them.
        advice: switch from the embedding, keep it, either will do, or unknown: cannot be told from these classes.
        verdict: clear: the shipped candidate is significantly better than each of the others; settled: `at_most` is at
            most `within`; else open.
        at_most: what the shipped candidate lacks to the best, with 95 % confidence, in points, 0 to 100; None with
            fewer than 10 classes.
        expected_loss: what choosing on as many other classes is expected to lose, in points; None likewise.
        runner_up: the best of the other candidates; None for a single one.
        lead: of the shipped candidate over it, on the classes that are chosen on.
        equivalent: the candidates whose own `at_most` is at most `within`, the shipped one among them, the cheapest
            first.
        candidates: how many there are; those that rank every query alike count once.
        classes: that are chosen on.
        classes_needed: about how many classes would settle it; None if it is settled, or would be more than 100 times
            as many.
        best_on_test: the candidate with the highest score on test, chosen there. None without test classes.
        regret: best_on_test - test, a share, at least 0; None without test classes, and if cross-fitted.
        optimism: selection bias of best_on_test: its score minus what the best on four folds of the test classes
            reaches on the fifth. None without test classes, or with fewer than 10.
        shares: candidate -> share of the resamples of classes that choose it, the largest first; without those that are
            never chosen.
        within: how much worse than the best the shipped candidate may be, in points.
        cut: what comes after the layer in the network; None if unknown.
        indexes: of the shipped layer, if `--index` asks for them.
    """

    run: str
    ship: Ship
    chosen: Score
    test: Score | None
    embedding: Embedding | None
    gain: Gain | None
    price: Price
    advice: Advice
    verdict: Verdict
    at_most: float | None
    expected_loss: float | None
    runner_up: str | None
    lead: Gain | None
    equivalent: tuple[str, ...]
    candidates: int
    classes: int
    classes_needed: int | None
    best_on_test: Score | None
    regret: float | None
    optimism: float | None
    shares: Mapping[str, float]
    within: float = 1.0
    cut: TruncationSavings | None = None
    notes: tuple[str, ...] = field(default=())
    indexes: IndexCosts | None = None

    @property
    def settled(self) -> bool:
        """Whether the verdict is clear or settled."""
        return self.verdict != "open"

    def as_json(self) -> dict[str, Any]:
        """The fields, and the version of their form."""
        return {"schema": 2, **{one.name: getattr(self, one.name) for one in fields(self)}}
