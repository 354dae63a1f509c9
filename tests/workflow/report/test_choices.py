from __future__ import annotations

from pathlib import Path

from layerprobe.values.choice import advice_text, verdict_text
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.report.choices import choices
from layerprobe.workflow.report.report import made_report
from tests.workflow.choosing_runs import C1, C2, hits, write_run
from tests.workflow.conftest import Silent

GOOD, FAIR = hits(*[4] * 20), hits(*[3] * 20)


def test_the_report_says_what_choose_says(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"validation": {C1: FAIR, C2: GOOD}, "test": {C1: FAIR, C2: GOOD}})
    found = choices([run])
    choice = choose_runs([run], ChooseRequest(device="cpu"), Silent())
    assert found.sentences == (f"a: {advice_text(choice)} {verdict_text(choice)}",)
    assert made_report([run], gallery=False).findings[0] == found.sentences[0]


def test_trainings_of_one_experiment_have_one_choice(tmp_path: Path) -> None:
    layers = {"validation": {C1: FAIR, C2: GOOD}, "test": {C1: FAIR, C2: GOOD}}
    runs = [write_run(tmp_path, f"s{seed}", layers, seed=seed) for seed in (0, 1)]
    (found,) = choices(runs).sentences
    assert found.startswith("s0, s1: Selected: c2. ")


def test_without_validation_classes_nothing_is_chosen_in_a_report(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"train": {C1: FAIR}, "test": {C1: FAIR}})
    assert choices([run]).sentences == choices([run]).missing == ()


def test_a_choice_that_fails_is_told(tmp_path: Path) -> None:
    poor = hits(*[0] * 20)
    run = write_run(tmp_path, "a", {"validation": {C1: poor}, "test": {C1: FAIR}})
    (line,) = choices([run]).missing
    assert line.startswith("a: no layer is chosen: ")
    assert "no layer is above chance" in line
