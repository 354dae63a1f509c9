from __future__ import annotations

from pathlib import Path

from layerprobe.report.page import render
from layerprobe.values.choice import advice_text, certainty_text, verdict_text
from layerprobe.values.scores import ScoreTable
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.choose_once import choose_once
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.report.choices import choices
from layerprobe.workflow.report.report import build_report
from layerprobe.workflow.run.runs import Run
from tests.records import rewrite
from tests.scores import with_layer
from tests.workflow.choose.test_choose_once import WHITE
from tests.workflow.choose.test_choose_once import folded as folded
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import C1, C2, FC6, hits, write_run

GOOD, FAIR, POOR = hits(*[4] * 20), hits(*[3] * 20), hits(*[1] * 20)
NETWORK: dict[str, object] = {
    "layers": ["c1", "c2", "fc6"],
    "embedding": ["fc6", "none"],
    "cuts": {},
    "input": None,
    "files": {},
}


def test_the_report_says_what_choose_says(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"validation": {C1: FAIR, C2: GOOD}, "test": {C1: FAIR, C2: GOOD}})
    found = choices([run])
    choice = choose_runs([run], ChooseRequest(device="cpu"), Silent())
    assert found.sentences == (f"a: {advice_text(choice)} {verdict_text(choice)} {certainty_text(choice)}",)
    assert build_report([run], gallery=False).findings[0] == found.sentences[0]


def test_trainings_of_one_experiment_have_one_choice(tmp_path: Path) -> None:
    layers = {"validation": {C1: FAIR, C2: GOOD}, "test": {C1: FAIR, C2: GOOD}}
    runs = [write_run(tmp_path, f"s{seed}", layers, seed=seed) for seed in (0, 1)]
    (found,) = choices(runs).sentences
    assert found.startswith("s0, s1: ")


def test_without_classes_to_choose_on_the_report_says_why_nothing_is_chosen(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"train": {C1: FAIR}})
    (line,) = choices([run]).missing
    assert line.startswith("a: no layer is chosen: a has seen its training classes")
    assert line.endswith(f"; {run.command('choose')} says what helps")
    assert choices([run]).shown == ()


def test_the_report_leads_with_the_stored_choice_and_its_price(tmp_path: Path) -> None:
    layers = {"validation": {C1: FAIR, C2: GOOD, FC6: POOR}, "test": {C1: FAIR, C2: GOOD, FC6: POOR}}
    run = write_run(tmp_path, "a", layers, network=NETWORK)
    choice = choose_once([run], ChooseRequest(device="cpu", layers=("c1",)), Silent())
    made = build_report([run], gallery=False)
    (shown,) = made.choices
    assert made.findings[0] == shown.text == f"a: {advice_text(choice)} {verdict_text(choice)} {certainty_text(choice)}"
    rows = {row[0]: row[1:] for row in shown.rows}
    assert shown.head == ("", "current", "selected", "difference")
    assert rows["layer"][:2] == ("fc6", "c1")
    # 3 of 4 and 1 of 4 images of every class are hit; c1 has 2 numbers of 4 bytes, fc6 has 4
    assert [cell.split(" [")[0] for cell in rows["R@1 on test, %"]] == ["25.0", "75.0", "+50.0"]
    assert rows["bytes an image"] == ("16", "8", "-8")
    assert any(note.startswith("Best on test, chosen by looking: c1, 75.0 %") for note in shown.notes)
    (page,) = made.runs
    assert page.selected == page.layers.index(C1) in page.few
    figures = dict(shown.figures)
    assert figures["layer, current \u2192 selected"] == "fc6 \u2192 c1"
    assert figures["bytes an image"] == "16 \u2192 8"
    # 3 of 4 against 1 of 4 in every class
    assert figures["gain, percentage points"].startswith("+50.0")
    assert shown.command == run.command("export", "--epoch", "2", "--layer", "c1@max", "--out", "a-export")
    page_text = render(made)
    assert f'<p class="finding first">{shown.text.split("+")[0][3:20]}' in page_text
    assert '<dl class="figures">' in page_text
    assert f"<code>{shown.command}</code>" in page_text


