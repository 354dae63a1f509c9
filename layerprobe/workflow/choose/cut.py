"""How much of a run's network need not be run or stored to use a layer."""

from __future__ import annotations

from layerprobe.values.choice import TruncationSavings
from layerprobe.values.layers import LayerKey
from layerprobe.values.records import RunRecord


def cut_after(record: RunRecord, layer: LayerKey) -> TruncationSavings | None:
    """What comes after a layer; of `A+B` after the last of them.

    Returns:
        None if run.json does not say it: of a run from Python, or of an ensemble.
    """
    cuts = record.network.cuts if record.network else {}
    names = [layer.layer] if layer.layer in cuts else layer.layer.split("+")
    layer_cuts = [cuts[name] for name in names if name in cuts]
    if len(layer_cuts) < len(names):
        return None
    parameters, operations = zip(*layer_cuts, strict=True)
    return TruncationSavings(min(parameters), None if None in operations else min(operations))
