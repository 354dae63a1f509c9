"""The result of `layerprobe choose`: the selected layer, its uncertainty and its costs, as values and as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from layerprobe.system.wording import wrapped
from layerprobe.values.costs import IndexCosts
from layerprobe.values.facts import chosen_on_text
from layerprobe.values.intervals import FEWEST_UNITS
from layerprobe.values.layers import (
    NO_POOL,
    NO_POST_PROCESSING,
    LayerKey,
    RankedLayer,
    spoken_name,
    spoken_post_processing,
    unlike_text,
)
from layerprobe.values.scores import Score, note_text

SCHEMA = 4  # of its JSON
FOLDS = 5  # of cross-fitting
_SHOWN = 4  # candidates whose shares are printed
Advice = Literal["switch", "keep", "either", "inconclusive"]
Verdict = Literal["significant", "conclusive", "inconclusive"]
Value = TypeVar("Value")
Part = TypeVar("Part")


@dataclass(frozen=True)
class SelectedLayer:
    """A layer with its post-processing, at an epoch, and the size of an image's vector.

    Args:
        epoch: of the weights; None for features without an epoch.
        dim: numbers, or bits, of an image's vector.
    """

    layer: str
    pool: str
    post_processing: str
    epoch: int | None
    dim: int
    bytes_per_image: int

    @property
    def ranked(self) -> RankedLayer:
        """The layer with its post-processing, by no similarity."""
        return RankedLayer(LayerKey(self.layer, self.pool), self.post_processing, "")

    @property
    def name(self) -> str:
        """The layer with its post-processing: `pool5.2@max/l2+whiten:128:0.5+l2`."""
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
    """The difference on test of what is selected and the embedding, paired by queries, as a share.

    Args:
        low: lower end of its 95 % interval over classes; None with fewer than 10 of these.
    """

    difference: float
    low: float | None
    high: float | None

    @property
    def contains_zero(self) -> bool:
        """Whether it has an interval, and that contains 0."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high


@dataclass(frozen=True)
class LabelGain:
    """What the preferred candidate's map gains by the classes that it is fitted with.

    Args:
        classes: that the map is fitted with; 0 if unknown.
        other: the preferred one of the candidates without such a map.
        gain: of the preferred candidate over it on test; of the choices among all candidates over those among the ones
            without such a map if cross-fitted. None without test classes.
        permuted: the same difference of the preferred candidate with the classes permuted over the images that its map
            is fitted on, once: what is left where classes tell nothing. None likewise, and where features are gone.
    """

    classes: int
    other: SelectedLayer
    gain: Gain | None = None
    permuted: Gain | None = None


@dataclass(frozen=True)
class ImageCost:
    """What an image costs with a layer.

    Args:
        bytes: of its vector.
        share_of_multiply_adds: of the network's, up to the layer; None if unknown.
    """

    bytes: int
    share_of_multiply_adds: float | None


@dataclass(frozen=True)
class Embedding:
    """The current embedding: the embedding without post-processing, at the last measured epoch.

    Args:
        test: its score on test.
        alike: the score on test of the embedding at the preferred epoch and post-processing; None if that is `test`, or
            is not measured, and where the folds choose several candidates.
        gain: of the preferred candidate over `alike`: the part of the gain that is the layer's; None likewise.
        cost: None if unknown.
        whole_gallery: its score in the gallery of all test classes, where all scores on test are within folds of these;
            else None: `test` is it.
    """

    layer: SelectedLayer
    test: Score
    alike: Score | None = None
    gain: Gain | None = None
    cost: ImageCost | None = None
    whole_gallery: Score | None = None


@dataclass(frozen=True)
class Certainty:
    """How sure a layer is among all layers, or a post-processing among those of its layer.

    Args:
        verdict: as of a `Choice`.
        max_loss: as of a `Choice`.
        others: how many it is compared with: other layers, or other post-processings.
        lead: over the best of the others, on the classes that are chosen on; None without any.
    """

    verdict: Verdict
    max_loss: float | None
    others: int
    lead: Gain | None


@dataclass(frozen=True)
class UnitValues:
    """What is known of a mean by class or cluster, by which it can be compared with others of the same queries.

    Args:
        sums: of the values of its queries, of each.
        counts: how many queries that is.
    """

    sums: tuple[float, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True, repr=False, kw_only=True)
