from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layerprobe.system.errors import RecipeError
from layerprobe.workflow.run.seen import has_seen_train, split_to_choose_on, state_seen
from tests.records import recorded
from tests.workflow.selection_runs import C1, hits, write_run

FILE = {"path": "/a.pt", "part": None, "sha256": "0", "size": 3}
FILES = {"weights_files": [FILE | {"epoch": epoch} for epoch in range(3)], "epochs_done": 2}
FEW = {"train": {C1: hits(*[4] * 8)}, "test": {C1: hits(*[4] * 8)}}
ALONE = {"train": FEW["train"]}


@pytest.mark.parametrize(
    ("weights", "epoch", "more", "seen"),
    [
        ("none", 0, {}, False),
        ("model", 0, {}, False),
        ("imagenet", 0, {}, False),
        ("none", 1, {}, True),
        ("file.pt", 0, {}, True),
        ("run:netA", 0, {}, True),
        ("'ckpt/*.pt'", 2, FILES, True),
        ("none", 0, {"from_python": True}, True),
    ],
)
def test_weights_of_somebodys_training_count_as_having_seen_train(
    weights: str, epoch: int, more: dict[str, Any], seen: bool
) -> None:
    record = {"recipe": {"net": {"weights": weights}, "data": {}}} | more
    assert has_seen_train(recorded(record), epoch) is seen


def test_weights_that_were_trained_on_others_have_not_seen_train_until_they_are_trained_here() -> None:
    record: dict[str, Any] = {"recipe": {"net": {"weights": "file.pt"}, "data": {"seen": False}}}
    assert not has_seen_train(recorded(record), 0)
    assert has_seen_train(recorded(record), 1)
    assert not has_seen_train(recorded(record | FILES), 2)  # each of the files


@pytest.mark.parametrize("more", [{"net": {"weights": "file.pt"}, "epochs": (0,)}, {"from_python": True}, {}])
def test_what_may_have_seen_its_training_classes_is_chosen_on_test(tmp_path: Path, more: dict[str, Any]) -> None:
    run = write_run(tmp_path, "a", FEW, **more)
    assert split_to_choose_on(run, run.read(), run.read().epochs) == "test"


def test_what_weights_from_a_file_need_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", ALONE, epochs=(0,), net={"weights": "file.pt"})
    with pytest.raises(RecipeError, match="a counts as having seen its training classes.* --not-trained-on-these"):
        split_to_choose_on(run, run.read(), [0])


def test_a_frozen_run_is_stated_not_to_have_seen_its_training_classes(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", FEW, epochs=(0,), net={"weights": "file.pt"})
    features = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.h5")}
    state_seen(run, seen=False)
    assert split_to_choose_on(run, run.read(), [0]) == "train"
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.h5")} == features


@pytest.mark.parametrize(
    ("more", "message"),
    [({}, "a was trained on its training classes"), ({"from_python": True}, "a was measured from Python")],
)
def test_a_run_that_was_trained_here_has_seen_them_whatever_is_stated(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    run = write_run(tmp_path, "a", FEW, **more)
    with pytest.raises(RecipeError, match=f"--not-trained-on-these: {message}"):
        state_seen(run, seen=False)
    assert "seen" not in run.read().data


def test_a_run_from_python_is_told_what_to_give_in_python(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", ALONE, epochs=(0,), from_python=True)
    with pytest.raises(RecipeError, match=r"layerprobe.probe\(model, \{'validation'"):
        split_to_choose_on(run, run.read(), [0])


def test_of_few_classes_the_command_holds_out_half(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", ALONE)
    with pytest.raises(RecipeError, match=r"validation_classes=0.5 .*without 4 of 8 classes, about 16 of 32 images"):
        split_to_choose_on(run, run.read(), [2])
