"""How much of a run's network a layer leaves out."""

from __future__ import annotations

from layerprobe.choice import Cut
from layerprobe.errors import LayerprobeError
from layerprobe.keys import LayerKey
from layerprobe.records import FROM_PYTHON
from layerprobe.runs import Run
from layerprobe.taps import find_taps
from layerprobe.taps.cut import shares_after
from layerprobe.workflow.probed_run import open_for_probing
from layerprobe.workflow.selection import ProbeRequest


def cut_after(run: Run, layer: LayerKey) -> Cut | None:
    """What need not be run or stored to use a layer; of `A+B` after the last of them.

    Args:
        run: it exists.
        layer: of its network.

    Returns:
        None where the network is not known, such as of a run from Python, cannot be built, or is of several members.
    """
    record = run.read()
    if record.get(FROM_PYTHON) or record.get("members"):
        return None
    try:
        opened = open_for_probing(run, ProbeRequest(device="cpu"))
        names = [layer.layer] if layer.layer in opened.net.layers else layer.layer.split("+")
        taps = find_taps(names, opened.measured)
        return Cut(*shares_after(opened.net.module, taps, opened.recipe.data.image_size))
    except LayerprobeError:  # a choice is told without it
        return None
