from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.values.choice import Choice
from layerprobe.workflow.choose.choose_once import choose_once
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.export.export_run import export_run, layer_to_export
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.python.probed import Probed
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import StoredChoice, stored_choice
from layerprobe.workflow.threshold.request import ThresholdRequest
from layerprobe.workflow.threshold.threshold import threshold
from tests.workflow.conftest import Silent
from tests.workflow.python.test_result_verbs import TEST, TRAIN, images_of, probed


@pytest.fixture
def result(tmp_path: Path) -> Probed:
    """A result that is kept as a run, with rows to fit and to choose on."""
    splits = {"train": TRAIN, "validation": images_of(26, 40), "test": TEST}
    return probed(splits=splits, cache=tmp_path)


def run_of(result: Probed, cache: Path) -> Run:
    return Run(cache / result.name)


def stored(result: Probed, cache: Path) -> StoredChoice:
    found = stored_choice(run_of(result, cache))
    assert found is not None
    return found


def values_of(choice: Choice) -> tuple[object, ...]:
    return choice.selected.name, choice.gain, choice.max_loss, choice.shares, choice.chosen.value, choice.notes


def test_the_run_keeps_the_choice_of_a_result_under_its_name(result: Probed, tmp_path: Path) -> None:
    choice = result.choose()
    kept = stored(result, tmp_path).choice
    assert values_of(kept) == values_of(choice)
    assert (kept.run, kept.chosen.run, kept.selected.epoch, choice.selected.epoch) == (
        result.name,
        result.name,
        0,
        None,
    )


def test_choose_export_and_threshold_of_the_run_take_the_choice_of_the_result(result: Probed, tmp_path: Path) -> None:
    choice, run = result.choose(layers="0.1", within=0), run_of(result, tmp_path)
    request = ChooseRequest(within=0, device="cpu", layers=("0.1",))
    assert values_of(choose_once([run], request, Silent())) == values_of(choice)
    asked = ExportRequest(tmp_path / "out", ("npz",))
    layer = layer_to_export(run, asked, Silent())
    assert layer.ranked == choice.chosen.ranked
    export_run(layer, asked, Silent())
    assert threshold(run, ThresholdRequest(rates=(0.1,)), Silent()).ranked == choice.chosen.ranked


def test_a_result_of_some_layers_of_the_run_keeps_their_names(result: Probed, tmp_path: Path) -> None:
    splits = {"train": TRAIN, "validation": images_of(26, 40), "test": TEST}
    some = probed(splits=splits, cache=tmp_path, layers="output")
    assert some.name == result.name
    some.choose(seen=False)
    assert stored(result, tmp_path).request["layers"] == ["output"]
    assert stored(result, tmp_path).request["seen"] is False
    result.choose()
    assert stored(result, tmp_path).request["layers"] == []


def test_what_no_run_keeps_and_a_report_store_no_choice(result: Probed, tmp_path: Path) -> None:
    probed().choose()
    result.report(tmp_path / "report.html")
    assert not list(tmp_path.rglob("choice.json"))
