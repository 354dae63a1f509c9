from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.workflow.choose.choose_model import choose_model
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.extractors import RunExtractor
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.frozen import frozen_run
from layerprobe.workflow.train.frozen_request import FrozenRequest
from tests.records import recorded
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


def test_features_are_extracted_once_whatever_the_weights_were_trained_on(
    asked: FrozenRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = choose_model(asked, ChooseRequest(device="cpu"), Silent())
    tuned = replace(asked, weights=f"run:{first.name}")
    run = frozen_run(tuned, Silent())
    probe(run, ProbeRequest(device="cpu", workers=0), Silent())
    with pytest.raises(RecipeError, match="add --not-trained-on-these"):
        tuned.require_choosable()
    unseen = replace(tuned, settings=("data.seen=false",))
    unseen.require_choosable()
    extracted: list[object] = []
    monkeypatch.setattr(RunExtractor, "extract", lambda *args: extracted.append(args))
    same, choice = choose_model(unseen, ChooseRequest(device="cpu"), Silent())
    assert (same.name, extracted, choice.chosen.split) == (run.name, [], "train")
    assert run.read().data["seen"] is False
    assert sorted(path.name for path in (tmp_path / "cache").glob("*/run.json")) == ["run.json"] * 2


def test_a_run_of_a_version_with_another_hash_is_found_under_its_name(asked: FrozenRequest) -> None:
    unseen = replace(asked, settings=("data.seen=false",))
    recipe = unseen.recipe()
    assert recipe.identity() == asked.recipe().identity() != recipe.identity_with_seen
    assert asked.recipe().identity_with_seen == asked.recipe().identity()
    former = Run(asked.cache / f"{recipe.name}-{recipe.identity_with_seen[:6]}")
    assert unseen.target(recipe).name == asked.target(asked.recipe()).name != former.name
    former.folder.mkdir(parents=True)
    former.write(recorded({}))
    assert unseen.target(recipe).name == former.name != asked.target(asked.recipe()).name


@pytest.mark.parametrize("layers", [("zz",), ("zz@avg/l2",)])
def test_an_unknown_candidate_is_told_before_anything_is_measured(
    asked: FrozenRequest, layers: tuple[str, ...]
) -> None:
    with pytest.raises(UnknownNameError, match="unknown layer 'zz'. Known: .*output"):
        choose_model(asked, ChooseRequest(device="cpu", layers=layers), Silent())
    assert not list(asked.cache.rglob("*.h5"))


def test_without_training_classes_the_choice_is_cross_fitted(asked: FrozenRequest) -> None:
    _, choice = choose_model(replace(asked, settings=("data.train_classes=0",)), ChooseRequest(device="cpu"), Silent())
    assert choice.chosen.split == "test"
    assert any(note.startswith("cross-fitted") for note in choice.notes)
    assert choice.classes == 8
    # Three layers, raw and half-whitened; the output is the last one by another name, or not above chance.
    assert choice.candidates <= 4
    assert any(line.startswith("counted once: ") for line in choice.details)


def test_classes_that_the_weights_have_seen_are_told_before_anything_is_measured(asked: FrozenRequest) -> None:
    run, _ = choose_model(asked, ChooseRequest(device="cpu"), Silent())
    seen = replace(asked, weights=f"run:{run.name}", run="seen")
    with pytest.raises(RecipeError, match="seen its training classes"):
        choose_model(seen, ChooseRequest(device="cpu"), Silent())
    assert not list((run.folder.parent / "seen").rglob("*.h5"))
