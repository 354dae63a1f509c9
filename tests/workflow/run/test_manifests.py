from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.system.errors import DataError
from layerprobe.system.files import sha256
from layerprobe.workflow.probe.estimate_probe import estimate_probe
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

REQUEST = ProbeRequest(layers=("fc6",), ks=(1, 2), device="cpu", workers=0)
OTHER_CONTENT = "images are not those the run began with: the same names and sizes, another content. Restore them"


@pytest.fixture
def images(images: Path) -> Path:
    """The images, all of one size in bytes."""
    for path in images.rglob("*.png"):
        path.write_bytes(path.read_bytes().ljust(2000, b"\0"))
    return images


def exchange(images: Path) -> None:
    """Let an image of the first and one of the last class change places, with the times that they had."""
    first, last = images / "class0" / "0.png", images / "class7" / "0.png"
    times = [path.stat().st_mtime_ns for path in (first, last)]
    contents = [path.read_bytes() for path in (last, first)]
    for path, content, time in zip((first, last), contents, times, strict=True):
        path.write_bytes(content)
        os.utime(path, ns=(time, time))


def made_by_an_earlier_version(run: Run) -> dict[str, str]:
    """Probe a run and make it one that knows its images by size alone, as do its features and ranks."""
    for probed in (False, True):
        record = run.read()
        for key in ("contents", "features_by_size"):
            record.pop(key, None)
        run.write(record)
        if not probed:
            probe(run, REQUEST, Silent())
    return stored(run)


def stored(run: Run) -> dict[str, str]:
    """The hash of each feature and rank file."""
    return {f"{path.parent.name}/{path.name}": sha256(path) for path in run.folder.glob("*/*.h5")}


def test_images_replaced_by_others_of_the_same_size_are_noticed(run: Run, images: Path) -> None:
    probe(run, REQUEST, Silent())
    scores = run.scores_file.read_text()
    exchange(images)
    with pytest.raises(DataError, match=f"images: the train {OTHER_CONTENT}"):
        probe(run, ProbeRequest(layers=("pool5.3",), ks=(1, 2), device="cpu", workers=0), Silent())
    assert run.scores_file.read_text() == scores


def test_a_run_does_not_go_on_with_replaced_images(request_for: Callable[..., TrainRequest], images: Path) -> None:
    train(request_for("train.epochs=1", "train.decay_at=[]"), Silent())
    exchange(images)
    with pytest.raises(DataError, match=f"images: the train {OTHER_CONTENT}"):
        train(request_for("train.epochs=2", "train.decay_at=[]"), Silent())


def test_a_run_of_an_earlier_version_keeps_its_features_and_ranks(run: Run) -> None:
    before = made_by_an_earlier_version(run)
    listener = Silent()
    probe(run, REQUEST, listener)
    note = (
        "tiny: the train and test images have the names, classes and sizes that the run began with; from now on their"
        " content is compared too"
    )
    assert listener.heard == [note]
    assert note in (run.folder / "log.txt").read_text()
    probe(run, REQUEST, listener)
    assert listener.heard == [note]
    assert len(before) == 12
    assert stored(run) == before


def test_a_run_of_an_earlier_version_is_compared_by_content_from_then_on(run: Run, images: Path) -> None:
    made_by_an_earlier_version(run)
    probe(run, REQUEST, Silent())
    exchange(images)
    with pytest.raises(DataError, match=f"the train {OTHER_CONTENT}"):
        probe(run, REQUEST, Silent())


def test_training_that_goes_on_upgrades_a_run(request_for: Callable[..., TrainRequest], images: Path) -> None:
    run = train(request_for("train.epochs=1", "train.decay_at=[]"), Silent())
    made_by_an_earlier_version(run)
    train(request_for("train.epochs=2", "train.decay_at=[]"), Silent())
    assert run.read()["features_by_size"] == ["train", "test"]
    exchange(images)
    with pytest.raises(DataError, match=f"the train {OTHER_CONTENT}"):
        train(request_for("train.epochs=3", "train.decay_at=[]"), Silent())


def test_a_run_of_an_earlier_version_with_images_of_other_sizes_is_refused(run: Run, images: Path) -> None:
    made_by_an_earlier_version(run)
    with (images / "class0" / "0.png").open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(DataError, match="the train images are not those .*: other names, classes or sizes"):
        probe(run, REQUEST, Silent())
    assert "contents" not in run.read()


def test_an_estimate_of_an_earlier_versions_run_writes_nothing(run: Run) -> None:
    made_by_an_earlier_version(run)
    before = run.record_file.read_bytes()
    assert estimate_probe(run, REQUEST).seconds == 0
    assert run.record_file.read_bytes() == before
