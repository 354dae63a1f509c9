from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import PIL.Image
import pytest
import safetensors.torch
import torch

from layerprobe.losses.triplet import Triplet
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system import progress
from layerprobe.system.errors import (
    DataError,
    EnvironmentFault,
    InterruptedRun,
    NumericError,
    RecipeError,
    UnknownNameError,
)
from layerprobe.system.files import sha256
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import read_scores
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.from_recipe import build_dataset
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train import train as module
from layerprobe.workflow.train.building import TrainRequest, build
from layerprobe.workflow.train.train import estimate_training, require_space, train
from tests.data.spoiled import moving, transparent, turned
from tests.records import rewrite
from tests.workflow.conftest import Silent

Requests = Callable[..., TrainRequest]


def interrupt_after(epoch: int, number: int = signal.SIGINT) -> Silent:
    def act(text: str) -> None:
        if text.startswith(f"epoch {epoch}/"):
            os.kill(os.getpid(), number)

    return Silent(act)


def weights(run: Run, epoch: int) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run.checkpoint_file(epoch))


@pytest.mark.parametrize("workers", [0, 2])
def test_stop_and_resume_end_with_the_bytes_of_a_straight_run(request_for: Requests, run: Run, workers: int) -> None:
    with pytest.raises(InterruptedRun, match="stopped after epoch 1; the same command resumes") as caught:
        train(request_for(run="resumed", workers=workers), interrupt_after(1))
    assert caught.value.exit_code == 130
    assert Run(run.folder.with_name("resumed")).read().state == "interrupted"
    listener = Silent()
    resumed = train(request_for(run="resumed", workers=workers), listener)
    assert listener.heard[0] == "resumed: continuing after epoch 1"
    for epoch in range(3):
        assert sha256(run.checkpoint_file(epoch)) == sha256(resumed.checkpoint_file(epoch))


def test_sigterm_ends_with_143(request_for: Requests) -> None:
    with pytest.raises(InterruptedRun) as caught:
        train(request_for(), interrupt_after(1, signal.SIGTERM))
    assert caught.value.exit_code == 143


