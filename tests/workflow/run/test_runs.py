from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.system.errors import BusyError, DataError, InterruptedRun, RecipeError, UnknownNameError
from layerprobe.system.files import sha256
from layerprobe.values.scores import ScoreTable
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import (
    Run,
    damaged_runs,
    find_run,
    kept_epochs,
    list_runs,
    locked,
    named_run,
    remove_checkpoints,
    set_aside,
    unwanted_epochs,
    wanted_epochs,
)
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.records import recorded
from tests.workflow.conftest import Silent

RECORD: dict[str, object] = {
    "state": "finished", "recipe_name": "netA", "recipe": {}, "experiment": "", "seed": 0, "epochs_done": 0,
    "hashes": {}, "manifests": {}, "new_parameters": [],
}  # fmt: skip
HOLDER = """
import sys, time
from pathlib import Path
from layerprobe.workflow.run.runs import Run, locked
with locked(Run(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


def write_json(run: Run, record: dict[str, object]) -> None:
    run.folder.mkdir()
    run.record_file.write_text(json.dumps({"schema": 2} | record))


def test_a_run_that_another_process_holds_is_busy_and_names_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "netA")
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run.folder)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"run is in use by pid {holder.pid} on .* since"), locked(run):
            pass
        holder.kill()
    with locked(run):  # the kernel freed it
        pass


@pytest.mark.parametrize(
    "name", ["features", "checkpoints", "plots", ".lock", "run.json", "features/epoch-0000.test.h5"]
)
def test_a_link_below_a_runs_folder_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    run, elsewhere = Run(tmp_path / "netA"), tmp_path / "elsewhere"
    run.write(recorded(RECORD))
    elsewhere.write_text("precious")
    link = run.folder / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(elsewhere)
    refused = pytest.raises(DataError, match=re.escape(f"{link}: a link below a run's folder is not followed."))
    with refused, locked(run):
        pass
    with pytest.raises((DataError, UnknownNameError)):  # where run.json is the link, it is no run
        find_run(tmp_path, "netA")
    assert elsewhere.read_text() == "precious"
    assert not (run.folder / ".lock").is_file() or name == ".lock"


def test_the_record_of_a_run_is_not_read_through_a_link(tmp_path: Path) -> None:
    Run(tmp_path / "netA").write(recorded(RECORD))
    (tmp_path / "netB").mkdir()
    (tmp_path / "netB/run.json").symlink_to(tmp_path / "netA/run.json")
    assert [run.name for run, _ in list_runs(tmp_path)] == ["netA"]
    with pytest.raises(DataError, match="a link below a run's folder is not followed"):
        Run(tmp_path / "netB").read()


def test_a_runs_whole_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "netA").symlink_to(tmp_path / "disk")
    Run(tmp_path / "netA").write(recorded(RECORD))
    with locked(find_run(tmp_path, "netA")):
        assert (tmp_path / "disk/.lock").is_file()


def test_a_lock_file_with_a_second_name_is_locked_and_keeps_its_content(tmp_path: Path) -> None:
    run = Run(tmp_path / "netA")
    run.folder.mkdir()
    (tmp_path / "precious").write_text("precious")
    (run.folder / ".lock").hardlink_to(tmp_path / "precious")
    with locked(run):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_pipe_as_lock_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path / "netA")
    run.folder.mkdir()
    os.mkfifo(run.folder / ".lock")
    with pytest.raises(DataError, match=r"\.lock: not a file\. Delete it\."), locked(run):
        pass


def test_a_pipe_as_log_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path / "netA")
    run.folder.mkdir()
    os.mkfifo(run.folder / "log.txt")
    with pytest.raises(DataError, match=r"log\.txt: a pipe, socket or device, not a file"):
        run.log("one")


def test_a_line_is_added_to_the_log_and_to_no_other_name_of_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "netA")
    run.log("one")
    (tmp_path / "precious").hardlink_to(run.folder / "log.txt")
    run.log("two")
    assert [line.split()[1] for line in (run.folder / "log.txt").read_text().splitlines()] == ["one", "two"]
    assert "two" not in (tmp_path / "precious").read_text()


def test_leftovers_are_removed_from_the_folders_that_runs_write_to(tmp_path: Path) -> None:
    run = Run(tmp_path / "netA")
    for name in ("checkpoints", "features", "plots"):
        (run.folder / name).mkdir(parents=True)
        (run.folder / name / ".epoch-0001.test.h5.4711.tmp").write_text("half")
    run.remove_leftovers()
    assert [path.parent.name for path in run.folder.rglob("*.tmp")] == ["plots"]


def test_the_run_touched_last_is_the_one_meant(tmp_path: Path) -> None:
    for name in ("first", "second"):
        Run(tmp_path / name).write(recorded(RECORD))
    Run(tmp_path / "first").write(recorded(RECORD))
    assert find_run(tmp_path, None).name == "first"
    assert [run.name for run, _ in list_runs(tmp_path)] == ["first", "second"]


def test_a_run_that_does_not_exist_has_the_near_miss(tmp_path: Path) -> None:
    Run(tmp_path / "netA").write(recorded(RECORD))
    with pytest.raises(UnknownNameError, match="unknown run 'netB'. Did you mean 'netA'"):
        find_run(tmp_path, "netB")


def test_no_run_at_all_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no run yet. Train one.*, or measure a model"):
        find_run(tmp_path, None)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "images"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="cannot name a run"):
        named_run(tmp_path, name)


def test_a_name_that_is_too_long_for_a_folder_is_refused(tmp_path: Path) -> None:
    assert named_run(tmp_path, "a" * 240).exists() is False
    with pytest.raises(RecipeError, match="'aaaaaaaaaaaaaaaaaaaa'... has 300 letters. Use at most 240"):
        named_run(tmp_path, "a" * 300)


def test_an_old_run_moves_aside_to_the_first_free_name(tmp_path: Path) -> None:
    for _ in range(2):
        run = Run(tmp_path / "netA")
        run.write(recorded({}))
        aside = set_aside(run)
    assert aside.name == "netA~2"
    assert not run.folder.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not the record of a run"),
        ('{"schema": 2}', "state is missing, expected text"),
        ('{"schema": 99}', r"format 99\); this one reads format 2"),
        ('{"schema": 0}', r"format 0\); this one reads format 2"),
    ],
)
def test_a_record_that_cannot_be_read_says_why(tmp_path: Path, text: str, message: str) -> None:
    run = Run(tmp_path / "netA")
    run.folder.mkdir()
    run.record_file.write_text(text)
    with pytest.raises(DataError, match=message):
        run.read()


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("epochs_done", "3", "epochs_done is '3', expected a whole number"),
        ("epochs_done", True, "epochs_done is True, expected a whole number"),
        ("epochs_done", -1, "epochs_done is -1, expected a whole number"),
        ("seed", None, "seed is None, expected a whole number"),
        ("seed", float("nan"), "not JSON: NaN is not a JSON number"),
        ("hashes", [], "hashes is [], expected the hash of each file"),
        ("recipe", {"train": {}}, "recipe is {'train': {}}, expected the sections of a recipe"),
        ("recipe", {"data": {}, "train": {"epochs": "x"}}, "recipe is {'data': {}, 'train': {'epochs': 'x'}}, exp"),
        ("new_parameters", "fc6", "new_parameters is 'fc6', expected a list of names"),
        ("layer_order", [1], "layer_order is [1], expected a list of layers"),
    ],
)  # fmt: skip
def test_a_field_of_another_kind_is_named_with_the_file(tmp_path: Path, field: str, value: object, shown: str) -> None:
    run = Run(tmp_path / "netA")
    write_json(run, RECORD | {field: value})
    with pytest.raises(DataError, match=re.escape(f"{run.record_file}: {shown}")):
        run.read()


def test_a_missing_field_and_a_record_of_another_format_are_named(tmp_path: Path) -> None:
    run = Run(tmp_path / "netA")
    write_json(run, {key: value for key, value in RECORD.items() if key != "hashes"})
    with pytest.raises(DataError, match="run.json: hashes is missing, expected the hash of each file"):
        run.read()
    run.record_file.write_text('{"schema": 3, "versions": 3}')
    with pytest.raises(DataError, match=r"written by layerprobe None \(format 3\); this one reads format 2"):
        run.read()


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files be of long ago: what was just written is read again each time."""
    monkeypatch.setattr("layerprobe.system.files.time.time_ns", lambda: 2**63)


