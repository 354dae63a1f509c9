from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.system.errors import DataError
from layerprobe.system.files import sha256
from layerprobe.values.layers import LayerKey
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


@dataclass(frozen=True, eq=False)
class Damaged:
    """The scores of a probe, and the features of fc6 that it stored."""

    scores: list[Score]
    features: NDArray[np.float32]


def only(scores: list[Score], **fields: object) -> list[Score]:
    return [score for score in scores if fields.items() <= score.as_json().items()]


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


@pytest.fixture
def damaged(run: Run) -> Damaged:
    """A probed run, with a flipped bit in the stored features of fc6."""
    scores = probe(run, REQUEST, Silent())
    path = run.feature_file(2, "test")
    features, content = store.read_features(path, FC6), bytearray(path.read_bytes())
    content[content.index(features[3].tobytes())] ^= 1
    path.write_bytes(content)
    return Damaged(scores, features)


def test_a_repeat_reads_no_features(run: Run, damaged: Damaged) -> None:
    before = run.feature_file(2, "test").read_bytes()
    assert probe(run, REQUEST, Silent()) == damaged.scores
    assert run.feature_file(2, "test").read_bytes() == before


def test_a_damaged_layer_is_computed_again_where_its_features_are_read(run: Run, damaged: Damaged) -> None:
    run.rank_file(2, "test").unlink()
    assert probe(run, REQUEST, Silent()) == damaged.scores
    np.testing.assert_array_equal(store.read_features(run.feature_file(2, "test"), FC6), damaged.features)


def test_a_damaged_layer_is_computed_again_for_a_metric_of_its_features(run: Run, damaged: Damaged) -> None:
    probe(run, replace(REQUEST, metrics=("uniformity",)), Silent())
    np.testing.assert_array_equal(store.read_features(run.feature_file(2, "test"), FC6), damaged.features)


def test_a_further_layer_leaves_the_stored_ones_as_they_are(run: Run, damaged: Damaged) -> None:
    path = run.feature_file(2, "test")
    before = path.read_bytes(), path.stat().st_mtime_ns
    probe(run, replace(REQUEST, layers=("pool5.3", "fc6", "pool4.1")), Silent())
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before  # neither copied nor read, so damage is not seen
    assert path.with_name("epoch-0002.test.1.h5").stat().st_size < path.stat().st_size


def test_a_damaged_layer_is_computed_again_when_its_file_was_deleted(run: Run, damaged: Damaged) -> None:
    with pytest.raises(DataError, match="Delete it; layerprobe probe tiny --epochs 2 .*computes it again"):
        store.read_features(run.feature_file(2, "test"), FC6)
    run.feature_file(2, "test").unlink()
    probe(run, replace(REQUEST, epochs="2"), Silent())
    np.testing.assert_array_equal(store.read_features(run.feature_file(2, "test"), FC6), damaged.features)


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
