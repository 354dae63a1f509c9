from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import PIL.Image
import pytest

from layerprobe.recipe.recipe import Recipe
from layerprobe.workflow.probe import estimate_probe as estimated
from layerprobe.workflow.probe.estimate_probe import estimate_new_probe, estimate_probe
from layerprobe.workflow.probe.probe import _tell_time, probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

Requests = Callable[..., TrainRequest]
REQUEST = ProbeRequest(layers=("fc6",), ks=(1,), device="cpu", workers=0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The files of images that are opened. Each is a second of the clock, and nothing else takes time."""
    files: list[object] = []
    open_image = PIL.Image.open

    def counting(file: Any, *given: Any, **options: Any) -> PIL.Image.Image:
        files.append(file)
        return open_image(file, *given, **options)

    monkeypatch.setattr(PIL.Image, "open", counting)
    monkeypatch.setattr(estimated, "time", SimpleNamespace(perf_counter=lambda: float(len(files))))
    monkeypatch.setattr(estimated, "_FILES", 2)
    monkeypatch.setattr(estimated, "BATCH_SIZE", 4)
    return files


def test_hashing_and_decoding_are_foreseen_from_a_few_images(request_for: Requests, opened: list[object]) -> None:
    run = train(request_for(), Silent())
    shutil.rmtree(run.folder.parent / "images")
    opened.clear()
    # of 32 images, which are hashed, and decoded once for three epochs
    assert estimate_probe(run, REQUEST).seconds == 32 + 32
    # 2 hashed, 4 decoded, and one of each data set to tell whether it is small
    assert len(opened) <= 8


def test_what_is_hashed_is_not_hashed_again(request_for: Requests, opened: list[object]) -> None:
    run = train(request_for(), Silent())
    assert estimate_probe(run, REQUEST).seconds == 32
    probe(run, REQUEST, Silent())
    opened.clear()
    assert (estimate_probe(run, REQUEST).seconds, estimate_probe(run, REQUEST).disk) == (0, 0)


def test_images_that_are_not_kept_are_read_in_every_epoch(
    request_for: Requests, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.data.pixel_cache._LIMIT", 0)
    run = train(request_for("data.cache=off"), Silent())
    assert estimate_probe(run, REQUEST).seconds == 3 * 32


def test_a_run_that_there_is_not_yet_needs_a_few_images_too(
    request_for: Requests, opened: list[object], tmp_path: Path
) -> None:
    request = request_for("train.epochs=0")
    recipe: Recipe = request.recipe
    found = estimate_new_probe(request.target(), recipe, REQUEST, 2)
    assert found.seconds == 32 + 32
    # 2 epochs x 32 images x 8 float32
    assert found.disk == 2 * 32 * 8 * 4
    assert len(opened) <= 8
    assert not (tmp_path / "cache").exists()


def test_a_long_extraction_names_the_probe_of_the_last_epoch(tmp_path: Path) -> None:
    run, listener = Run(tmp_path / "one"), Silent()
    _tell_time(run, 3, listener, 1800)
    assert listener.heard == []
    _tell_time(run, 3, listener, 7200)
    _tell_time(run, 1, listener, 7200)
    command = run.command("probe", "--epochs", "last")
    assert listener.heard == [
        f"about 2 h 0 min for the features of 3 epochs; the last epoch alone: {command}",
        "about 2 h 0 min for the features of 1 epoch",
    ]