def test_run_json_is_parsed_once_for_all_objects_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(tmp_path / "netA").write(recorded({"seed": 1}))
    later(monkeypatch)
    record = Run(tmp_path / "netA").read()
    assert record.seed == 1
    assert Run(tmp_path / "netA").read() is record
    assert list_runs(tmp_path)[0][1] is record


def test_a_record_that_was_written_again_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "netA")
    later(monkeypatch)
    for seed in range(3):
        run.write(recorded({"seed": seed}))
        assert Run(tmp_path / "netA").read().seed == seed


def test_a_record_that_was_changed_by_hand_is_read_again(tmp_path: Path) -> None:
    run = Run(tmp_path / "netA")
    run.write(recorded({}))
    text = run.record_file.read_text()
    for seed in range(9):
        run.record_file.write_text(text.replace('"seed": 0', f'"seed": {seed}'))
        assert Run(tmp_path / "netA").read().seed == seed


def test_a_run_that_is_gone_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "netA")
    run.write(recorded({}))
    later(monkeypatch)
    run.read()
    run.record_file.unlink()
    with pytest.raises(DataError, match="no such run"):
        run.read()


def test_a_damaged_run_is_known_beside_the_others(tmp_path: Path) -> None:
    Run(tmp_path / "good").write(recorded(RECORD))
    write_json(Run(tmp_path / "bad"), RECORD | {"epochs_done": "3"})
    (tmp_path / "folder" / "run.json").mkdir(parents=True)
    assert [run.name for run, _ in list_runs(tmp_path)] == ["good"]
    assert [(run.name, error.message) for run, error in damaged_runs(tmp_path)] == [
        ("bad", "epochs_done is '3', expected a whole number"),
        ("folder", "cannot be read (Is a directory)"),
    ]
    assert find_run(tmp_path, None).name == "good"


