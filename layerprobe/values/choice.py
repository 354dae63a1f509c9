"""The result of `layerprobe choose`: the layer to ship, its uncertainty and its costs, as values and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from layerprobe.values.facts import chosen_on_text
from layerprobe.values.indexes import IndexCosts
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer, layer_names
from layerprobe.values.likeness import unlike_text
from layerprobe.values.scores import Score, note_text

FOLDS = 5  # of cross-fitting
_SHOWN = 4  # candidates whose shares are printed
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
    """The shares of the network's parameters and multiply-adds after a layer, in [0, 1]: not needed to use it.

    Args:
        operations: None where they cannot be counted.
    """

    parameters: float
    operations: float | None


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


@dataclass(frozen=True, repr=False)
class Choice:
    """The candidate chosen without looking at the test classes, and its score there; printed as the command does.

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

    def __repr__(self) -> str:
        return "\n".join(choice_lines(self))


def choice_lines(choice: Choice) -> list[str]:
    """The advice and the verdict, then what they rest on; a line each."""
    head = f"{choice.run}: " if choice.run else ""
    advice = advice_text(choice)
    chosen_on = chosen_on_text(choice.chosen.split)
    lines = [
        f"{head}{advice if head else advice[0].upper() + advice[1:]}",
        verdict_text(choice),
        *_today(choice),
        f"  ship: {ship_text(choice.ship)}{_operations(choice)}",
        *_on_test(choice),
        f"  chosen on {chosen_on}: {_value(choice.chosen)}, {_count(choice.classes, 'class', 'classes')},"
        f" {_count(choice.candidates, 'candidate', 'candidates')}",
    ]
    return [*lines, *_details(choice), *choice.notes, *_notes(choice)]


def advice_text(choice: Choice) -> str:
    """Whether to switch from the embedding, by the gain on test: `switch from fc6 to pool3.3@max: +10.7 points ...`."""
    ship, embedding, gain = choice.ship, choice.embedding, choice.gain
    if embedding is None or gain is None:
        return f"ship {ship.name}; its gain is unknown: {_why_unknown(choice)}."
    old, on_test = embedding.layer.name, f"on test{_ends(gain)}"
    points = f"{100 * gain.difference:+.1f} points"
    if choice.advice == "keep" and ship == embedding.layer:
        return f"keep {old}: it is also what would be shipped."
    if choice.advice == "keep":
        return f"keep {old}: {_named(ship, embedding.layer)} is worse, {points} {on_test}."
    if choice.advice == "either":
        cheaper = min((embedding.layer, ship), key=lambda one: one.bytes_per_image)
        size = f"{cheaper.name} is the cheaper, {cheaper.bytes_per_image:,} bytes an image"
        return f"either {old} or {_named(ship, embedding.layer)} will do: {points} {on_test}; {size}."
    to = f"from {_named(embedding.layer, ship)} to {_named(ship, embedding.layer)}"
    if choice.advice == "switch":
        return f"switch {to}: {points} {on_test}."
    few = (
        "" if choice.at_most is not None else f"; {_count(choice.classes, 'class', 'classes')} are too few to choose on"
    )
    return f"whether to switch {to} cannot be told from these classes: {points} {on_test}{few}."


def verdict_text(choice: Choice) -> str:
    """How sure it is that the shipped candidate is the best, or as good."""
    chosen_on = chosen_on_text(choice.chosen.split).removesuffix(" classes")
    classes, others = f"{choice.classes:,} {chosen_on} classes", choice.candidates - 1
    name, within = choice.ship.name, f"{choice.within:g}"
    if choice.at_most is None:
        return f"Open: {_count(choice.classes, 'class', 'classes')} are too few, so {name} is the best mean only."
    if not others:
        return "Clear: it is the only candidate."
    if choice.verdict == "clear":
        lead = choice.lead
        lacks = "" if lead is None else f"; the next, {choice.runner_up}, lacks {_lacking(lead)}"
        return f"Clear: on {classes} it is better than each of {_count(others, 'other', 'others')}{lacks}."
    bound = f"none is better by more than {choice.at_most:.1f} points (95 %), and you allow {within}"
    if choice.verdict == "settled":
        if len(choice.equivalent) == 1:
            return f"Settled: on {classes}, {bound}."
        return f"Settled: any of {len(choice.equivalent)} candidates will do; of the shipped {name}, {bound}."
    needed = ""
    if choice.classes_needed is not None:
        how = "hold more out, or use folds" if choice.chosen.split == "validation" else "label more"
        needed = f" About {choice.classes_needed:,} classes would settle it: {how}."
    loss = f"; a loss of {choice.expected_loss:.1f} is to be expected" if choice.expected_loss is not None else ""
    best = "is best on them" if choice.lead is not None and choice.lead.difference >= 0 else "is near the best on them"
    return (
        f"Open: {classes} are too few. {name} {best}, but another may be up to {choice.at_most:.1f} points better"
        f" (95 %){loss}.{needed}"
    )


