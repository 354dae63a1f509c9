"""Why a table marks another layer as the best than the choice that the run keeps."""

from __future__ import annotations

from layerprobe.values.facts import at_epoch_text
from layerprobe.values.layers import NO_REDUCTION, RankedLayer, spoken_name
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import weights_text
from layerprobe.workflow.run.stored_choice import stored_choice


def selected_line(run: Run, sign: str, marked: RankedLayer, epoch: int) -> str:
    """`* is the best raw layer at the last epoch; choose selected pool5, half-whitened to 64 (layerprobe choose RUN)`.

    Args:
        sign: by which the table marks the layer, or its name.
        epoch: of the table.

    Returns:
        Empty without a stored choice, and where it is the marked layer.
    """
    stored = stored_choice(run)
    if stored is None:
        return ""
    chosen = stored.choice.chosen
    if (chosen.ranked, chosen.epoch) == (marked, epoch):
        return ""
    raw = "raw " * (marked.reduction == NO_REDUCTION)
    when = "" if chosen.epoch == epoch else f", epoch {chosen.epoch}"
    name = f"{spoken_name(chosen.ranked)}{when}"
    at = at_epoch_text(epoch, weights_text(run.read()))
    return f"{sign} is the best {raw}layer {at}; choose selected {name} ({run.command('choose')})"
