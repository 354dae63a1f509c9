from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.system.errors import RecipeError
from layerprobe.workflow.choose.candidates import ChooseRequest
from layerprobe.workflow.choose.choose_model import choose_model
from layerprobe.workflow.train.frozen import FrozenRequest
from tests.workflow.conftest import Silent

CODE = """
from torch import nn

def build():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    return model, {"size": 16, "filter": "bilinear", "crop": 1.0, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
"""


@pytest.fixture
def asked(images: Path, tmp_path: Path) -> FrozenRequest:
    (tmp_path / "mine.py").write_text(CODE)
    model = f"python:{tmp_path / 'mine.py'}:build"
    return FrozenRequest(model, f"folder:{images}", tmp_path / "cache", "none", device="cpu", workers=0)


def test_a_model_is_measured_and_chosen_in_one_call_and_measured_once(asked: FrozenRequest) -> None:
    run, choice = choose_model(asked, ChooseRequest(device="cpu"), Silent())
    assert (choice.run, choice.chosen.split) == (run.name, "train")
    reductions = {score.reduction.split(":")[0] for score in run.scores()}
    assert reductions == {"none", "l2+whiten"}
    stored = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.h5")}
    again, same = choose_model(asked, ChooseRequest(device="cpu"), Silent())
    assert (again.name, same) == (run.name, choice)
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.h5")} == stored


def test_without_training_classes_the_choice_is_cross_fitted(asked: FrozenRequest) -> None:
    _, choice = choose_model(replace(asked, settings=("data.train_classes=0",)), ChooseRequest(device="cpu"), Silent())
    assert choice.chosen.split == "test"
    assert any(note.startswith("cross-fitted") for note in choice.notes)
    assert choice.classes == 8
    # Three layers, raw and half-whitened; the output is the last one by another name, or not above chance.
    assert choice.candidates <= 4
    assert any(note.startswith("counted once: ") for note in choice.notes)


def test_classes_that_the_weights_have_seen_are_told_before_anything_is_measured(asked: FrozenRequest) -> None:
    run, _ = choose_model(asked, ChooseRequest(device="cpu"), Silent())
    seen = replace(asked, weights=f"run:{run.name}", run="seen")
    with pytest.raises(RecipeError, match="seen its training classes"):
        choose_model(seen, ChooseRequest(device="cpu"), Silent())
    assert not list((run.folder.parent / "seen").rglob("*.h5"))
