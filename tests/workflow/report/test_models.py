from __future__ import annotations

from pathlib import Path

from layerprobe.report.page import render
from layerprobe.workflow.choose.choose_models import compare_models
from layerprobe.workflow.choose.models_text import models_table
from layerprobe.workflow.report.models import shown_models
from layerprobe.workflow.report.report import build_report
from tests.workflow.choose.test_choose_models import GOOD, POOR, stored
from tests.workflow.selection_runs import C1, write_run


def test_the_page_of_several_models_leads_with_their_table(tmp_path: Path) -> None:
    chosen = stored(tmp_path, poor=POOR, good=GOOD)
    sentence, *_ = models_table(compare_models(chosen)).heading
    made = build_report([run for run, _ in chosen], gallery=False)
    assert (
        made.findings[0]
        == sentence
        == "Best: timm:good (random), R@1 87.5 [79.5, 92.5] %; the other is significantly worse."
    )
    page = render(made)
    shown = [sentence, '<th scope="row">timm:good (random)</th><td>c2</td><td>87.5 [79.5, 92.5]</td><td>a</td>']
    assert all(page.count(text) == 1 for text in shown)
    assert page.index(sentence) < page.index("Selected: c2")


def test_one_model_or_trained_runs_have_no_table(tmp_path: Path) -> None:
    [(a, _)] = stored(tmp_path, a=GOOD)
    trained = [write_run(tmp_path, name, {"validation": {C1: GOOD}, "test": {C1: GOOD}}) for name in ("b", "c")]
    assert shown_models([a, *trained]) == (None, ())


def test_a_model_without_a_choice_is_named_below_the_table(tmp_path: Path) -> None:
    runs = [run for run, _ in stored(tmp_path, a=GOOD, b=POOR, c=POOR)]
    runs[2].choice_file.unlink()
    shown, _ = shown_models(runs)
    assert shown is not None
    assert [row[0] for row in shown.rows] == ["timm:a (random)", "timm:b (random)"]
    assert shown.notes[-1] == f"c is left out: no choice of it alone is stored; {runs[2].command('choose')} makes one"


def test_models_on_other_images_have_no_table_and_a_note_says_why(tmp_path: Path) -> None:
    [(a, _)], [(b, _)] = stored(tmp_path, a=GOOD), stored(tmp_path, b=GOOD[:60])
    shown, notes = shown_models([a, b])
    assert shown is None
    assert len(notes) == 1
    assert notes[0].startswith("timm:b (random) is not compared: a and b have 80 and 60 images of the test split")