def test_without_a_choice_the_card_is_the_answer_of_the_probe(folded: Run) -> None:
    white = [with_layer(score, post_processing="l2+whiten:9:0.5+l2") for score in folded.scores()]
    ScoreTable([*folded.scores(), *white], stored=[]).write(folded.scores_file)
    made = build_report([folded], gallery=False)
    (card,) = made.answers
    assert made.choices == ()
    assert card.advice.startswith("a, epoch 0: c1@max is the only layer measured: R@1 58.3 % on test.")
    assert card.command == folded.command("choose")
    assert card.head[0] == "layer"
    assert f"<code>{card.command}</code>" in render(made)


def test_a_choice_that_is_not_stored_names_the_command_that_stores_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {split: {C1: FAIR, C2: GOOD} for split in ("validation", "test")})
    (shown,) = choices([run]).shown
    assert shown.command == run.command("choose")


def test_where_classes_are_too_few_no_candidate_stands_beside_the_embedding(tmp_path: Path) -> None:
    few = [good[:20] for good in (GOOD, POOR)]  # five classes: too few to choose on
    layers = {split: {C1: few[0], FC6: few[1]} for split in ("validation", "test")}
    run = write_run(tmp_path, "a", layers, network=NETWORK)
    (shown,) = choices([run]).shown
    assert dict(shown.figures)["layer"] == "fc6"
    assert all(shown.sure)


def test_the_current_embedding_that_is_kept_has_one_column(tmp_path: Path) -> None:
    layers = {"validation": {C1: POOR, FC6: GOOD}, "test": {C1: POOR, FC6: GOOD}}
    run = write_run(tmp_path, "a", layers, network=NETWORK)
    (shown,) = choices([run]).shown
    assert shown.head == ("", "current, selected")
    assert all(len(row) == 2 for row in shown.rows)


def test_a_choice_that_is_searched_in_fifths_is_labelled_at_its_numbers(folded: Run) -> None:
    choose_once([folded], ChooseRequest(device="cpu"), Silent(), [WHITE])
    (shown,) = choices([folded]).shown
    (name,) = (row[0] for row in shown.rows if row[0].startswith("R@1"))
    assert name == "R@1 in fifths, %"
    assert shown.notes[0].endswith("(likewise in fifths)")


def test_a_choice_that_would_rank_layers_anew_is_left_to_choose(folded: Run) -> None:
    white = [with_layer(score, post_processing="l2+whiten:9:0.5+l2") for score in folded.scores()]
    ScoreTable([*folded.scores(), *white], stored=[]).write(folded.scores_file)
    (line,) = choices([folded]).missing
    assert line == f"a: no choice is stored, and it takes a while; {folded.command('choose')} makes one"


def test_a_stale_choice_is_told_and_made_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {split: {C1: FAIR, C2: GOOD} for split in ("validation", "test")})
    choose_once([run], ChooseRequest(device="cpu", layers=("c1",)), Silent())
    rewrite(run, manifests={"validation": "m", "test": "n"})
    found = choices([run])
    assert found.missing == ("a: the stored choice no longer holds: its images are others now",)
    assert found.selected == {"a": C2}


def test_of_trainings_those_without_a_choice_are_told(tmp_path: Path) -> None:
    layers = {"validation": {C1: FAIR, C2: GOOD}, "test": {C1: FAIR, C2: GOOD}}
    runs = [write_run(tmp_path, f"s{seed}", layers, seed=seed) for seed in (0, 1)]
    choose_once(runs[:1], ChooseRequest(device="cpu"), Silent())
    found = choices(runs)
    assert len(found.shown) == 1
    assert found.missing == (f"s1: no choice is stored; {runs[1].command('choose')} makes one",)
    choose_once(runs, ChooseRequest(device="cpu"), Silent())
    (shown,) = choices(runs).shown
    assert shown.text.startswith("s0, s1: ")


def test_a_choice_that_fails_is_told(tmp_path: Path) -> None:
    poor = hits(*[0] * 20)
    run = write_run(tmp_path, "a", {"validation": {C1: poor}, "test": {C1: FAIR}})
    (line,) = choices([run]).missing
    assert line.startswith("a: no layer is chosen: ")
    assert "no layer is above chance" in line
