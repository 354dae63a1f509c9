from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from layerprobe.system.errors import DataError, InterruptedRun
from layerprobe.system.files import sha256
from layerprobe.trackers.tracker import Trackers
from layerprobe.workflow.report import tracked as module
from layerprobe.workflow.report.tracked import tracked
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train, train_any
from tests.trackers.kept import Raising
from tests.workflow.conftest import RECIPES, Silent
from tests.workflow.train.test_train import interrupt_after

Calls = list[tuple[object, ...]]
Requests = Callable[..., TrainRequest]
KEPT = partial(tracked, ["kept"], pytest.fail)


def epochs_of(calls: Calls) -> list[object]:
    return [call[1] for call in calls if call[0] == "log"]


def test_a_training_is_logged_by_epoch_then_drawn_and_reported(request_for: Requests, tracker_calls: Calls) -> None:
    run = train(request_for(probe=("fc6",)), Silent(), KEPT)
    begun, *logged = tracker_calls
    assert begun[2] == "tiny"
    assert begun[3]["train.epochs"] == 2  # type: ignore[index] # the recipe
    assert epochs_of(logged) == [0, 1, 2]
    values = {(x.epoch, f"{x.split}_{x.metric}/{x.ranked}"): x.value for x in run.scores()}
    for _, epoch, numbers in logged[:3]:
        rest = {"loss", "gap_R@1/fc6"}
        assert {(epoch, name): x for name, x in numbers.items() if name not in rest}.items() <= values.items()  # type: ignore[attr-defined]
        assert ("loss" in numbers) == (epoch != 0)  # type: ignore[operator]
    figures = [call[1:] for call in logged if call[0] == "figure"]
    assert figures == [(kind, 2, b"\x89PNG") for kind in ("loss", "layers", "train-vs-test", "gap", "curves")]
    assert logged[-2:] == [("file", "report.html", "<!doctype html>"), ("close", "finished")]


def test_of_a_training_without_probes_loss_and_its_figure_are_logged(
    request_for: Requests, tracker_calls: Calls
) -> None:
    train(request_for(), Silent(), KEPT)
    assert [sorted(call[2]) for call in tracker_calls if call[0] == "log"] == [["loss"], ["loss"]]  # type: ignore[call-overload]
    assert [call[1] for call in tracker_calls if call[0] in ("figure", "file")] == ["loss"]


def test_work_that_raises_or_is_interrupted_has_failed(run: Run, tracker_calls: Calls) -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), KEPT(run, {}):
            raise error
        assert tracker_calls[-1] == ("close", "failed")


def test_a_resumed_training_logs_the_epochs_before_it_again(request_for: Requests, tracker_calls: Calls) -> None:
    with pytest.raises(InterruptedRun):
        train(request_for(probe=("fc6",)), interrupt_after(1), KEPT)
    assert tracker_calls[-1] == ("close", "failed")
    assert "figure" not in {call[0] for call in tracker_calls}
    tracker_calls.clear()
    train(request_for(probe=("fc6",)), Silent(), KEPT)
    assert epochs_of(tracker_calls) == [0, 1, 2]


def test_a_finished_training_is_logged_whole(request_for: Requests, run: Run, tracker_calls: Calls) -> None:
    train(request_for(), Silent(), KEPT)
    assert epochs_of(tracker_calls) == [1, 2]


@pytest.mark.parametrize("name", ["raising", "raising:later"])
def test_a_tracker_that_always_raises_leaves_the_bytes_of_the_checkpoints(
    name: str, request_for: Requests, run: Run, tracker_calls: Calls
) -> None:
    listener = Silent()
    train(request_for(run="raised"), listener, partial(tracked, [name], listener.say))
    raised = Run(run.folder.with_name("raised"))
    for epoch in range(3):
        assert sha256(raised.checkpoint_file(epoch)) == sha256(run.checkpoint_file(epoch))
    assert [line for line in listener.heard if "--log" in line] == [
        f"--log {name}: nothing more is logged there: no network"
    ]
    assert Raising.count == 1
    assert raised.read().state == "finished"


def test_a_tracker_that_draws_and_raises_at_every_call_leaves_the_bytes_of_the_checkpoints(
    request_for: Requests, run: Run, tracker_calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is called again though it has raised, as if it had not been left out.
    monkeypatch.setattr(Trackers, "_faults_told", lambda *_: contextlib.suppress(RuntimeError))
    train(request_for(run="raised", probe=("fc6",)), Silent(), partial(tracked, ["raising:later"], print))
    raised = Run(run.folder.with_name("raised"))
    assert Raising.count > 3
    for epoch in range(3):
        assert sha256(raised.checkpoint_file(epoch)) == sha256(run.checkpoint_file(epoch))


def test_each_member_of_an_ensemble_is_a_run_of_its_own(
    request_for: Requests, tmp_path: Path, tracker_calls: Calls
) -> None:
    recipe = tmp_path / "pair.toml"
    recipe.write_text(f'# pair: two\n[ensemble]\nof = "{RECIPES / "netA.toml"}"\nmembers = 2\n')
    train_any(request_for("train.epochs=1", recipe=str(recipe.with_suffix(""))), Silent(), KEPT)
    assert [call[2] for call in tracker_calls if call[0] == "begin"] == ["tiny.1", "tiny.2"]


def test_a_page_that_cannot_be_made_is_told_and_the_run_stands(
    request_for: Requests, tracker_calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DataError("no room")

    monkeypatch.setattr(module, "build_report", refuse)
    listener = Silent()
    run = train(request_for(probe=("fc6",)), listener, partial(tracked, ["kept"], listener.say))
    assert run.read().state == "finished"
    assert "--log: not all figures of tiny are logged: no room." in listener.heard
    assert tracker_calls[-1] == ("close", "finished")
