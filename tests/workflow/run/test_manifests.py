from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.system.errors import DataError
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

REQUEST = ProbeRequest(layers=("fc6",), ks=(1, 2), device="cpu", workers=0)
OTHER_CONTENT = "images are not those of the run: the same names and sizes, other contents. Restore them"


@pytest.fixture
def images(images: Path) -> Path:
    """The images, all of one size in bytes."""
    for path in images.rglob("*.png"):
        path.write_bytes(path.read_bytes().ljust(2000, b"\0"))
    return images


@pytest.fixture
def run(request_for: Callable[..., TrainRequest]) -> Run:
    return train(request_for(), Silent())


def exchange(images: Path) -> None:
    """Let an image of the first and one of the last class change places, with the times that they had."""
    first, last = images / "class0" / "0.png", images / "class7" / "0.png"
    times = [path.stat().st_mtime_ns for path in (first, last)]
    contents = [path.read_bytes() for path in (last, first)]
    for path, content, time in zip((first, last), contents, times, strict=True):
        path.write_bytes(content)
        os.utime(path, ns=(time, time))


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


def test_images_of_other_sizes_are_told_as_such(run: Run, images: Path) -> None:
    with (images / "class0" / "0.png").open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(DataError, match="the train images are not those .*: other names, classes or sizes"):
        probe(run, REQUEST, Silent())
