from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import pytest

from layerprobe.system.errors import DataError
from layerprobe.system.files import sha256
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import epoch_weights
from layerprobe.workflow.run.features import PartlyMeasuredError
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

REQUEST = ProbeRequest(layers=("fc6",), ks=(1,), splits=("test",), device="cpu", workers=0)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_told_and_the_other_epochs_are_measured(run: Run) -> None:
    damage(run.checkpoint_file(1))
    listener = Silent()
    with pytest.raises(PartlyMeasuredError, match=r"tiny: not measured: .* damaged checkpoint \(1\)") as caught:
        probe(run, REQUEST, listener)
    assert listener.heard[0].startswith(f"epoch 1 is skipped: {run.checkpoint_file(1)}: is not the file that the run")
    assert [score.epoch for score in caught.value.scores] == [0, 2]
    assert [score.epoch for score in run.scores()] == [0, 2]


def test_a_checkpoint_that_is_gone_is_told_too(run: Run) -> None:
    run.checkpoint_file(0).unlink()
    with pytest.raises(PartlyMeasuredError, match=r"damaged checkpoint \(0\)"):
        probe(run, REQUEST, Silent())


def test_without_a_whole_checkpoint_the_first_is_the_error(run: Run) -> None:
    damage(run.checkpoint_file(1))
    with pytest.raises(DataError, match=r"epoch-0001.safetensors: is not the file that the run wrote\."):
        probe(run, ProbeRequest(layers=("fc6",), epochs="1", device="cpu", workers=0), Silent())
    assert not run.scores_file.exists()


def test_what_was_measured_of_a_checkpoint_before_it_was_damaged_stays(run: Run) -> None:
    before = probe(run, REQUEST, Silent())
    damage(run.checkpoint_file(1))
    assert probe(run, REQUEST, Silent()) == before
    with pytest.raises(PartlyMeasuredError, match=r"damaged checkpoint \(1\)"):
        probe(run, replace(REQUEST, layers=("fc6", "pool5.3")), Silent())
    assert {score.epoch for score in run.scores() if score.ranked.layer.layer == "fc6"} == {0, 1, 2}


def test_only_checkpoints_that_are_loaded_are_hashed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    probe(run, replace(REQUEST, epochs="0,1"), Silent())
    hashed: list[str] = []

    def hashing(path: Path) -> str:
        hashed.append(path.name)
        return sha256(path)

    monkeypatch.setattr(epoch_weights, "sha256_of_weights", hashing)
    probe(run, replace(REQUEST, epochs="0,1"), Silent())
    assert hashed == []
    probe(run, REQUEST, Silent())
    assert {*hashed} == {run.checkpoint_file(2).name}


@pytest.mark.parametrize(("epochs", "measured"), [(2, {0, 2}), (3, {0, 2, 3})])
def test_training_with_probing_goes_on_past_a_damaged_checkpoint_and_ends_as_probe_does(
    request_for: Callable[..., TrainRequest], epochs: int, measured: set[int]
) -> None:
    run = train(request_for("train.decay_at=[]"), Silent())
    damage(run.checkpoint_file(1))
    with pytest.raises(PartlyMeasuredError) as told:
        train(request_for(f"train.epochs={epochs}", "train.decay_at=[]", probe=("fc6",)), Silent())
    assert {score.epoch for score in run.scores()} == measured
    assert run.read().epochs_done == epochs
    assert run.read().state == "finished"
    with pytest.raises(PartlyMeasuredError) as expected:
        probe(run, REQUEST, Silent())
    assert (str(told.value), told.value.exit_code) == (str(expected.value), 3)


def test_a_damaged_checkpoint_that_training_replaces_is_no_fault(
    run: Run, request_for: Callable[..., TrainRequest]
) -> None:
    damage(run.checkpoint_file(2))
    train(request_for(probe=("fc6",)), Silent())
    assert {score.epoch for score in run.scores()} == {0, 1, 2}


def test_features_of_a_newer_format_are_kept_and_end_the_probe(run: Run) -> None:
    probe(run, REQUEST, Silent())
    path = run.feature_file(1, "test")
    with h5py.File(path, "r+") as file:
        file.attrs["schema"] = 2
    newer = path.read_bytes()
    with pytest.raises(DataError, match=r"epoch-0001.test.h5: written by layerprobe \S+ \(format 2\)"):
        probe(run, ProbeRequest(layers=("pool5.3",), device="cpu", workers=0), Silent())
    assert path.read_bytes() == newer
