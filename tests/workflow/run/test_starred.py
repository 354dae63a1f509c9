from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.values.records import WeightsFile
from layerprobe.workflow.choose.choose_once import choose_once
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.compare.answer import answer_of, probe_answer
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import selected_line, taken_text
from layerprobe.workflow.summary.summary import stored_summary
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import C1, C2, hits, write_run

GOOD, FAIR = hits(*[4] * 20), hits(*[3] * 20)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose best layer on validation is c2, and that keeps the choice of c1."""
    run = write_run(tmp_path, "a", {split: {C1: FAIR, C2: GOOD} for split in ("validation", "test")})
    choose_once([run], ChooseRequest(device="cpu", layers=("c1",)), Silent())
    return run


def test_a_table_that_marks_another_layer_than_the_choice_says_why(run: Run) -> None:
    line = f"is the best raw layer at epoch 2; choose selected c1 ({run.command('choose')})"
    assert f"* {line}" in stored_summary(run).notes
    assert f"c2@max {line}" in " ".join(map(str.strip, probe_answer(run, answer_of(run, run.scores())).notes))


def test_nothing_is_said_of_the_selected_layer_itself(run: Run) -> None:
    assert selected_line(run, "*", C1, 2) == ""


def test_the_epoch_of_the_choice_is_named_where_it_is_another(run: Run) -> None:
    assert "choose selected c1, epoch 2 (" in selected_line(run, "*", C1, 5)


def test_of_post_processed_layers_the_best_is_not_called_raw(run: Run) -> None:
    line = selected_line(run, "*", replace(C2, post_processing="l2"), 2)
    assert line.startswith("* is the best layer at epoch 2; ")


def test_without_a_choice_nothing_is_said(run: Run) -> None:
    run.choice_file.unlink()
    assert selected_line(run, "*", C2, 2) == ""
    assert not any("choose selected" in note for note in stored_summary(run).notes)


def test_weights_of_one_file_are_named_instead_of_their_epoch(tmp_path: Path) -> None:
    run = write_run(tmp_path, "own", {split: {C1: FAIR, C2: GOOD} for split in ("validation", "test")}, epochs=(0,))
    file = WeightsFile("/x/own.pth", None, "ab", 3, 0)
    recipe = {"net": {"weights": "/x/own.pth"}, "data": {}}
    run.write(replace(run.read(), recipe=recipe, weights_files=(file,), epochs_done=0))
    choice = choose_once([run], ChooseRequest(device="cpu", layers=("c1",)), Silent())
    assert "is the best raw layer with weights of own.pth; choose selected c1" in selected_line(run, "*", C2, 0)
    assert taken_text(run, choice, "the stored choice") == "own: layer c1@max of weights of own.pth, the stored choice"