def ship_text(ship: Ship) -> str:
    """`pool5.2@max/l2+whiten:128:0.5+l2, epoch 16: 128 numbers, 512 bytes an image`."""
    numbers = "numbers" if ship.bytes_per_image == 4 * ship.dim else "bits"
    epoch = "" if ship.epoch is None else f", epoch {ship.epoch}"
    return f"{ship.name}{epoch}: {ship.dim:,} {numbers}, {ship.bytes_per_image:,} bytes an image"


def _today(choice: Choice) -> list[str]:
    """The embedding, with what it gains by the shipped epoch and post-processing alone."""
    embedding = choice.embedding
    if embedding is None:
        return []
    lines = [f"  today: {ship_text(embedding.layer)}; {_value(embedding.test)} on test"]
    dims = (choice.ship.dim, embedding.layer.dim)
    if unlike := unlike_text(choice.ship.ranked, embedding.layer.ranked, dims):
        lines.append(f"  {choice.ship.name} and {embedding.layer.name}: {unlike}")
    if embedding.alike is not None and embedding.gain is not None:
        alike = embedding.alike
        epoch = "" if choice.ship.epoch is None else f" at epoch {choice.ship.epoch}"
        lines.append(
            f"  {alike.ranked_layer}{epoch}: {_value(alike)} on test; over that, the layer gains"
            f" {100 * embedding.gain.difference:+.1f} points{_ends(embedding.gain)}"
        )
    return lines


def _operations(choice: Choice) -> str:
    """`, 61 % of the network's multiply-adds and 12 % of its parameters`."""
    share = choice.price.share_of_multiply_adds
    if choice.cut is None:
        return ""
    operations = "an unknown share" if share is None else _percent(share)
    parameters = _percent(1 - choice.cut.parameters)
    return f", {operations} of the network's multiply-adds and {parameters} of its parameters"


def _on_test(choice: Choice) -> list[str]:
    test, best = choice.test, choice.best_on_test
    if test is None or best is None:
        return ["  no test classes, so no value on test"]
    prefix = f"{best.run}#{best.epoch}:" if best.run else ""
    how = ", cross-fitted" if choice.chosen.split == "test" else ""
    regret = "" if choice.regret is None else f"; regret {_points(choice.regret)}"
    optimism = "" if choice.optimism is None else f"; selection bias {_points(choice.optimism)}"
    looked = f"{prefix}{best.ranked_layer}, {_value(best)}"
    return [
        f"  on test{how}: {_value(test)}",
        f"  best on test, chosen by looking: {looked}{regret}{optimism}",
    ]


def _details(choice: Choice) -> list[str]:
    if choice.at_most is None:
        return []
    shown = [f"{name} {_percent(share)}" for name, share in list(choice.shares.items())[:_SHOWN]]
    more = len(choice.shares) - _SHOWN
    others = f" and {more} more" if more > 0 else ""
    loss = "" if choice.expected_loss is None else f"; expected loss {choice.expected_loss:.2f} points"
    return [f"  chosen in resamples of the classes: {', '.join(shown)}{others}{loss}"]


def _why_unknown(choice: Choice) -> str:
    return "there are no test classes" if choice.test is None else "the embedding is not known, or not ranked on test"


def _named(ship: Ship, other: Ship) -> str:
    """A layer, with its epoch where the other is the same layer."""
    return ship.name if ship.name != other.name else f"{ship.name} at epoch {ship.epoch}"


def _notes(choice: Choice) -> list[str]:
    """The notes of the scores that are not among those of the choice."""
    own = [(chosen.split, chosen.notes) for chosen in (choice.chosen, choice.test) if chosen is not None]
    splits: dict[str, list[str]] = {}
    for split, notes in dict(own).items():
        for note in notes:
            splits.setdefault(note, []).append(chosen_on_text(split))
    lines: dict[str, list[str]] = {}
    for note, where in splits.items():
        if note not in choice.notes:
            lines.setdefault(" and ".join(where), []).append(note)
    return [f"{where}: {note_text(notes)}" for where, notes in lines.items()]


def _lacking(lead: Gain) -> str:
    ends = "" if lead.low is None or lead.high is None else f" [{100 * lead.low:.1f}, {100 * lead.high:.1f}]"
    return f"{100 * lead.difference:.1f} points{ends}"


def _value(score: Score) -> str:
    if score.value is None:
        return f"{score.metric}: no valid number"
    ends = "" if score.low is None or score.high is None else f" [{100 * score.low:.1f}, {100 * score.high:.1f}]"
    return f"{score.metric} {100 * score.value:.1f} %{ends}"


def _ends(gain: Gain) -> str:
    if gain.low is None or gain.high is None:
        return ", too few classes for an interval"
    return f" [{100 * gain.low:.1f}, {100 * gain.high:.1f}]"


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f} points"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.1g} %"
