from __future__ import annotations

from torch.nn.modules.module import register_module_forward_hook

from layerprobe.nets.pooling import GlobalPool
from layerprobe.workflow.probe.probe import prepare
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run


def test_a_network_is_run_for_its_layouts_once_a_probe(run: Run) -> None:
    forwards: list[str] = []

    def count(module: object, _inputs: object, _output: object) -> None:
        if isinstance(module, GlobalPool):  # once in each forward of the network
            forwards.append("one")

    handle = register_module_forward_hook(count)
    try:
        probing = prepare(run, ProbeRequest(layers=("*",), pools=("max", "avg")))
    finally:
        handle.remove()
    assert len(probing.selection.taps) > 2
    assert len(forwards) == 3  # two images, three images, and another size
