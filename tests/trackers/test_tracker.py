from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from layerprobe.registry import TRACKERS
from layerprobe.system.errors import EnvironmentFault, UnknownNameError
from layerprobe.trackers import tracker as module
from layerprobe.trackers.tracker import Trackers, require_trackers
from tests.trackers.kept import Raising

Calls = list[tuple[object, ...]]
CONFIG: Mapping[str, Mapping[str, object]] = {"train": {"epochs": 2}, "net": {"name": "lenet"}}


def test_a_tracker_gets_place_run_recipe_and_numbers(tracker_calls: Calls) -> None:
    trackers = Trackers(["kept:a:b"], "mine", CONFIG, print)
    trackers.log({"loss": 0.5}, 1)
    trackers.close(failed=True)
    begun = ("begin", "a:b", "mine", {"train.epochs": 2, "net.name": "lenet"})
    assert tracker_calls == [begun, ("log", 1, {"loss": 0.5}), ("close", "failed")]


def test_without_a_place_a_tracker_takes_its_default(tracker_calls: Calls) -> None:
    Trackers(["kept"], "mine", {}, print)
    assert tracker_calls == [("begin", "", "mine", {})]


def test_one_that_is_named_twice_is_one(tracker_calls: Calls) -> None:
    Trackers(["kept", "kept"], "mine", {}, print)
    assert len(tracker_calls) == 1


@pytest.mark.parametrize("name", ["raising", "raising:later"])
def test_one_that_raises_is_told_in_one_line_and_left_out(
    name: str, tracker_calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    trackers = Trackers([name, "kept"], "mine", {}, lines.append)
    for epoch in (0, 1):
        trackers.log({"loss": 0.5}, epoch)
    trackers.close(failed=False)
    assert lines == [f"--log {name}: nothing more is logged there: no network"]
    assert Raising.count == 1
    assert [call[0] for call in tracker_calls] == ["begin", "log", "log", "close"]
    assert capsys.readouterr().out == ""


def test_ctrl_c_in_a_tracker_ends_the_command(tracker_calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.trackers.kept.Kept.log", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Trackers(["kept"], "mine", {}, print).log({}, 0)


def test_an_unknown_tracker_has_the_near_miss() -> None:
    with pytest.raises(UnknownNameError, match="unknown tracker 'tensorbord'. Did you mean 'tensorboard'"):
        require_trackers(["tensorbord:runs"])


@pytest.mark.parametrize("kind", TRACKERS)
def test_an_absent_package_is_told_with_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(EnvironmentFault, match=rf"{kind} .*pip install '{kind}>="):
        require_trackers([kind])


@pytest.mark.parametrize("kind", TRACKERS)
def test_an_adapter_is_short_and_imports_its_package_when_it_is_used(kind: str) -> None:
    source = (Path(module.__file__).parent / f"{kind}.py").read_text()
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(source.splitlines()) < 60
    assert not any(kind in ast.unparse(node) for node in imports)