def test_sigterm_ends_a_wait_and_the_run_goes_on_later(request_for: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(Silent):
        def advance(self, steps: int = 1, **figures: float) -> None:
            if "loss" in figures:  # while it trains
                os.kill(os.getpid(), signal.SIGTERM)
                os.read(os.pipe()[0], 1)

    monkeypatch.setattr(progress, "_PATIENCE", 0.2)
    monkeypatch.setattr(progress, "_LAST_PATIENCE", 60.0)  # a busy machine may take its time to clean up
    with pytest.raises(InterruptedRun, match=r"tiny: stopped after epoch 0; .* resumes \(SIGTERM\)") as caught:
        train(request_for(), Waiting())
    assert caught.value.exit_code == 143
    assert request_for().target().read().state == "interrupted"
    assert train(request_for(), Silent()).read().state == "finished"


def test_probing_while_training_changes_no_weight(request_for: Requests, run: Run) -> None:
    probed = train(request_for(run="probed", probe=("*",)), Silent())
    assert sha256(run.checkpoint_file(2)) == sha256(probed.checkpoint_file(2))
    assert probed.feature_file(1, "train").exists()
    assert len({score.epoch for score in read_scores(probed.scores_file)}) == 3


def test_epoch_zero_is_the_untrained_network(request_for: Requests, run: Run) -> None:
    tensors = weights(run, 0)
    assert tensors["net.features.1.num_batches_tracked"] == 0
    assert not tensors["net.features.1.running_mean"].any()
    assert weights(run, 1)["net.features.1.num_batches_tracked"] == 2  # 16 images, batches of 8


def test_a_finished_run_is_left_alone(request_for: Requests, run: Run) -> None:
    before = sha256(run.record_file)
    listener = Silent()
    train(request_for(), listener)
    assert listener.heard == ["nothing to do: tiny has all its 2 epochs"]
    assert sha256(run.record_file) == before


def test_a_finished_run_is_not_the_run_of_other_images(
    run: Run, images: Path, tmp_path: Path, request_for: Requests
) -> None:
    moved, request = images.rename(images.parent / "moved"), request_for()
    there = replace(request.recipe, data=request.recipe.data.model_copy(update={"root": str(moved)}))
    assert train(replace(request, recipe=there), Silent()).read().recipe["data"]["root"] == str(moved)
    shutil.copytree(moved, images)
    next(images.glob("*/*.png")).unlink()
    with pytest.raises(RecipeError, match=f"has the images in {moved}, and those in {images} are others"):
        train(request, Silent())


@pytest.mark.usefixtures("run")
def test_a_training_that_is_refused_begins_no_tracker(request_for: Requests) -> None:
    def tracking(run: Run, recipe: object) -> NoReturn:
        raise AssertionError(f"{run.name} is tracked")

    with pytest.raises(RecipeError, match="another recipe"):
        train(request_for("train.learning_rate=0.1"), Silent(), tracking)


@pytest.mark.usefixtures("run")
def test_another_recipe_under_the_name_is_refused_with_the_keys(request_for: Requests) -> None:
    with pytest.raises(RecipeError, match=r"another recipe: train.learning_rate: 0.01 -> 0.1. Use the old values"):
        train(request_for("train.learning_rate=0.1"), Silent())


def test_epochs_may_grow_where_the_schedule_agrees(request_for: Requests) -> None:
    grown = train(request_for("train.decay_at=[]"), Silent())
    train(request_for("train.decay_at=[]", "train.epochs=3"), Silent())
    straight = train(request_for("train.decay_at=[]", "train.epochs=3", run="straight"), Silent())
    assert sha256(grown.checkpoint_file(3)) == sha256(straight.checkpoint_file(3))
    assert grown.read().experiment == straight.read().experiment
    listener = Silent()
    train(request_for("train.decay_at=[]", "train.epochs=3"), listener)
    assert listener.heard == ["nothing to do: tiny has all its 3 epochs"]


@pytest.mark.usefixtures("run")
def test_epochs_may_not_grow_where_done_epochs_would_change(request_for: Requests) -> None:
    # The learning rate falls after 0.6 of 4 iterations, that is at 2.
    with pytest.raises(RecipeError, match="the learning rate of epochs that are done would change"):
        train(request_for("train.epochs=4"), Silent())


def test_fresh_moves_the_old_run_aside(request_for: Requests, run: Run) -> None:
    old = sha256(run.checkpoint_file(2))
    train(request_for("train.learning_rate=0.1", fresh=True), Silent())
    aside = Run(run.folder.with_name("tiny~1"))
    assert sha256(aside.checkpoint_file(2)) == old
    assert sha256(run.checkpoint_file(2)) != old


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("victim", ["resume.pt", "epoch-0001.safetensors"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(request_for: Requests, run: Run, victim: str) -> None:
    straight = sha256(run.checkpoint_file(2))
    with pytest.raises(InterruptedRun):
        train(request_for(fresh=True), interrupt_after(1))
    damage(run.folder / "checkpoints" / victim)
    listener = Silent()
    train(request_for(), listener)
    assert listener.heard[0].endswith(f"{victim}: is not the file that the run wrote; trying the checkpoint before it")
    assert listener.heard[1] == "tiny: continuing after epoch 0"
    assert sha256(run.checkpoint_file(2)) == straight


def test_the_last_checkpoint_of_a_finished_run_is_trained_again_where_it_is_damaged(
    request_for: Requests, run: Run
) -> None:
    whole = sha256(run.checkpoint_file(2))
    damage(run.checkpoint_file(2))
    listener = Silent()
    assert train(request_for(), listener).read().state == "finished"
    assert listener.heard[1] == "tiny: continuing after epoch 1"
    assert sha256(run.checkpoint_file(2)) == whole


def test_a_damaged_checkpoint_that_training_does_not_need_is_told(request_for: Requests, run: Run) -> None:
    damage(run.checkpoint_file(1))
    listener = Silent()
    train(request_for(), listener)
    damaged = f"{run.checkpoint_file(1)}: is not the file that the run wrote. Restore it from a copy, or train the run"
    assert [text.startswith(damaged) for text in listener.heard] == [True, False]
    assert listener.heard[1] == "nothing to do: tiny has all its 2 epochs"


def test_two_damaged_states_are_one_clear_error_and_lose_nothing(request_for: Requests) -> None:
    with pytest.raises(InterruptedRun):
        train(request_for(), interrupt_after(1))
    run = request_for().target()
    damage(run.resume_file())
    damage(run.resume_file(previous=True))
    before = sha256(run.checkpoint_file(1))
    with pytest.raises(DataError, match=r"resume.previous.pt: is not the file that the run wrote. Restore it"):
        train(request_for(), Silent())
    assert sha256(run.checkpoint_file(1)) == before


@pytest.mark.parametrize("spoil", ["epoch", "iteration", "optimizer", "groups"])
def test_a_resume_state_of_another_kind_falls_back_to_the_one_before(request_for: Requests, spoil: str) -> None:
    with pytest.raises(InterruptedRun):
        train(request_for(), interrupt_after(1))
    run = request_for().target()
    state = torch.load(run.resume_file(), weights_only=True)
    if spoil == "groups":
        state["optimizer"]["param_groups"] = []
    else:
        del state[spoil]
    torch.save(state, run.resume_file())
    rewrite(run, hashes={**run.read().hashes, "resume.pt": sha256(run.resume_file())})
    listener = Silent()
    train(request_for(), listener)
    what = "a resume state of another network or optimiser" if spoil == "groups" else f"a resume state without {spoil}"
    assert f"resume.pt: {what}" in listener.heard[0]
    assert listener.heard[1] == "tiny: continuing after epoch 0"


def test_a_run_killed_between_its_state_and_its_record_goes_on(request_for: Requests) -> None:
    straight = train(request_for(run="straight"), Silent())
    run = request_for().target()
    kept: list[str] = []
    with pytest.raises(InterruptedRun):
        train(request_for(), interrupt_after(1))
    kept.append(run.record_file.read_text())
    train(request_for(), Silent())
    run.record_file.write_text(kept[0])  # the record of epoch 1 beside the state of epoch 2
    train(request_for(), Silent())
    assert sha256(run.checkpoint_file(2)) == sha256(straight.checkpoint_file(2))


def test_two_kills_in_the_same_place_still_go_on(request_for: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = train(request_for(run="straight"), Silent())
    write = Run.write

    def killed(run: Run, record: RunRecord) -> None:
        if record.epochs_done == 2:
            raise KeyboardInterrupt
        write(run, record)

    for _ in range(2):
        monkeypatch.setattr(Run, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            train(request_for(), Silent())
        monkeypatch.undo()
    listener = Silent()
    run = train(request_for(), listener)
    assert "tiny: continuing after epoch 1" in listener.heard
    assert sha256(run.checkpoint_file(2)) == sha256(straight.checkpoint_file(2))
    assert len(run.training_log_file.read_text().splitlines()) == 2


def test_an_epoch_whose_probe_was_interrupted_is_probed_by_the_same_command(request_for: Requests) -> None:
    with pytest.raises(InterruptedRun):
        train(request_for(probe=("fc6",)), interrupt_after(1))
    run = train(request_for(probe=("fc6",)), Silent())
    assert {score.epoch for score in read_scores(run.scores_file)} == {0, 1, 2}


def test_a_finished_run_can_be_probed_by_train(request_for: Requests, run: Run) -> None:
    before = sha256(run.checkpoint_file(2))
    train(request_for(probe=("fc6",)), Silent())
    assert {score.epoch for score in read_scores(run.scores_file)} == {0, 1, 2}
    assert (sha256(run.checkpoint_file(2)), run.read().state) == (before, "finished")


def test_a_misspelt_layer_to_probe_is_told_before_the_run_begins(request_for: Requests) -> None:
    with pytest.raises(UnknownNameError, match="pool5.4"):
        train(request_for(probe=("pool5.4",)), Silent())
    assert not request_for().target().folder.exists()


def test_a_run_goes_on_without_the_source_of_its_weights(request_for: Requests) -> None:
    train(request_for(run="source"), Silent())
    settings = ("net.weights=run:source", "net.fc=[8, 4]")
    straight = train(request_for(*settings, run="straight"), Silent())
    with pytest.raises(InterruptedRun):
        train(request_for(*settings), interrupt_after(1))
    shutil.rmtree(straight.folder.with_name("source"))
    run = train(request_for(*settings), Silent())
    assert sha256(run.checkpoint_file(2)) == sha256(straight.checkpoint_file(2))


def test_a_frozen_warm_up_with_nothing_new_is_refused(request_for: Requests) -> None:
    train(request_for("train.epochs=0", run="source"), Silent())
    with pytest.raises(RecipeError, match="neither network nor loss has any. Set train.warmup"):
        train(request_for("net.weights=run:source", "train.warmup=freeze", "train.warmup_iterations=2"), Silent())


def test_images_that_changed_are_noticed(request_for: Requests, images: Path) -> None:
    with pytest.raises(InterruptedRun):
        train(request_for(), interrupt_after(1))
    (images / "class0" / "0.png").unlink()
    with pytest.raises(DataError, match="the train images are not those of the run"):
        train(request_for(), Silent())


def test_bad_data_leaves_no_folder_behind(request_for: Requests, images: Path, tmp_path: Path) -> None:
    for path in sorted(images.rglob("*.png")):
        path.unlink()
    with pytest.raises(DataError):
        train(request_for(), Silent())
    assert not (tmp_path / "cache").exists()


def test_a_loss_that_is_not_finite_stops_and_names_images(request_for: Requests) -> None:
    with pytest.raises(NumericError, match=r"at epoch \d, iteration \d+ \(images class.*last good checkpoint: epoch 0"):
        train(request_for("train.learning_rate=1e30"), Silent())
    run = request_for().target()
    assert run.read().state == "diverged"
    assert "loss is" in (run.folder / "log.txt").read_text()


def test_metrics_have_one_line_an_epoch_after_a_resume(request_for: Requests) -> None:
    with pytest.raises(InterruptedRun):
        train(request_for(), interrupt_after(1))
    run = train(request_for(), Silent())
    lines = [json.loads(line) for line in run.training_log_file.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert lines[0]["images"] == 16


def test_softmax_trains_on_shuffled_batches_and_keeps_its_classifier(request_for: Requests) -> None:
    run = train(request_for(recipe="netA-softmax"), Silent())
    assert weights(run, 2)["loss.classifier.weight"].shape == (4, 8)


def test_pretrained_weights_of_a_run_are_loaded_and_only_the_rest_is_new(request_for: Requests, run: Run) -> None:
    second = train(request_for("net.weights=run:tiny", "net.fc=[8, 4]", "train.epochs=0", run="second"), Silent())
    before, after = weights(run, 2), weights(second, 0)
    assert torch.equal(before["net.features.0.weight"], after["net.features.0.weight"])
    assert torch.equal(before["net.fc6.weight"], after["net.fc6.weight"])
    assert second.read().new_parameters == ("fc7.bias", "fc7.weight")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("warmup", ["zero_rate", "freeze", "new_layers"])
def test_warm_up_holds_pretrained_weights_and_only_freezing_their_statistics(
    request_for: Requests, warmup: str
) -> None:
    settings = ("net.weights=run:tiny", "net.fc=[8, 4]", "train.epochs=1", "train.warmup_iterations=2")
    run = train(request_for(*settings, f"train.warmup={warmup}", run="second"), Silent())
    before, after = weights(run, 0), weights(run, 1)
    assert torch.equal(before["net.features.0.weight"], after["net.features.0.weight"])
    assert not torch.equal(before["net.fc7.weight"], after["net.fc7.weight"])
    moved = not torch.equal(before["net.features.1.running_mean"], after["net.features.1.running_mean"])
    assert moved == (warmup != "freeze")


@pytest.mark.parametrize(
    "settings",
    [
        ("loss.name=heated_softmax", "train.heat_epochs=[1]"),
        ("loss.name=heated_softmax", "loss.learn_scale=true", "train.heat_epochs=[1]"),
        ("loss.name=subsampled_softmax", "loss.ratio=0.5", "train.momentum=0.5"),
        ("loss.name=softmax", "train.optimizer=adam", "train.decay=cosine", "train.accumulate=2"),
        (
            "loss.name=softmax",
            "train.optimizer=rmsprop",
            "train.decay_at=[]",
            "train.decay_epochs=[1]",
            "train.clip_gradient=0.1",
        ),
        ("train.precision=bfloat16", "train.warmup_epochs=1", "train.warmup=linear"),
        ("loss.name=softmax", "train.chunk=3", "net.fc_dropout=0.5", "train.clip_gradient=0.1"),
    ],
    ids=lambda settings: " ".join(settings),
)
def test_a_resumed_run_equals_a_straight_one_across_the_switch(
    request_for: Requests, settings: tuple[str, ...]
) -> None:
    straight = train(request_for(*settings, run="straight"), Silent())
    with pytest.raises(InterruptedRun):
        train(request_for(*settings), interrupt_after(1))
    run = train(request_for(*settings), Silent())
    assert sha256(run.checkpoint_file(2)) == sha256(straight.checkpoint_file(2))


def test_heating_divides_the_scale_by_4_in_the_checkpoints(request_for: Requests) -> None:
    run = train(request_for("loss.name=heated_softmax", "train.heat_epochs=[1]"), Silent())
    assert [float(weights(run, epoch)["loss.scale"]) for epoch in (0, 1, 2)] == [16, 16, 4]


def test_images_too_small_for_the_network_are_told_before_anything_is_written(request_for: Requests) -> None:
    request = request_for("net.name=lenet", "data.image_size=16")
    with pytest.raises(RecipeError, match="does not take images of 16 px"):
        train(request, Silent())
    assert not request.target().exists()


def test_a_frozen_warm_up_lets_a_new_heads_norm_learn_its_statistics(request_for: Requests) -> None:
    train(request_for("train.epochs=0", run="source"), Silent())
    settings = ("net.weights=run:source", "net.norm=batch", "net.fc=[8, 4]", "train.epochs=1", "train.warmup_epochs=1")
    run = train(request_for(*settings, "train.warmup=freeze"), Silent())
    before, after = weights(run, 0), weights(run, 1)
    assert not torch.equal(before["net.norm5.running_mean"], after["net.norm5.running_mean"])
    assert torch.equal(before["net.features.1.running_mean"], after["net.features.1.running_mean"])


@pytest.mark.parametrize(("counting", "warned"), [(0, True), (3, False)])
def test_epochs_without_a_triplet_that_counts_are_warned_of(
    request_for: Requests, monkeypatch: pytest.MonkeyPatch, counting: int, warned: bool
) -> None:
    def found(self: Triplet, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.informative = torch.tensor(counting)
        return 0 * embeddings.sum()

    monkeypatch.setattr(Triplet, "forward", found)
    train(request_for("loss.name=triplet", "train.epochs=1"), listener := Silent())
    text = "warning: in 2 of 2 batches of epoch 1 no pair or triplet counted; nothing is learnt from them"
    assert (text in listener.heard) == warned


def test_a_decay_that_is_never_reached_is_told(request_for: Callable[..., TrainRequest]) -> None:
    listener = Silent()
    train(request_for("train.epochs=1", "train.decay_at=[]", "train.decay_epochs=[9]"), listener)
    assert "note: train.decay_epochs = [9] is not reached in 1 epochs" in listener.heard


@pytest.mark.parametrize(("chunk", "told"), [(3, True), (8, False)])
def test_by_how_many_images_chunks_are_normalised_is_told(request_for: Requests, chunk: int, told: bool) -> None:
    train(request_for("train.epochs=1", f"train.chunk={chunk}"), listener := Silent())
    note = f"note: BatchNorm normalises by chunks of {chunk} of the 8 images of a batch"
    assert (note in listener.heard) == told


def test_a_probe_that_cannot_be_measured_leaves_a_failed_run_and_its_reason(request_for: Requests) -> None:
    request = request_for("probe.k=[1000]", probe=("fc6",))
    with pytest.raises(RecipeError, match="K = 1000 is not below"):
        train(request, Silent())
    assert request.target().read().state == "failed"
    assert "K = 1000" in (request.target().folder / "log.txt").read_text()


def test_a_disk_that_fails_is_told_as_itself_though_the_log_fails_too(
    request_for: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def fail(text: str) -> None:
        if text.startswith("epoch 1/"):
            monkeypatch.setattr("os.fsync", failing)

    with pytest.raises(EnvironmentFault, match=r"jsonl: \S+ reports an input/output error; .*, up to epoch 1\."):
        train(request_for(), Silent(fail))
    monkeypatch.undo()
    assert train(request_for(), Silent()).read().state == "finished"


def test_what_is_done_to_images_is_said_when_a_run_begins_and_recorded(request_for: Requests, images: Path) -> None:
    (images / "class0" / "9.png").write_bytes(transparent(1))
    (images / "class0" / "9.jpg").write_bytes(turned(2))
    (images / "class1" / "9.gif").write_bytes(moving("GIF", 3))
    notes = [
        "images with transparent pixels, which are laid on white: 1",
        "images with several frames or pages, of which the first is read: 1",
        "images that are not rotated as their EXIF data say (data.exif_rotation = true does): 1",
    ]
    with pytest.raises(InterruptedRun):
        train(request_for(), begun := interrupt_after(1))
    train(request_for(), goes_on := Silent())
    assert begun.heard[1:4] == [f"note: {note}" for note in notes]
    assert not any(text.startswith("note: images") for text in goes_on.heard)
    run = request_for().target()
    assert run.read().notes == tuple(notes)
    assert f"note: {notes[0]}" in (run.folder / "log.txt").read_text()


def test_dark_16_bit_images_and_unread_files_are_said_when_a_run_begins(request_for: Requests, images: Path) -> None:
    PIL.Image.fromarray(np.full((8, 8), 900, np.uint16)).save(images / "class0" / "9.png")
    (images / "class1" / "9.tga").write_bytes(b"")
    unread = "files that are not read: 1 .tga (class1/9.tga)"
    notes = (
        unread,
        "images of 16-bit grey, which is divided by 257: 1",
        "16-bit grey images have values up to 900 of 65535, and become dark: --set data.white=1023 makes 1023 white",
    )
    run = train(request_for("train.epochs=0"), heard := Silent())
    assert run.read().notes == notes
    assert heard.heard[:3] == [f"note: {note}" for note in notes]
    scaled = train(request_for("train.epochs=0", "data.white=1023", run="scaled"), Silent())
    assert scaled.read().notes == (unread, "images of 16-bit grey, in which 1023 is white: 1")


def test_exif_data_that_are_applied_are_no_note(request_for: Requests, images: Path) -> None:
    (images / "class0" / "9.jpg").write_bytes(turned(2))
    assert train(request_for("data.exif_rotation=true", "train.epochs=0"), Silent()).read().notes == ()


def test_a_prefix_taken_off_weights_is_said_and_recorded(request_for: Requests, tmp_path: Path) -> None:
    source = train(request_for("train.epochs=0", run="source"), Silent())
    weights = safetensors.torch.load_file(source.checkpoint_file(0))
    wrapped = {"module." + name.removeprefix("net."): value for name, value in weights.items() if name[:4] == "net."}
    safetensors.torch.save_file(wrapped, tmp_path / "w.safetensors")
    run = train(request_for(f"net.weights={tmp_path / 'w.safetensors'}", "train.epochs=0"), listener := Silent())
    note = f"w.safetensors: 'module.' is taken off the names of {len(wrapped)} tensors"
    assert f"note: {note}" in listener.heard
    assert run.read().notes == (note,)


def test_an_image_in_train_and_test_marks_every_score(request_for: Requests, images: Path) -> None:
    shutil.copyfile(images / "class0" / "0.png", images / "class7" / "0.png")
    run = train(request_for("train.epochs=0"), listener := Silent())
    note = "test images that are in train too: 1 of 16"
    assert listener.heard.count(f"note: {note}") == 1
    scores = probe(run, ProbeRequest(layers=("fc6",), ks=(1,), device="cpu", workers=0), Silent())
    assert [note in score.notes for score in scores] == [True, True]


def test_probing_while_training_searches_as_the_recipe_says_and_leaves_accuracy_out(request_for: Requests) -> None:
    listener = Silent()
    settings = ("train.epochs=1", 'probe.similarity="euclidean"', 'probe.metrics=["accuracy"]', "probe.k=[1]")
    run = train(request_for(*settings, probe=("fc6",)), listener)
    assert {(score.metric, score.ranked.similarity) for score in run.scores()} == {("R@1", "euclidean")}
    assert "accuracy skipped: smooth_triplet has no classifier" in listener.heard


def test_a_probe_of_other_splits_keeps_the_record_of_the_training_images(
    request_for: Callable[..., TrainRequest], images: Path
) -> None:
    run = train(request_for("train.epochs=1"), Silent())
    before = run.read().contents
    next((images / "class0").glob("*.png")).write_bytes(next((images / "class1").glob("*.png")).read_bytes())
    request = ProbeRequest(layers=("fc6",), device="cpu", workers=0)
    probe(run, replace(request, splits=("test",)), Silent())
    assert run.read().contents == before
    with pytest.raises(DataError, match="the train images are not those of the run"):
        probe(run, replace(request, splits=("train",)), Silent())


def disk(request: TrainRequest) -> int:
    return estimate_training(request).disk


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["train.momentum=0.0"],
        ['train.optimizer="adam"'],
        ['train.optimizer="rmsprop"', "train.momentum=0.0"],
        ['train.optimizer="rmsprop"', "train.momentum=0.9"],
    ],
)
def test_the_checkpoints_and_three_states_are_foreseen(request_for: Requests, settings: list[str]) -> None:
    request = request_for(*settings)
    foreseen = disk(request)
    run = train(request, Silent())
    checkpoints = sum(run.checkpoint_file(epoch).stat().st_size for epoch in (0, 1, 2))
    # The third state is written beside the two that are kept. Files also have a head, of some kilobytes here.
    assert foreseen == pytest.approx(checkpoints + 3 * run.resume_file().stat().st_size, rel=0.05)


@pytest.mark.usefixtures("run")
def test_what_a_finished_run_lacks_is_nothing(request_for: Requests) -> None:
    assert disk(request_for()) == 0
    assert disk(request_for(fresh=True)) > 0


def test_what_is_not_kept_needs_no_room(request_for: Requests) -> None:
    long = "train.epochs=9"
    one = (disk(request_for(long)) - disk(request_for())) / 7
    # the last, and the two before it that are there while it is written, of 10
    assert disk(request_for(long)) - disk(request_for(long, "train.keep=last")) == 7 * one
    # 0, 4, 8, 9 and two
    assert disk(request_for(long)) - disk(request_for(long, "train.keep=4")) == 4 * one
    train(request_for("train.keep=last"), Silent())
    assert disk(request_for("train.keep=last")) == 0


def test_the_features_of_layers_to_probe_are_foreseen(request_for: Requests) -> None:
    layers = disk(request_for(probe=("fc6",))) - disk(request_for())
    # 32 images with 8 float32 each after epochs 0, 1 and 2
    assert layers == 32 * 8 * 4 * 3


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(
    request_for: Requests, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request = request_for(probe=("fc6",))
    needed = disk(request)
    monkeypatch.setattr(module, "free_bytes", lambda folder: needed - 1)
    what = "tiny: 3 checkpoints and the features of the layers to probe need 6 MB, 6 MB are free"
    with pytest.raises(EnvironmentFault, match=what):
        train(request, Silent())
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(module, "free_bytes", lambda folder: needed)
    require_space(request.target(), build(request), "all", fresh=False)


def test_a_cache_that_takes_no_files_is_not_told_as_a_full_disk(request_for: Requests, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    for act in (disk, lambda request: train(request, Silent())):
        with pytest.raises(EnvironmentFault, match=r"cache: cannot be written to. Choose another --cache\."):
            act(request_for())


def test_training_tells_first_on_which_data(request_for: Requests, images: Path) -> None:
    listener = Silent()
    train(request_for("train.epochs=1", run="one"), listener)
    held_out = "held-out classes: 4 for test (16 images)"
    assert listener.heard[0] == f"one: trains on folder:{images.name}: 16 images of 4 classes; {held_out}"


def test_test_images_of_the_training_classes_are_told_as_such() -> None:
    recipe = load_recipe("quick", Overrides("digits"))
    dataset = build_dataset(recipe)
    assert module.data_text(recipe, dataset).endswith("held-out classes: 5 for test (896 images)")
    dataset = replace(dataset, splits={"train": dataset.splits["train"], "test": dataset.splits["train"]})
    text = module.data_text(recipe, dataset)
    assert text == "trains on digits: 901 images of 5 classes; test: 901 images of the same classes"


def test_the_time_of_a_training_is_told_once_its_pace_is_known(
    request_for: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_KNOWN", 0.0)
    listener = Silent()
    train(request_for(run="one"), listener)
    (told,) = [text for text in listener.heard if text.startswith("about ")]
    assert re.fullmatch(r"about \d+ s for 2 epochs", told)
    assert listener.heard.index(told) < listener.heard.index(next(x for x in listener.heard if x.startswith("epoch 1")))


def test_a_long_training_names_a_shorter_one() -> None:
    command = "layerprobe train netA --run='a b' --fresh --run other --set train.epochs=100"
    # 4 min an epoch, so that two take 8 of the 10 minutes that a short training may take
    assert module.time_text(command, "netA", 100, 24_000) == (
        "about 6 h 40 min for 100 epochs; a shorter one first takes about 8 min 0 s: layerprobe train netA --set"
        " train.epochs=100 --set train.epochs=2 --run netA-short"
    )
    assert module.time_text(command, "netA", 100, 1800) == "about 30 min 0 s for 100 epochs"
    assert module.time_text("layerprobe study x", "netA", 100, 24_000) == "about 6 h 40 min for 100 epochs"
