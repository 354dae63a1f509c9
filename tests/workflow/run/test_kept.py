from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.system.errors import InterruptedRun, RecipeError
from layerprobe.system.files import sha256
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.kept import kept_epochs, remove_checkpoints, wanted_epochs
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.records import recorded
from tests.workflow.conftest import Silent

Requests = Callable[..., TrainRequest]
FC6 = ProbeRequest(layers=("fc6",), ks=(1,), device="cpu", workers=0)


def checkpoints(run: Run) -> list[str]:
    return sorted(path.name for path in run.checkpoint_file(0).parent.iterdir())


def weights(*epochs: int) -> list[str]:
    return [f"epoch-{epoch:04d}.safetensors" for epoch in epochs]


def stopped_after(epoch: int) -> Silent:
    def act(text: str) -> None:
        if text.startswith(f"epoch {epoch}/"):
            os.kill(os.getpid(), signal.SIGINT)

    return Silent(act)


@pytest.mark.parametrize(
    ("keep", "epochs"), [("all", {0, 1, 2, 3, 4, 5}), ("last", {5}), (2, {0, 2, 4, 5}), (9, {0, 5})]
)
def test_every_nth_epoch_and_the_last_are_wanted(keep: object, epochs: set[int]) -> None:
    assert wanted_epochs(keep, 5) == epochs  # type: ignore[arg-type] # of the parameters


def test_a_finished_run_has_the_checkpoints_that_it_keeps(request_for: Requests) -> None:
    run = train(request_for("train.keep=2", "train.epochs=3"), Silent())
    # Epoch 2 is there, so the state that goes on from it is too.
    assert checkpoints(run) == [*weights(0, 2, 3), "resume.previous.pt", "resume.pt"]
    last = train(request_for("train.keep=last", "train.epochs=3", run="last"), Silent())
    assert checkpoints(last) == [*weights(3), "resume.pt"]
    assert sha256(last.checkpoint_file(3)) == sha256(run.checkpoint_file(3))
    assert kept_epochs(run, run.read()) == [0, 2, 3]


def test_what_is_kept_is_no_part_of_a_recipes_identity(request_for: Requests) -> None:
    plain, last = request_for().recipe, request_for("train.keep=last").recipe
    assert plain.identity() == last.identity()
    assert last.changes_since(recorded({"recipe_name": "netA", "recipe": plain.as_dict()})) == []


def test_a_run_that_keeps_little_goes_on_to_the_bytes_of_one_that_keeps_all(request_for: Requests) -> None:
    straight = train(request_for("train.epochs=4", run="straight"), Silent())
    words = ("train.epochs=4", "train.keep=last")
    with pytest.raises(InterruptedRun):
        train(request_for(*words), stopped_after(3))
    run = request_for().target()
    assert checkpoints(run) == [*weights(2, 3), "resume.previous.pt", "resume.pt"]
    # With the last damaged, the one before it is still there.
    run.checkpoint_file(3).write_bytes(b"damaged")
    train(request_for(*words), Silent())
    assert checkpoints(run) == [*weights(4), "resume.pt"]
    assert sha256(run.checkpoint_file(4)) == sha256(straight.checkpoint_file(4))
    assert run.training_log_file.read_text().count("\n") == 4


def test_what_is_kept_may_change_between_two_starts(request_for: Requests) -> None:
    run = train(request_for("train.decay_at=[]"), Silent())
    listener = Silent()
    train(request_for("train.decay_at=[]", "train.keep=last"), listener)
    assert listener.heard[-1] == "tiny: checkpoints removed of 2 epochs, for train.keep = last"
    assert checkpoints(run) == [*weights(2), "resume.pt"]
    train(request_for("train.decay_at=[]", "train.epochs=3"), Silent())
    assert checkpoints(run) == [*weights(2, 3), "resume.previous.pt", "resume.pt"]


def test_no_checkpoint_is_removed_before_it_is_probed(request_for: Requests) -> None:
    run = train(request_for("train.keep=last", probe=("fc6",)), Silent())
    assert {score.epoch for score in run.scores()} == {0, 1, 2}
    # A start without --probe keeps the epoch before the last; with it, both are measured and then one is removed.
    request = request_for("train.epochs=3", "train.keep=last", run="later")
    with pytest.raises(InterruptedRun):
        train(request, stopped_after(2))
    later = train(replace(request, probe=("fc6",)), Silent())
    assert {score.epoch for score in later.scores()} == {1, 2, 3}
    assert checkpoints(later) == [*weights(3), "resume.pt"]


def test_all_epochs_are_those_kept_and_stored_features_of_others_still_hold(request_for: Requests) -> None:
    run = train(request_for("train.keep=last", probe=("fc6",)), Silent())
    before = sha256(run.feature_file(0, "test"))
    assert {score.epoch for score in probe(run, FC6, Silent())} == {2}
    stored = probe(run, replace(FC6, epochs="0,2", ks=(1, 2)), Silent())
    assert {(score.epoch, score.metric) for score in stored} == {(0, "R@1"), (0, "R@2"), (2, "R@1"), (2, "R@2")}
    assert sha256(run.feature_file(0, "test")) == before
    # The epoch measured earlier keeps its scores.
    assert {score.epoch for score in run.scores()} == {0, 1, 2}
    with pytest.raises(RecipeError, match=r"the checkpoint of epoch 0 was removed. Kept: epochs 2\."):
        probe(run, replace(FC6, epochs="0,2", layers=("pool5.3",)), Silent())


def test_the_best_epoch_is_one_that_is_kept(request_for: Requests) -> None:
    run = train(
        request_for("train.keep=last", "data.validation_classes=0.5", "train.batch_size=4", probe=("fc6",)), Silent()
    )
    assert {score.epoch for score in probe(run, replace(FC6, epochs="best"), Silent())} == {2}


def test_what_a_kill_left_of_a_removal_is_removed_by_the_same_command(request_for: Requests) -> None:
    run = train(request_for("train.keep=last"), Silent())
    # run.json is written before the first file goes, so a kill leaves files like these.
    run.checkpoint_file(1).write_bytes(b"left")
    run.resume_file(previous=True).write_bytes(b"left")
    assert {score.epoch for score in probe(run, FC6, Silent())} == {2}
    train(request_for("train.keep=last"), Silent())
    assert checkpoints(run) == [*weights(2), "resume.pt"]


def test_an_ensemble_has_the_epochs_that_all_members_keep(tmp_path: Path) -> None:
    for name, removed in (("e.1", [0]), ("e.2", [0, 2])):
        (tmp_path / name).mkdir()
        Run(tmp_path / name).write(recorded({"epochs_done": 3, "checkpoints_removed": removed}))
    assert kept_epochs(Run(tmp_path / "e"), recorded({"epochs_done": 3, "members": ["e.1", "e.2"]})) == [1, 3]


def test_a_run_without_checkpoints_says_what_it_can_still_do(request_for: Requests) -> None:
    run = train(request_for(probe=("fc6",)), Silent())
    remove_checkpoints(run, range(3))
    assert checkpoints(run) == []
    with pytest.raises(RecipeError, match="all checkpoints were removed. Name epochs whose features are stored"):
        probe(run, FC6, Silent())
    assert len(probe(run, replace(FC6, epochs="0,2"), Silent())) == 4  # R@1 of train and test
    assert train(request_for(), Silent()).read().epochs_done == 2
    with pytest.raises(RecipeError, match="the checkpoint of epoch 2 was removed. Train it again with --fresh"):
        train(request_for(probe=("fc6",)), Silent())
