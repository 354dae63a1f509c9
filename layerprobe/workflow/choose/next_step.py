"""The command that follows a `Choice`."""

from __future__ import annotations

import shlex

from layerprobe.reductions.chain import parse_chain
from layerprobe.values.choice import Choice
from layerprobe.values.keys import NO_REDUCTION, LayerKey


def next_step(choice: Choice, run: str) -> str:
    """The command that writes the index of what was chosen."""
    ship = choice.ship
    layer = shlex.quote(str(LayerKey(ship.layer, ship.pool)))
    reduce = "" if ship.reduction == NO_REDUCTION else f" --reduce {shlex.quote(ship.reduction)}"
    chain = parse_chain(ship.reduction)
    if choice.chosen.split == "test" and chain.fits_on_train:
        reduce += " --fit gallery"  # there is no training split to fit on
    return f"next: layerprobe probe {run} --epochs {ship.epoch} --layers {layer}{reduce} --export-index"