class Choice:
    """The candidate chosen without looking at the test classes, whether to switch to it, and what is selected.

    `print` shows it as the command does.

    Args:
        run: the run's name; the experiment's of several trainings; empty for features without a run.
        selected: `preferred`, but the embedding where the advice is to keep it or inconclusive; where either will do,
            the one of fewer bytes.
        preferred: the candidate that the rule prefers; with fewer than 10 classes the embedding, where it can be kept.
        chosen: the score of the selected layer on the classes that are chosen on.
        test: the same on test classes; if cross-fitted, each fold by the choice on the other folds, so that it is of
            the procedure. None without test classes.
        preferred_test: that of the preferred candidate, likewise.
        test_values: by class or cluster, those whose mean `preferred_test` is; None without its value.
        embedding: None if the embedding is not known or not measured on test.
        gain: of the preferred candidate over the embedding, on `gain_classes`; of the procedure if cross-fitted. None
            without one of them.
        gain_classes: how many test classes the gain is measured on.
        gain_elsewhere: whether these did not decide: each half of the test classes is measured by the decision of the
            other. With fewer than 20, and where neither half decides but all do, they decided.
        cost: of the selected layer.
        preferred_cost: of the preferred candidate.
        advice: switch from the embedding, keep it, either will do, or inconclusive on these classes.
        verdict: significant: the preferred candidate is significantly better than each of the others; conclusive:
            `max_loss` is at most `within`; else inconclusive.
        max_loss: upper 95 % bound of the loss against the best candidate in a gallery of `gallery_classes`, in points,
            0 to 100; None with fewer than 10 classes.
        expected_loss: the expected loss in that gallery of a choice on as many other classes, in points; None likewise.
        layer: how sure the preferred layer is, over its own best post-processing.
        post_processing: how sure the post-processing of that layer is; None for a single one.
        labels: what the preferred candidate gains by the classes that its map is fitted with; None where its map takes
            none.
        runner_up: the best of the other candidates; None for a single one.
        lead: of the preferred candidate over it, on the classes that are chosen on.
        ties: how many other candidates have the same mean there.
        equivalent: the candidates whose `max_loss` is at most `within`, the preferred one among them, the cheapest
            first.
        candidates: how many there are; those that rank every query alike count once.
        classes: that are chosen on.
        test_classes: None without test classes.
        gallery_classes: of the gallery that `max_loss` and `expected_loss` are for.
        extrapolated: whether that is a larger one than the gallery that was searched.
        classes_needed: about how many classes would make it conclusive; None if it is, or if that would be more than
            100 times as many.
        best_on_test: the candidate with the highest score on test, chosen there. None without test classes.
        regret: best_on_test - test, a share, at least 0; None without test classes, if cross-fitted, and where the
            selected embedding is not among the candidates.
        optimism: optimism of best_on_test: its score minus what the best on four folds of the test classes
            reaches on the fifth. None without test classes, or with fewer than 10.
        shares: candidate -> share of the resamples of classes that choose it, the largest first; without those that are
            never chosen.
        within_folds: whether scores on test are searched within each fold of the classes, but for `whole_gallery`.
        budget: bytes an image that the selected layer takes at most; None for any number. An embedding of more is not
            selected, whatever the advice.
        within: points of the metric that do not matter.
        units: what intervals resample: classes, or clusters of classes.
        notes: what the numbers are conditional on.
        details: what was left out, and how the folds disagree.
        basis: that and why test classes are chosen on although there are training classes; else empty.
        cut: what comes after the selected layer in the network; None if unknown.
        indexes: of the selected layer, if `--index` asks for them.
    """

    run: str
    selected: SelectedLayer
    preferred: SelectedLayer
    chosen: Score
    test: Score | None = None
    preferred_test: Score | None = None
    test_values: UnitValues | None = None
    embedding: Embedding | None = None
    gain: Gain | None = None
    gain_classes: int | None = None
    gain_elsewhere: bool = False
    cost: ImageCost
    preferred_cost: ImageCost
    advice: Advice = "inconclusive"
    verdict: Verdict
    max_loss: float | None
    expected_loss: float | None
    layer: Certainty
    post_processing: Certainty | None
    labels: LabelGain | None = None
    runner_up: str | None
    lead: Gain | None
    ties: int
    equivalent: tuple[str, ...]
    candidates: int
    classes: int
    test_classes: int | None = None
    gallery_classes: int
    extrapolated: bool
    classes_needed: int | None
    best_on_test: Score | None = None
    regret: float | None = None
    optimism: float | None = None
    shares: Mapping[str, float]
    within_folds: bool
    budget: int | None = None
    within: float = 1.0
    units: str = "classes"
    notes: tuple[str, ...] = field(default=())
    details: tuple[str, ...] = field(default=())
    basis: str = ""
    cut: TruncationSavings | None = None
    indexes: IndexCosts | None = None

    @property
    def conclusive(self) -> bool:
        """Whether the verdict is significant or conclusive."""
        return self.verdict != "inconclusive"

    def is_over_budget(self, layer: SelectedLayer) -> bool:
        """Whether a layer takes more bytes an image than the budget."""
        return self.budget is not None and layer.bytes_per_image > self.budget

    def as_json(self) -> dict[str, Any]:
        """The fields, but for a number of each class, and the version of their form."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "test_values"}
        return {"schema": SCHEMA, **values}

    def __repr__(self) -> str:
        return "\n".join(choice_lines(self))


def replace_parts(choice: Value, kind: type[Part], change: Callable[[Part], Part]) -> Value:
    """A choice, or a part of one, with each of its scores, or each selected layer, replaced.

    Args:
        kind: `Score` or `SelectedLayer`.
    """
    if isinstance(choice, kind):
        return change(choice)  # type: ignore[return-value] # a part of the kind that is asked for
    if not is_dataclass(choice) or isinstance(choice, type):
        return choice
    parts = {field.name: replace_parts(getattr(choice, field.name), kind, change) for field in fields(choice)}
    return replace(choice, **parts)


def choice_lines(choice: Choice, *, full: bool = False) -> list[str]:
    """Whether to switch, to which layer, how sure that is, and what it costs; at most 80 columns, but for expressions.

    Args:
        full: with the best on test, the shares of the resamples, and what was left out.
    """
    head = f"{choice.run}: " if choice.run else ""
    basis = [f"{choice.basis[0].upper()}{choice.basis[1:]}."] if choice.basis else []
    first_text, *later_texts = [*basis, advice_text(choice), verdict_text(choice)]
    lines = [*wrapped(f"{head}{first_text}"), *(line for text in later_texts for line in wrapped(text))]
    lines += ["", *_aligned(choice_table(choice)), ""]
    lines += wrapped(certainty_text(choice))
    lines += wrapped(_gain_of_the_layer(choice))
    lines += wrapped(label_text(choice))
    lines += [line for note in choice.notes for line in wrapped(note)]
    if full:
        lines += ["", *_on_test(choice), *_unlike(choice), *_resamples(choice), *choice.details, *_notes(choice)]
    return lines


def advice_text(choice: Choice) -> str:
    """`Switch? Yes, +7.5 points of R@1 [5.5, 9.6]: from output to blocks.5.0, partially whitened to 128 ...`."""
    embedding, gain, metric = choice.embedding, choice.gain, choice.chosen.metric
    new = _spoken(choice.preferred, None if embedding is None else embedding.layer)
    if embedding is None or gain is None:
        return f"Selected: {new}. Switch? Inconclusive: {_why_unknown(choice)}."
    old = _spoken(embedding.layer, choice.preferred)
    if choice.max_loss is None and choice.preferred == embedding.layer:
        return f"Switch? Inconclusive, so keep {old}: {_too_few(choice)}."
    if choice.preferred == embedding.layer:
        return f"Switch? No: {old}, the current embedding, is the preferred candidate."
    folded = " in fifths of the classes" * choice.within_folds
    points = f"{100 * gain.difference:+.1f} points of {metric}{folded}{_ends(gain)}"
    if choice.is_over_budget(embedding.layer):
        size = f"{_count(choice.selected.bytes_per_image, 'byte', 'bytes')} an image ({choice.budget:,} at most)"
        over = f"{old}, which takes {embedding.layer.bytes_per_image:,}"
        return f"Selected: {new}, {size}: {points} to {over} ({_measured(choice)})."
    if choice.advice in ("switch", "keep") and gain.contains_zero and choice.test_classes is not None:
        deciding = choice.test_classes - (choice.gain_classes or 0)
        probably = f"Probably, from {old} to {new}" if choice.advice == "switch" else f"Probably not, keep {old}"
        return (
            f"Switch? {probably}: {deciding:,} test {choice.units} decide so; on the other {choice.gain_classes:,}"
            f" {new} is {points} (95 %)."
        )
    if choice.advice == "switch":
        return f"Switch? Yes, {points}: from {old} to {new} ({_measured(choice)})."
    if choice.advice == "keep":
        return f"Switch? No, keep {old}: {new} is worse, {points} ({_measured(choice)})."
    if choice.advice == "either":
        selected_name = _spoken(
            choice.selected, embedding.layer if choice.selected == choice.preferred else choice.preferred
        )
        size = f"{choice.selected.bytes_per_image:,} bytes an image"
        return f"Switch? Either will do: from {old} to {new} is {points}. Selected: {selected_name}, {size}."
    why_unclear = ""
    if not choice.gain_elsewhere and (choice.gain_classes or 0) >= 2 * FEWEST_UNITS:
        why_unclear = f" The halves of the test {choice.units} contradict each other."
    sure = "" if gain.low is None else " (95 %)"
    return f"Switch? Inconclusive, so keep {old}: {new} is {points}{sure}.{why_unclear}"


def verdict_text(choice: Choice) -> str:
    """How sure the layer is, and its post-processing: `Which layer exactly? pool3.3: significant, ...`."""
    role = ""
    if choice.selected != choice.preferred:
        title = f"candidate for more {choice.units}" if choice.advice == "inconclusive" else "preferred candidate"
        role = f"The {title} is {_spoken(choice.preferred)}. "
    name = choice.preferred.layer
    if choice.max_loss is None:
        if choice.embedding is not None and choice.preferred == choice.embedding.layer:
            return ""
        return f"{role}Which layer exactly? Inconclusive: {_too_few(choice)}. {name} has the best mean only."
    if choice.candidates == 1:
        return f"{role}Which layer exactly? {name} is the only candidate."
    layer, post = choice.layer, choice.post_processing
    sentences = []
    if layer.others:
        sentences.append(f"Which layer exactly? {name}: {_certainty(layer, 'layer', choice.within)}")
    if post is not None:
        of_layer = "" if layer.others else f" of {name}"
        sentences.append(
            f"Which post-processing{of_layer}? {_done(choice.preferred)}: {_certainty(post, 'one', choice.within)}"
        )
    ties = f" {_count(choice.ties, 'other has', 'others have')} the same mean." if choice.ties else ""
    return f"{role}{' '.join(sentences)}{ties}"


def certainty_text(choice: Choice) -> str:
    """What was compared on which classes, and the loss to be expected in which gallery."""
    split = chosen_on_text(choice.chosen.split).removesuffix(" classes")
    candidates = _count(choice.candidates, "candidate", "candidates")
    head = f"How sure: {candidates}, compared on {choice.classes:,} {split} {choice.units}."
    if choice.max_loss is None or choice.expected_loss is None or choice.candidates == 1:
        return head
    extrapolated = " (extrapolated)" if choice.extrapolated else ""
    text = (
        f"{head} Expected loss of {_spoken(choice.preferred)} against the best candidate, in a gallery of"
        f" {choice.gallery_classes:,} classes{extrapolated}: {choice.expected_loss:.1f} points; upper 95 % bound"
        f" {choice.max_loss:.1f}."
    )
    if choice.classes_needed is None:
        return text
    how = "hold more out, or use folds" if choice.chosen.split == "validation" else "label more"
    needed = rounded_classes(choice.classes_needed, choice.classes)
    return f"{text} About {needed:,} {choice.units} would make it conclusive: {how}."


def rounded_classes(needed: int, classes: int) -> int:
    """An order of magnitude to one digit: 2,229 -> 2,000; more than there are."""
    unit: int = 10 ** (len(str(needed)) - 1)
    nearest = round(needed / unit) * unit
    return nearest if nearest > classes else -(-needed // unit) * unit


def _spoken(selected: SelectedLayer, other: SelectedLayer | None = None) -> str:
    """A name for people, with pool and epoch where the other layer differs in nothing else that is said."""
    name = spoken_name(selected.ranked)
    if other is None or name != spoken_name(other.ranked):
        return name
    if selected.pool != other.pool:
        return spoken_name(selected.ranked, pool=True)
    return name if selected.epoch == other.epoch else f"{name} at epoch {selected.epoch}"


def _measured(choice: Choice) -> str:
    """On which classes the gain is measured, and which decided."""
    if choice.gain_classes is None or choice.test_classes is None:
        return "95 % interval"
    if not choice.gain_elsewhere:
        are_too_few = choice.gain_classes < 2 * FEWEST_UNITS
        why = "too few to divide" if are_too_few else "as neither half does"
        return f"95 % interval over the same {choice.gain_classes:,} test {choice.units} that decide, {why}"
    if choice.gain_classes < choice.test_classes:
        part = f"{choice.gain_classes:,} of {choice.test_classes:,}"
        return f"95 % interval over {part} test {choice.units}; the others decided"
    return f"95 % interval over {choice.test_classes:,} test {choice.units}; each half decides for the other"


def too_few_text(count: int, split: str, units: str) -> str:
    """`8 selection classes are too few to tell candidates apart; 10 are needed`."""
    counted = _count(count, "class" if units == "classes" else "cluster", units)
    number, _, name = counted.partition(" ")
    kind = chosen_on_text(split).removesuffix(" classes")
    verb = "is" if count == 1 else "are"
    return f"{number} {kind} {name} {verb} too few to tell candidates apart; {FEWEST_UNITS} are needed"


def _too_few(choice: Choice) -> str:
    return too_few_text(choice.classes, choice.chosen.split, choice.units)


def _certainty(certainty: Certainty, other: str, within: float) -> str:
    """`inconclusive, another layer may be better by up to 1.2 points (95 %).`."""
    if certainty.verdict == "significant":
        rivals = "the other" if certainty.others == 1 else f"each of the {certainty.others} others"
        return f"significant, better than {rivals}."
    points = f"{certainty.max_loss:.1f} points (95 %)"
    if certainty.verdict == "conclusive" and round(certainty.max_loss or 0.0, 1) == 0:
        return f"conclusive, no other {other} is better (95 %)."
    if certainty.verdict == "conclusive":
        return f"conclusive, no other {other} is better by more than {points}; up to {within:g} does not matter."
    return f"inconclusive, another {other} may be better by up to {points}."


def choice_table(choice: Choice) -> list[list[str]]:
    """The current embedding, what is selected or the candidate, and their difference: a row each, under a head."""
    embedding, metric = choice.embedding, choice.chosen.metric
    columns: list[tuple[str, SelectedLayer, Score | None, ImageCost | None]]
    if embedding is None:
        columns = [("selected", choice.selected, choice.test or choice.chosen, choice.cost)]
    elif choice.preferred == embedding.layer:
        columns = [("current, selected", choice.selected, choice.test, choice.cost)]
    else:
        keeps_embedding = choice.selected == embedding.layer
        columns = [
            ("current, selected" if keeps_embedding else "current", embedding.layer, embedding.test, embedding.cost),
            (
                "candidate" if keeps_embedding else "selected",
                choice.preferred,
                choice.preferred_test,
                choice.preferred_cost,
            ),
        ]
    shown_layers, tests = [selected for _, selected, _, _ in columns], [test for *_, test, _ in columns]
    dims, sizes = [selected.dim for selected in shown_layers], [selected.bytes_per_image for selected in shown_layers]
    pools, epochs = (
        [selected.pool.replace(NO_POOL, "-") for selected in shown_layers],
        [str(selected.epoch) for selected in shown_layers],
    )
    cost_shares = [None if cost is None else cost.share_of_multiply_adds for *_, cost in columns]
    shares = ["?" if share is None else _percent(share) for share in cost_shares]
    where = "on test" if choice.test is not None else f"on {chosen_on_text(choice.chosen.split)}"
    if choice.within_folds and any(tests):
        where = "in fifths"
    whole_gallery = None if embedding is None else embedding.whole_gallery
    rows = [
        ("", [title for title, *_ in columns], "difference"),
        ("layer", [selected.layer for selected in shown_layers], ""),
        ("post-processing", [_done(selected) for selected in shown_layers], ""),
        *([("pool", pools, "")] if len(set(pools)) > 1 else []),
        *([("epoch", epochs, "")] if len(set(epochs)) > 1 else []),
        ("dimension", [f"{dim:,}" for dim in dims], f"{dims[-1] - dims[0]:+,}"),
        ("bytes an image", [f"{size:,}" for size in sizes], f"{sizes[-1] - sizes[0]:+,}"),
        (f"{metric} {where}, %", [score_text(test) for test in tests], _difference(choice, tests)),
        *(
            [(f"{metric} in all, %", [score_text(whole_gallery), ""][: len(shown_layers)], "")]
            if whole_gallery is not None
            else []
        ),
        *([("multiply-adds", shares, "")] if any(share is not None for share in cost_shares) else []),
    ]
    return [[name, *cells, *([difference] if len(columns) == 2 else [])] for name, cells, difference in rows]


def choice_figures(choice: Choice) -> tuple[tuple[str, str], ...]:
    """Name and value of the numbers that decide: layer, post-processing, score, gain and bytes, from -> to."""
    embedding, metric = choice.embedding, choice.chosen.metric
    is_kept = embedding is None or choice.preferred == embedding.layer
    old = choice.preferred if is_kept or embedding is None else embedding.layer
    new = choice.preferred
    new_score = choice.preferred_test or choice.test or choice.chosen
    old_score = new_score if is_kept or embedding is None else embedding.test
    where = "on test" if choice.test is not None else f"on {chosen_on_text(choice.chosen.split)}"
    where = "in fifths of the test classes" if choice.within_folds and choice.test is not None else where
    role = "layer" if is_kept else f"layer, current \u2192 {'selected' if choice.selected == new else 'candidate'}"
    figures = [
        (role, _arrow(old.layer, new.layer)),
        ("post-processing", _arrow(_done(old), _done(new))),
        (f"{metric} {where}, %", _arrow(score_text(old_score), score_text(new_score))),
    ]
    if choice.gain is not None and not is_kept:
        figures.append(("gain, percentage points", f"{100 * choice.gain.difference:+.1f}{_ends(choice.gain, '')}"))
    return (*figures, ("bytes an image", _arrow(f"{old.bytes_per_image:,}", f"{new.bytes_per_image:,}")))


def _arrow(old: str, new: str) -> str:
    return new if old == new else f"{old} \u2192 {new}"


def _difference(choice: Choice, tests: Sequence[Score | None]) -> str:
    """The difference of two scores; with the interval of the gain where that is on the same classes."""
    values = [test.value for test in tests if test is not None and test.value is not None]
    if len(values) < 2:
        return ""
    if choice.gain is not None and choice.gain_classes == choice.test_classes:
        return f"{100 * choice.gain.difference:+.1f}{_ends(choice.gain, without_interval='')}"
    return f"{100 * (values[-1] - values[0]):+.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]


def _done(selected: SelectedLayer) -> str:
    return (
        "none"
        if selected.post_processing == NO_POST_PROCESSING
        else spoken_post_processing(selected.post_processing, dimensions=True)
    )


def score_text(score: Score | None) -> str:
    """`80.1 [75.6, 83.9]`, in percent."""
    if score is None or score.value is None:
        return "not measured"
    ends = "" if score.interval is None else " [{:.1f}, {:.1f}]".format(*score.interval.percent)
    return f"{100 * score.value:.1f}{ends}"


def _gain_of_the_layer(choice: Choice) -> str:
    """What the embedding has at the preferred epoch and post-processing, and what the layer gains over that."""
    embedding = choice.embedding
    if embedding is None or embedding.alike is None or embedding.gain is None:
        return ""
    counterpart, gain = embedding.alike, embedding.gain
    epoch = "" if choice.preferred.epoch == embedding.layer.epoch else f" at epoch {choice.preferred.epoch}"
    where = "in fifths of the test classes" if choice.within_folds else "on test"
    return (
        f"{spoken_name(counterpart.ranked)}{epoch} has {_value(counterpart)} {where}: over that, the layer alone gains"
        f" {100 * gain.difference:+.1f} points{_ends(gain)}."
    )


def label_text(choice: Choice) -> str:
    """On how many classes the map of the preferred candidate rests, and what they gain; empty without such a map.

    The gain on test is over the candidate that would be preferred without labels.
    """
    labels = choice.labels
    if labels is None:
        return ""
    classes = f"{labels.classes:,} labelled classes" if labels.classes else "labels"
    text = f"The map of {choice.preferred.layer} is fitted with {classes}"
    if labels.gain is None:
        return f"{text}."
    where = "in fifths of the test classes" if choice.within_folds else "on test"
    points = f"{100 * labels.gain.difference:+.1f} points {where}{_ends(labels.gain)}"
    text += f": {points} over {_spoken(labels.other, choice.preferred)}, which would be preferred without labels"
    if labels.permuted is None:
        return f"{text}."
    permuted = f"{100 * labels.permuted.difference:+.1f} points{_ends(labels.permuted)}"
    return f"{text}; fitted with permuted labels {permuted}."


def _unlike(choice: Choice) -> list[str]:
    """In what the preferred candidate and the embedding differ."""
    embedding = choice.embedding
    if embedding is None:
        return []
    lines = []
    dims = (choice.preferred.dim, embedding.layer.dim)
    if unlike := unlike_text(choice.preferred.ranked, embedding.layer.ranked, dims):
        lines.append(f"{choice.preferred.name} and {embedding.layer.name}: {unlike}")
    return lines


def _on_test(choice: Choice) -> list[str]:
    test, best = choice.test, choice.best_on_test
    chosen_on = chosen_on_text(choice.chosen.split)
    lines = [f"on {chosen_on}: {choice.chosen.ranked}, {_value(choice.chosen)}"]
    if test is None or best is None:
        return [*lines, "no test classes, so no value on test"]
    prefix = f"{best.run}#{best.epoch}:" if best.run else ""
    how = ", cross-fitted" if choice.chosen.split == "test" else ""
    regret = "" if choice.regret is None else f"; regret {_points(choice.regret)}"
    optimism = "" if choice.optimism is None else f"; optimism {_points(choice.optimism)}"
    looked = f"{prefix}{best.ranked}, {_value(best)}"
    return [*lines, f"on test{how}: {_value(test)}", f"best on test, chosen by looking: {looked}{regret}{optimism}"]


def _resamples(choice: Choice) -> list[str]:
    if choice.max_loss is None:
        return []
    name_shares = [f"{name} {_percent(share)}" for name, share in list(choice.shares.items())[:_SHOWN]]
    unnamed = len(choice.shares) - _SHOWN
    unnamed_text = f" and {unnamed} more" if unnamed > 0 else ""
    equivalent = (
        f"equivalent within {choice.within:g} points (95 %), the cheapest first: {', '.join(choice.equivalent)}"
    )
    return [
        f"chosen in resamples of the {choice.units}: {', '.join(name_shares)}{unnamed_text}",
        *[equivalent] * bool(choice.equivalent),
    ]


def _why_unknown(choice: Choice) -> str:
    return "there are no test classes" if choice.test is None else "the embedding is not known, or not ranked on test"


def _notes(choice: Choice) -> list[str]:
    """The notes of the scores that are not among those of the choice."""
    notes_by_split = [(chosen.split, chosen.all_notes) for chosen in (choice.chosen, choice.test) if chosen is not None]
    splits: dict[str, list[str]] = {}
    for split, notes in dict(notes_by_split).items():
        for note in notes:
            splits.setdefault(note, []).append(chosen_on_text(split))
    lines: dict[str, list[str]] = {}
    for note, where in splits.items():
        if note not in choice.notes:
            lines.setdefault(" and ".join(where), []).append(note)
    return [f"{where}: {note_text(notes)}" for where, notes in lines.items()]


def _value(score: Score) -> str:
    if score.value is None:
        return f"{score.metric}: no valid number"
    ends = "" if score.interval is None else " [{:.1f}, {:.1f}]".format(*score.interval.percent)
    return f"{score.metric} {100 * score.value:.1f} %{ends}"


def _ends(gain: Gain, without_interval: str = ", too few classes for an interval") -> str:
    if gain.low is None or gain.high is None:
        return without_interval
    return f" [{100 * gain.low:.1f}, {100 * gain.high:.1f}]"


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number:,} {singular if number == 1 else plural}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f} points"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.1g} %"
