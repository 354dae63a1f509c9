"""The command that follows a `Choice`."""

from __future__ import annotations

from layerprobe.reductions.chain import parse_chain
from layerprobe.values.choice import Choice
from layerprobe.workflow.run.runs import Run


def next_step(choice: Choice, run: Run) -> str:
    """The command that exports what was chosen."""
    ship = choice.ship
    # Fitted within folds of test, it is not ranked under its name: export takes the stored choice.
    in_folds = choice.chosen.split == "test" and parse_chain(ship.reduction).fits_on_train
    layer = () if in_folds else ("--layer", ship.name)
    return f"next: {run.command('export', '--epoch', str(ship.epoch), *layer, '--out', f'{run.name}-export')}"
