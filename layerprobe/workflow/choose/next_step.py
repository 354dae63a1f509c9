"""The command that follows a `Choice`."""

from __future__ import annotations

import shlex

from layerprobe.reductions.chain import parse_chain
from layerprobe.values.choice import Choice


def next_step(choice: Choice, run: str) -> str:
    """The command that exports what was chosen."""
    ship = choice.ship
    # Fitted within folds of test, it is not ranked under its name: export then chooses again.
    in_folds = choice.chosen.split == "test" and parse_chain(ship.reduction).fits_on_train
    layer = "" if in_folds else f" --layer {shlex.quote(ship.name)}"
    return f"next: layerprobe export {run} --epoch {ship.epoch}{layer} --out {run}-export"
