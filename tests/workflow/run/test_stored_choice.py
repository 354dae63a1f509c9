from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.values.choice import Choice
from layerprobe.values.scores import ScoreTable
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import RULE, StoredChoice, run_state, store_choice, stored_choice
from tests.records import rewrite
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import C1, C2, FC6, hits, write_run

GOOD, FAIR, POOR = hits(*[4] * 20), hits(*[3] * 20), hits(*[1] * 20)
HELD_OUT = {"validation": {C1: POOR, C2: GOOD, FC6: FAIR}, "test": {C1: GOOD, C2: FAIR, FC6: POOR}}
REQUEST = {"epochs": "all", "metric": "R@1"}


def stored_of(choice: Choice, *runs: Run) -> StoredChoice:
    return StoredChoice(RULE, REQUEST, True, {run.name: run_state(run, "R@1") for run in runs}, choice)


@pytest.fixture
def chosen(tmp_path: Path) -> tuple[Run, Choice]:
    """A run that keeps what was chosen of it."""
    run = write_run(tmp_path, "a", HELD_OUT)
    choice = choose_runs([run], ChooseRequest(device="cpu"), Silent())
    store_choice(stored_of(choice, run), [run], Silent().say)
    return run, choice


def lines_of(run: Run) -> list[str]:
    """What is said where the choice of a run is not taken; it is not."""
    heard: list[str] = []
    assert stored_choice(run, heard.append) is None
    return heard


def test_a_choice_is_read_as_it_was_stored(chosen: tuple[Run, Choice]) -> None:
    run, choice = chosen
    stored = stored_choice(run)
    assert stored is not None
    assert stored.choice == choice
    assert (stored.rule, stored.request, stored.whitened, list(stored.states)) == (RULE, REQUEST, True, ["a"])


def test_a_run_of_which_nothing_was_chosen_has_no_choice_and_nothing_is_said(tmp_path: Path) -> None:
    assert lines_of(write_run(tmp_path, "a", HELD_OUT)) == []


def test_a_choice_that_cannot_be_stored_is_told_in_a_line(tmp_path: Path) -> None:
    run, heard = write_run(tmp_path, "a", HELD_OUT), list[str]()
    run.choice_file.mkdir()  # root may write to any folder
    store_choice(stored_of(choose_runs([run], ChooseRequest(device="cpu"), Silent()), run), [run], heard.append)
    assert heard == [f"{run.choice_file}: the choice could not be stored (Is a directory)"]
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "choice.json", "features", "ranks", "run.json", "scores.csv"
    ]  # fmt: skip


def measure_again(run: Run) -> None:
    first, *others = run.scores()
    ScoreTable([replace(first, value=0.5), *others], stored=[]).write(run.scores_file)


STALE: dict[str, Callable[[Run], None]] = {
    "its layers have other scores on validation now": measure_again,
    "data.seen is now false": lambda run: rewrite(run, recipe={**run.read().recipe, "data": {"seen": False}}),
    "its images are others now": lambda run: rewrite(run, manifests={"validation": "m", "test": "n"}),
    "other epochs are ranked on validation now": lambda run: run.rank_file(2, "validation").unlink(),
}


@pytest.mark.parametrize("why", STALE)
def test_a_choice_whose_grounds_have_changed_is_not_taken(why: str, chosen: tuple[Run, Choice]) -> None:
    run, _ = chosen
    STALE[why](run)
    assert lines_of(run) == [f"a: the stored choice no longer holds: {why}"]


def test_scores_by_a_metric_that_does_not_decide_leave_a_choice_as_it_is(chosen: tuple[Run, Choice]) -> None:
    run, choice = chosen
    ScoreTable([*run.scores(), replace(run.scores()[0], metric="mAP", value=0.5)], stored=[]).write(run.scores_file)
    stored = stored_choice(run)
    assert stored is not None
    assert stored.choice == choice


def test_a_renamed_run_does_not_take_the_choice_of_its_former_name(chosen: tuple[Run, Choice]) -> None:
    run, _ = chosen
    other = Run(run.folder.rename(run.folder.with_name("b")))
    assert lines_of(other) == ["b: the stored choice no longer holds: it is that of a"]


def test_a_choice_of_several_trainings_is_kept_by_each_and_rests_on_all(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, name, HELD_OUT, seed=seed) for seed, name in enumerate("ab")]
    choice = choose_runs(runs, ChooseRequest(device="cpu"), Silent())
    store_choice(stored_of(choice, *runs), runs, Silent().say)
    both = [stored_choice(run) for run in runs]
    assert both[0] == both[1] is not None
    measure_again(runs[1])
    why = "of b, its layers have other scores on validation now"
    assert lines_of(runs[0]) == [f"a: the stored choice no longer holds: {why}"]


def test_of_several_networks_the_one_that_is_selected_keeps_the_choice(tmp_path: Path) -> None:
    better = {split: {C2: np.clip(GOOD, 0, 1)} for split in HELD_OUT}
    runs = [write_run(tmp_path, "a", HELD_OUT), write_run(tmp_path, "b", better, experiment="f")]
    choice = choose_runs(runs, ChooseRequest(device="cpu"), Silent())
    store_choice(stored_of(choice, *runs), runs, Silent().say)
    assert [run.name for run in runs if run.choice_file.exists()] == [choice.run]


DAMAGED = {
    "{": "not a stored choice",
    "[]": "not a stored choice",
    json.dumps({"rule": RULE + 1}): f"chosen by rule {RULE + 1}, and this version has rule {RULE}",
    json.dumps({"rule": RULE}): "not a stored choice: request",
}


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_choice_is_told_with_its_file(text: str, chosen: tuple[Run, Choice]) -> None:
    run, _ = chosen
    run.choice_file.write_text(text)
    (line,) = lines_of(run)
    assert line == f"{run.choice_file}: {DAMAGED[text]}; it is not taken"


def test_a_choice_of_a_run_with_no_valid_name_is_not_followed(chosen: tuple[Run, Choice]) -> None:
    run, _ = chosen
    values = json.loads(run.choice_file.read_text())
    values["states"]["../b"] = values["states"]["a"]
    run.choice_file.write_text(json.dumps(values))
    (line,) = lines_of(run)
    assert line.startswith("a: the stored choice no longer holds: '../b' cannot name a run")