def test_where_all_runs_are_damaged_the_first_is_told(tmp_path: Path) -> None:
    write_json(Run(tmp_path / "bad"), RECORD | {"epochs_done": "3"})
    with pytest.raises(DataError, match="epochs_done is '3'"):
        find_run(tmp_path, None)


def test_whether_a_run_is_held_is_told_without_touching_its_lock(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    assert run.is_held() is False
    with locked(run):
        assert run.is_held() is True
    before = (run.folder / ".lock").stat()
    assert run.is_held() is False
    assert (run.folder / ".lock").stat() == before


def test_a_name_makes_no_further_line_of_the_log(tmp_path: Path) -> None:
    run = Run(tmp_path / "a")
    run.folder.mkdir()
    run.log("begun: x\x1b[2J\nforged", "note")
    lines = (run.folder / "log.txt").read_text().split("\n")
    assert [line.partition(" ")[2] or line for line in lines] == ["begun: x\ufffd[2J\ufffdforged", "note", ""]


def test_a_header_without_a_score_is_no_score(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert not run.has_scores
    ScoreTable().write(run.scores_file)
    assert not run.has_scores
    with pytest.raises(DataError, match=r"scores\.csv: no scores yet. Run layerprobe probe .* first"):
        run.scores()


def test_the_ranked_epochs_of_a_split_are_ascending_numbers(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    (run.folder / "ranks").mkdir(parents=True)
    for epoch, split in ((12, "test"), (0, "test"), (10_000, "test"), (3, "train")):
        run.rank_file(epoch, split).touch()
    (run.folder / "ranks" / "epoch-best.test.h5").touch()
    assert run.ranked_epochs("test") == [0, 12, 10_000]
    assert run.ranked_epochs("validation") == []


Requests = Callable[..., TrainRequest]
FC6 = ProbeRequest(layers=("fc6",), ks=(1,), device="cpu", workers=0)


def checkpoints(run: Run) -> list[str]:
    return sorted(path.name for path in run.checkpoint_file(0).parent.iterdir())


def weights(*epochs: int) -> list[str]:
    return [f"epoch-{epoch:04d}.safetensors" for epoch in epochs]


def stopped_after(epoch: int) -> Silent:
    def act(text: str) -> None:
        if text.startswith(f"epoch {epoch}/"):
            os.kill(os.getpid(), signal.SIGINT)

    return Silent(act)


@pytest.mark.parametrize(
    ("keep", "epochs"), [("all", {0, 1, 2, 3, 4, 5}), ("last", {5}), (2, {0, 2, 4, 5}), (9, {0, 5})]
)
def test_every_nth_epoch_and_the_last_are_wanted(keep: object, epochs: set[int]) -> None:
    assert wanted_epochs(keep, 5) == epochs  # type: ignore[arg-type] # of the parameters


def test_a_finished_run_has_the_checkpoints_that_it_keeps(request_for: Requests) -> None:
    run = train(request_for("train.keep=2", "train.epochs=3"), Silent())
    # Epoch 2 is there, so the state that goes on from it is too.
    assert checkpoints(run) == [*weights(0, 2, 3), "resume.previous.pt", "resume.pt"]
    last = train(request_for("train.keep=last", "train.epochs=3", run="last"), Silent())
    assert checkpoints(last) == [*weights(3), "resume.pt"]
    assert sha256(last.checkpoint_file(3)) == sha256(run.checkpoint_file(3))
    assert kept_epochs(run, run.read()) == [0, 2, 3]


def test_what_is_kept_is_no_part_of_a_recipes_identity(request_for: Requests) -> None:
    plain, last = request_for().recipe, request_for("train.keep=last").recipe
    assert plain.identity() == last.identity()
    assert last.changes_since(recorded({"recipe_name": "netA", "recipe": plain.as_dict()})) == []


def test_a_run_that_keeps_little_goes_on_to_the_bytes_of_one_that_keeps_all(request_for: Requests) -> None:
    straight = train(request_for("train.epochs=4", run="straight"), Silent())
    words = ("train.epochs=4", "train.keep=last")
    with pytest.raises(InterruptedRun):
        train(request_for(*words), stopped_after(3))
    run = request_for().target()
    assert checkpoints(run) == [*weights(2, 3), "resume.previous.pt", "resume.pt"]
    # With the last damaged, the one before it is still there.
    run.checkpoint_file(3).write_bytes(b"damaged")
    train(request_for(*words), Silent())
    assert checkpoints(run) == [*weights(4), "resume.pt"]
    assert sha256(run.checkpoint_file(4)) == sha256(straight.checkpoint_file(4))
    assert run.training_log_file.read_text().count("\n") == 4


def test_what_is_kept_may_change_between_two_starts(request_for: Requests) -> None:
    run = train(request_for("train.decay_at=[]"), Silent())
    listener = Silent()
    train(request_for("train.decay_at=[]", "train.keep=last"), listener)
    assert listener.heard[-1] == "tiny: checkpoints removed of 2 epochs, for train.keep = last"
    assert checkpoints(run) == [*weights(2), "resume.pt"]
    train(request_for("train.decay_at=[]", "train.epochs=3"), Silent())
    assert checkpoints(run) == [*weights(2, 3), "resume.previous.pt", "resume.pt"]


def test_no_checkpoint_is_removed_before_it_is_probed(request_for: Requests) -> None:
    run = train(request_for("train.keep=last", probe=("fc6",)), Silent())
    assert {score.epoch for score in run.scores()} == {0, 1, 2}
    # A start without --probe keeps the epoch before the last; with it, both are measured and then one is removed.
    request = request_for("train.epochs=3", "train.keep=last", run="later")
    with pytest.raises(InterruptedRun):
        train(request, stopped_after(2))
    later = train(replace(request, probe=("fc6",)), Silent())
    assert {score.epoch for score in later.scores()} == {1, 2, 3}
    assert checkpoints(later) == [*weights(3), "resume.pt"]


def test_all_epochs_are_those_kept_and_stored_features_of_others_still_hold(request_for: Requests) -> None:
    run = train(request_for("train.keep=last", probe=("fc6",)), Silent())
    before = sha256(run.feature_file(0, "test"))
    assert {score.epoch for score in probe(run, FC6, Silent())} == {2}
    stored = probe(run, replace(FC6, epochs="0,2", ks=(1, 2)), Silent())
    assert {(score.epoch, score.metric) for score in stored} == {(0, "R@1"), (0, "R@2"), (2, "R@1"), (2, "R@2")}
    assert sha256(run.feature_file(0, "test")) == before
    # The epoch measured earlier keeps its scores.
    assert {score.epoch for score in run.scores()} == {0, 1, 2}
    with pytest.raises(RecipeError, match=r"the checkpoint of epoch 0 was removed. Kept: epochs 2\."):
        probe(run, replace(FC6, epochs="0,2", layers=("pool5.3",)), Silent())


def test_the_best_epoch_is_one_that_is_kept(request_for: Requests) -> None:
    run = train(
        request_for("train.keep=last", "data.validation_classes=0.5", "train.batch_size=4", probe=("fc6",)), Silent()
    )
    assert {score.epoch for score in probe(run, replace(FC6, epochs="best"), Silent())} == {2}


def test_what_a_kill_left_of_a_removal_is_removed_by_the_same_command(request_for: Requests) -> None:
    run = train(request_for("train.keep=last"), Silent())
    # run.json is written before the first file goes, so a kill leaves files like these.
    run.checkpoint_file(1).write_bytes(b"left")
    run.resume_file(previous=True).write_bytes(b"left")
    assert {score.epoch for score in probe(run, FC6, Silent())} == {2}
    train(request_for("train.keep=last"), Silent())
    assert checkpoints(run) == [*weights(2), "resume.pt"]


def test_an_ensemble_has_the_epochs_that_all_members_keep(tmp_path: Path) -> None:
    for name, removed in (("e.1", [0]), ("e.2", [0, 2])):
        (tmp_path / name).mkdir()
        Run(tmp_path / name).write(recorded({"epochs_done": 3, "checkpoints_removed": removed}))
    assert kept_epochs(Run(tmp_path / "e"), recorded({"epochs_done": 3, "members": ["e.1", "e.2"]})) == [1, 3]


def test_the_numbers_of_weights_files_take_no_memory(tmp_path: Path, little_memory: None) -> None:
    file = {"path": "/a.pt", "part": None, "sha256": "0", "size": 3, "epoch": 10**9}
    Run(tmp_path).write(recorded({"weights_files": [file], "epochs_done": 10**9}))
    assert unwanted_epochs(Run(tmp_path), "all", finished=True) == []


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A limit of 500 MB above what the process has mapped."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 500_000_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_run_without_checkpoints_says_what_it_can_still_do(request_for: Requests) -> None:
    run = train(request_for(probe=("fc6",)), Silent())
    remove_checkpoints(run, range(3))
    assert checkpoints(run) == []
    with pytest.raises(RecipeError, match="all checkpoints were removed. Name epochs whose features are stored"):
        probe(run, FC6, Silent())
    assert len(probe(run, replace(FC6, epochs="0,2"), Silent())) == 4  # R@1 of train and test
    assert train(request_for(), Silent()).read().epochs_done == 2
    with pytest.raises(RecipeError, match="the checkpoint of epoch 2 was removed. Train it again with --fresh"):
        train(request_for(probe=("fc6",)), Silent())
