"""How much of a run's network a layer leaves out."""

from __future__ import annotations

from layerprobe.values.choice import TruncationSavings
from layerprobe.values.keys import LayerKey
from layerprobe.values.records import FROM_PYTHON, NETWORK
from layerprobe.workflow.run.runs import Run


def cut_after(run: Run, layer: LayerKey) -> TruncationSavings | None:
    """What need not be run or stored to use a layer; of `A+B` after the last of them.

    Returns:
        None where run.json does not say it: of a run from Python, of several members, or that an earlier version began.
    """
    cuts = run.read().get(NETWORK, {}).get("cuts", {})
    names = [layer.layer] if layer.layer in cuts else layer.layer.split("+")
    found = [cuts[name] for name in names if name in cuts]
    return TruncationSavings(*map(min, zip(*found, strict=True))) if len(found) == len(names) else None


def unrecorded(run: Run) -> list[str]:
    """A note where run.json lacks what a layer leaves out, and the next probe will record it; none elsewhere."""
    record = run.read()
    if NETWORK in record or record.get(FROM_PYTHON) or record.get("members"):
        return []
    return [f"how much of the network a layer leaves out is not recorded; layerprobe probe {run.name} records it"]
