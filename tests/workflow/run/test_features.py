from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import pytest

from layerprobe.system.errors import DataError
from layerprobe.system.files import sha256
from layerprobe.values.keys import LayerKey
from layerprobe.values.scores import Score
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.records import recorded
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
POOL = LayerKey("pool5.3", "max")

Requests = Callable[..., TrainRequest]
REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), ks=(1, 2), device="cpu", workers=0)


def only(scores: list[Score], **fields: object) -> list[Score]:
    return [score for score in scores if all(getattr(score, name) == value for name, value in fields.items())]


def test_features_of_other_weights_are_not_trusted(run: Run, request_for: Requests) -> None:
    probe(run, REQUEST, Silent())
    stale = run.feature_file(2, "test").read_bytes()
    train(request_for("train.learning_rate=0.1", fresh=True), Silent())
    run.feature_file(2, "test").parent.mkdir()
    run.feature_file(2, "test").write_bytes(stale)
    listener = Silent()
    fresh = probe(run, REQUEST, listener)
    assert listener.heard == ["epoch-0002.test.h5 is computed again: weights_sha256 is not what it was"]
    with h5py.File(run.feature_file(2, "test")) as file:
        assert file.attrs["weights_sha256"].decode() == sha256(run.checkpoint_file(2))
    assert only(fresh, epoch=2)


def test_images_that_changed_since_the_training_are_noticed(run: Run, images: Path) -> None:
    with (images / "class0" / "0.png").open("ab") as stream:
        stream.write(b"more")
    message = "images: the train images are not those of the run: other names, classes or sizes. Restore them"
    with pytest.raises(DataError, match=message):
        probe(run, REQUEST, Silent())
    assert not run.scores_file.exists()
    assert only(probe(run, replace(REQUEST, splits=("test",)), Silent()), split="test")


def test_a_split_that_the_run_does_not_know_the_images_of_is_probed(run: Run, images: Path) -> None:
    run.write(recorded(run.read().as_json() | {"manifests": {}, "contents": {}}))
    (images / "class0" / "0.png").unlink()
    assert probe(run, REQUEST, Silent())
