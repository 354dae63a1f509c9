"""The text of a `Choice`."""

from __future__ import annotations

import shlex

from layerprobe.reductions.chain import parse_chain
from layerprobe.values.choice import SETTLED_SHARE, Choice, Ship
from layerprobe.values.keys import NO_REDUCTION, LayerKey
from layerprobe.values.scores import Score, note_text

_SHOWN = 4  # candidates whose shares are printed


def choice_lines(choice: Choice) -> list[str]:
    """What to ship, chosen on which classes, its value on test, and how sure the choice is; a line each."""
    chosen = choice.chosen
    head = f"{choice.run}: ship" if choice.run else "ship"
    folds = ", all folds" if chosen.split == "test" else ""
    lines = [
        f"{head} {ship_text(choice.ship)}",
        f"  chosen on {chosen.split}{folds}: {chosen.metric} {_value(chosen)}",
        *_on_test(choice),
        *_sureness(choice),
    ]
    if choice.cut is not None:
        parameters, operations = _percent(choice.cut.parameters), _percent(choice.cut.operations)
        lines.append(f"  after the layer: {parameters} of the network's parameters, {operations} of its multiply-adds")
    return [*lines, *choice.notes, *_notes(choice)]


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
    surer = "" if choice.settled else "more trainings (--seed) or classes would settle it; "
    return f"{surer}next: layerprobe probe {run} --epochs {ship.epoch} --layers {layer}{reduce} --export-index"


def _notes(choice: Choice) -> list[str]:
    """The notes of the scores that are not among those of the choice."""
    own = [(chosen.split, chosen.notes) for chosen in (choice.chosen, choice.test) if chosen is not None]
    found = [(split, [note for note in notes if note not in choice.notes]) for split, notes in own]
    return [f"{split}: {note_text(notes)}" for split, notes in dict(found).items() if notes]


def _on_test(choice: Choice) -> list[str]:
    test, best = choice.test, choice.best_on_test
    if test is None or best is None:
        return ["  no test classes, so no value on test"]
    prefix = f"{best.run}#{best.epoch}:" if best.run else ""
    how = ", cross-fitted" if choice.chosen.split == "test" else ""
    lines = [
        f"  on test{how}: {test.metric} {_value(test)}",
        f"  best on test, chosen by looking: {prefix}{best.ranked_layer}, {_value(best)}",
    ]
    if choice.regret is not None:
        lines.append(f"  regret: {_points(choice.regret)} (best on test minus chosen)")
    if choice.optimism is not None:
        lines.append(f"  optimism: {_points(choice.optimism)} (selection bias of the best on test)")
    return lines


def _sureness(choice: Choice) -> list[str]:
    shown = [f"{name} {_percent(share)}" for name, share in list(choice.shares.items())[:_SHOWN]]
    more = len(choice.shares) - _SHOWN
    others = f" and {more} more" if more > 0 else ""
    lines = [f"  chosen in resamples of the classes: {', '.join(shown)}{others}"]
    if choice.settled:
        return [*lines, "  settled"]
    few = f": none reaches {100 * SETTLED_SHARE:.0f} %" if max(choice.shares.values()) < SETTLED_SHARE else ""
    also = ", ".join(choice.equivalent[:_SHOWN])
    lines.append(f"  not settled{few}")
    return [*lines, f"  equivalent by the same rule, but not cheaper: {also}"] if also else lines


def _value(score: Score) -> str:
    if score.value is None:
        return "no valid number"
    ends = "" if score.low is None or score.high is None else f" [{100 * score.low:.1f}, {100 * score.high:.1f}]"
    return f"{100 * score.value:.1f} %{ends}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f} points"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.1g} %"
