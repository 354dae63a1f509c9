from __future__ import annotations

import re
from pathlib import Path

import pytest

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.values.choice import advice_text
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.manage import demo as module
from tests.workflow.conftest import Silent

# The demo on a network and images small enough for a test.
SMALL = (
    "data.train_classes=8", "data.test_classes=4", "data.images_per_class=4", "data.image_size=28", "net.name=lenet",
    "net.fc=[8]", "train.epochs=1", "train.batch_size=8", "train.images_per_class=2",
)  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OVERRIDES", Overrides(settings=(*module.OVERRIDES.settings, *SMALL)))


def test_the_demo_chooses_on_classes_that_were_held_out_and_reports_it(tmp_path: Path) -> None:
    shown = module.demo(tmp_path, Silent())
    assert (shown.choice.chosen.split, shown.choice.classes) == ("validation", 4)  # half of eight
    assert shown.choice == choose_runs([shown.run], ChooseRequest(), Silent())
    assert shown.report == shown.run.folder / "report.html"
    assert advice_text(shown.choice) in re.sub(r"<[^>]+>", "", shown.report.read_text())


def test_a_second_demo_has_nothing_to_train(tmp_path: Path) -> None:
    first = module.demo(tmp_path, Silent())
    before = first.run.checkpoint_file(1).stat().st_mtime_ns
    listener = Silent()
    second = module.demo(tmp_path, listener)
    assert (second.run.name, second.choice) == (first.run.name, first.choice)
    assert f"nothing to do: {first.run.name} has all its 1 epochs" in listener.heard
    assert first.run.checkpoint_file(1).stat().st_mtime_ns == before


def test_the_demo_names_as_many_classes_as_it_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    data = load_recipe(module.RECIPE, module.OVERRIDES).data.model_dump()
    assert data["train_classes"] * (1 - data["validation_classes"]) == data["test_classes"] == 60
