from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.system.errors import EnvironmentFault
from layerprobe.workflow.train import estimate
from layerprobe.workflow.train.building import TrainRequest, build
from layerprobe.workflow.train.estimate import estimate_training, require_space
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

Requests = Callable[..., TrainRequest]


def disk(request: TrainRequest) -> int:
    return estimate_training(request.target(), build(request), request.recipe.train.keep, fresh=request.fresh).disk


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
    monkeypatch.setattr(estimate, "free_bytes", lambda folder: needed - 1)
    what = "tiny: 3 checkpoints and the features of the layers to probe need 6 MB, 6 MB are free"
    with pytest.raises(EnvironmentFault, match=what):
        train(request, Silent())
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(estimate, "free_bytes", lambda folder: needed)
    require_space(request.target(), build(request), "all", fresh=False)


def test_a_cache_that_takes_no_files_is_not_told_as_a_full_disk(request_for: Requests, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    for act in (disk, lambda request: train(request, Silent())):
        with pytest.raises(EnvironmentFault, match=r"cache: cannot be written to. Choose another --cache\."):
            act(request_for())
