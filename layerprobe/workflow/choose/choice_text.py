"""The text of a `Choice`."""

from __future__ import annotations

import shlex

from layerprobe.reductions.chain import parse_chain
from layerprobe.values.choice import Choice, Gain, Ship
from layerprobe.values.facts import chosen_on_text
from layerprobe.values.keys import NO_REDUCTION, LayerKey
from layerprobe.values.likeness import unlike_text
from layerprobe.values.scores import Score, note_text

_SHOWN = 4  # candidates whose shares are printed


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


def next_step(choice: Choice, run: str) -> str:
    """The command that writes the index of what was chosen."""
    ship = choice.ship
    layer = shlex.quote(str(LayerKey(ship.layer, ship.pool)))
    reduce = "" if ship.reduction == NO_REDUCTION else f" --reduce {shlex.quote(ship.reduction)}"
    chain = parse_chain(ship.reduction)
    if choice.chosen.split == "test" and chain.fits_on_train:
        reduce += " --fit gallery"  # there is no training split to fit on
    return f"next: layerprobe probe {run} --epochs {ship.epoch} --layers {layer}{reduce} --export-index"


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
    if share is None or choice.cut is None:
        return ""
    parameters = _percent(1 - choice.cut.parameters)
    return f", {_percent(share)} of the network's multiply-adds and {parameters} of its parameters"


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
