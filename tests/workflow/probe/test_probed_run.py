from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from torch.nn.modules.module import register_module_forward_hook

from layerprobe.nets.assembly import GlobalPool
from layerprobe.system.errors import RecipeError
from layerprobe.workflow.probe import probed_run
from layerprobe.workflow.probe.probe import prepare, probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent

REQUEST = ProbeRequest(layers=("*",), device="cpu", workers=0, ks=(1,))


def unbuilt(*_: object) -> None:
    raise AssertionError("the network is built")


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
    assert len(probing.selection.hooks) > 2
    assert len(forwards) == 3  # two images, three images, and another size


def test_a_repeated_probe_builds_no_network(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe(run, REQUEST, Silent())
    files = {path: path.read_bytes() for path in (run.scores_file, run.forwards_file)}
    monkeypatch.setattr(probed_run, "run_network", unbuilt)
    assert probe(run, REQUEST, Silent()) == first
    assert {path: path.read_bytes() for path in files} == files


def test_other_layers_are_found_without_the_network_until_they_are_extracted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(run, ProbeRequest(layers=("fc6",), device="cpu", workers=0, ks=(1,)), Silent())
    monkeypatch.setattr(probed_run, "run_network", unbuilt)
    with pytest.raises(AssertionError, match="the network is built"):
        probe(run, REQUEST, Silent())


def test_forwards_of_another_network_or_version_are_repeated(run: Run) -> None:
    request = replace(REQUEST, epochs="0")
    probe(run, request, Silent())
    right = run.forwards_file.read_bytes()
    for key in ("torch", "layerprobe", "net", "image_size"):
        kept = json.loads(right)
        kept["made_from"][key] += "0"
        kept["layers"] = {"wrong": "features.0"}
        run.forwards_file.write_text(json.dumps(kept))
        probe(run, request, Silent())
        assert run.forwards_file.read_bytes() == right, key


def test_a_changed_file_of_the_users_model_is_refused_in_a_repeat(foreign: Callable[..., Run], tmp_path: Path) -> None:
    run = foreign()
    assert run.forwards_file.exists()
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "\n")
    with pytest.raises(RecipeError, match="has changed since tiny began"):
        probe(run, REQUEST, Silent())
