from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.values.choice import Choice
from layerprobe.values.scores import ScoreTable
from layerprobe.workflow.choose import choose_once as room
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.choose_once import choose_once
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import stored_choice
from tests.workflow.choosing_runs import C1, C2, FC6, hits, write_run
from tests.workflow.conftest import Silent

GOOD, FAIR, POOR = hits(*[4] * 20), hits(*[3] * 20), hits(*[1] * 20)
HELD_OUT = {"validation": {C1: FAIR, C2: GOOD, FC6: POOR}, "test": {C1: GOOD, C2: FAIR, FC6: POOR}}
REQUEST = ChooseRequest(device="cpu")
CLASSES = 12
WHITE = replace(C1, reduction="l2+whiten:9:0.5+l2")
AGAIN = "the stored choice, as what it rests on has not changed"


@pytest.fixture
def held(tmp_path: Path) -> Run:
    return write_run(tmp_path, "a", HELD_OUT)


@pytest.fixture
def folded(tmp_path: Path) -> Run:
    """A run that is chosen on test, where half-whitening within folds is better than the stored layer."""
    rng, classes = np.random.default_rng(0), np.repeat(np.arange(CLASSES), 4)
    noise = rng.standard_normal((len(classes), 9)) * [5, 5, 5, 1, 1, 1, 1, 1, 1]
    features = {"test": {"c1@max": (2 * rng.standard_normal((CLASSES, 9))[classes] + noise).astype(np.float32)}}
    return write_run(tmp_path, "a", {"test": {C1: np.ones(4 * CLASSES)}}, features=features, epochs=(0,))


def kept(run: Run) -> Choice:
    stored = stored_choice(run)
    assert stored is not None
    return stored.choice


def test_a_choice_is_the_one_that_nothing_stored_gives_and_the_run_keeps_it(held: Run) -> None:
    listener = Silent()
    choice = choose_once([held], REQUEST, listener)
    assert choice == choose_runs([held], REQUEST, Silent()) == kept(held)
    assert listener.heard == []


def test_the_same_request_is_answered_by_the_stored_choice_and_this_is_said(
    held: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice, listener = choose_once([held], REQUEST, Silent()), Silent()
    monkeypatch.setattr(room, "choose_runs", None)
    assert choose_once([held], REQUEST, listener) == choice
    assert listener.heard == [f"a: {AGAIN}"]


@pytest.mark.parametrize(
    ("request_now", "made_with"),
    [
        (ChooseRequest("2", 100, "cpu"), "--epochs all, --within 1"),
        (ChooseRequest(device="cpu", layers=("c1", "fc6")), "no --layers"),
    ],
)
def test_another_request_is_answered_anew_and_replaces_the_stored_choice(
    request_now: ChooseRequest, made_with: str, held: Run
) -> None:
    choose_once([held], REQUEST, Silent())
    listener = Silent()
    assert choose_once([held], request_now, listener) == choose_runs([held], request_now, Silent()) == kept(held)
    assert listener.heard == [f"a: replaces the stored choice of c2@max, made with {made_with}"]


def test_a_stale_choice_is_made_anew_and_the_reason_is_said(held: Run) -> None:
    choose_once([held], REQUEST, Silent())
    scores = [score for score in held.scores() if score.ranked != C2]
    ScoreTable(scores, stored=[]).write(held.scores_file)
    listener = Silent()
    assert choose_once([held], REQUEST, listener).ship.layer == "c1" == kept(held).ship.layer
    assert listener.heard == ["a: the stored choice no longer holds: its layers have other scores on test now"]


def test_a_damaged_choice_is_told_once_with_its_file_and_made_anew(held: Run) -> None:
    choice, listener = choose_once([held], REQUEST, Silent()), Silent()
    held.choice_file.write_text("{")
    assert choose_once([held], REQUEST, listener) == choice == kept(held)
    assert listener.heard == [f"{held.choice_file}: not a stored choice; it is not taken"]


def test_an_interrupted_choice_leaves_the_stored_one(held: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose_once([held], REQUEST, Silent())

    def interrupted(*_: object) -> Choice:
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "choose_runs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        choose_once([held], ChooseRequest("2", device="cpu"), Silent())
    assert kept(held) == choice
    assert not list(held.folder.glob(".choice*"))


def test_where_it_cannot_be_stored_a_choice_is_made_all_the_same(held: Run) -> None:
    held.choice_file.mkdir()
    listener = Silent()
    assert choose_once([held], REQUEST, listener) == choose_runs([held], REQUEST, Silent())
    (unreadable, unwritable) = listener.heard
    assert unreadable.startswith(f"{held.choice_file}: cannot be read")
    assert unwritable == f"{held.choice_file}: the choice could not be stored (Is a directory)"


def test_half_whitened_candidates_stay_in_the_next_choice(folded: Run) -> None:
    first = choose_once([folded], REQUEST, Silent(), [WHITE])
    assert first.ship.name == str(WHITE)
    assert choose_once([folded], REQUEST, Silent()) == first


def test_half_whitened_candidates_stay_in_a_choice_by_another_request(folded: Run) -> None:
    choose_once([folded], REQUEST, Silent(), [WHITE])
    asked, listener = ChooseRequest(within=0, device="cpu"), Silent()
    again = choose_once([folded], asked, listener)
    assert again == choose_runs([folded], asked, Silent(), [WHITE]) != choose_runs([folded], asked, Silent())
    assert listener.heard == [f"a: replaces the stored choice of {WHITE}, made with --within 1"]


def test_half_whitened_candidates_that_are_none_any_more_are_told(folded: Run) -> None:
    choose_once([folded], REQUEST, Silent(), [WHITE])
    folded.feature_file(0, "test").rename(folded.feature_file(0, "train"))  # dimensions are read from any file
    listener = Silent()
    found = choose_once([folded], ChooseRequest(within=0, device="cpu"), listener)
    assert found.ship.reduction == "none"
    told, replaced = listener.heard
    assert told.startswith("a: half-whitened layers were candidates of the stored choice, and are not now: ")
    assert replaced == f"a: replaces the stored choice of {WHITE}, made with --within 1, half-whitened layers"


def test_indexes_are_of_one_call_and_not_stored(held: Run) -> None:
    found = choose_once([held], ChooseRequest(device="cpu", indexes=("flat",)), Silent())
    assert found.indexes is not None
    assert choose_once([held], REQUEST, Silent()).indexes is None


def test_of_two_seeds_each_keeps_the_choice_until_one_is_chosen_alone(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, name, HELD_OUT, seed=seed) for seed, name in enumerate("ab")]
    both = choose_once(runs, REQUEST, Silent())
    assert [kept(run) for run in runs] == [both, both]
    assert choose_once(runs[::-1], REQUEST, listener := Silent()) == both
    assert listener.heard == [f"a, b: {AGAIN}"]
    alone = choose_once(runs[:1], REQUEST, listener := Silent())
    assert (alone.run, kept(runs[0]), kept(runs[1])) == ("a", alone, both)
    assert listener.heard == ["a: replaces the stored choice of c2@max, made with the runs a, b"]


def test_the_file_names_rule_request_runs_and_candidate(held: Run) -> None:
    choose_once([held], REQUEST, Silent())
    values = json.loads(held.choice_file.read_text())
    request = {"epochs": "all", "within": 1, "layers": [], "metric": "R@1", "cluster": None}
    assert values["request"] == request
    assert (values["rule"], list(values["states"]), values["choice"]["ship"]["layer"]) == (2, ["a"], "c2")
