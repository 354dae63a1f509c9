"""Commands that several processes run together, as torchrun starts them."""

from __future__ import annotations

import json
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.launches import MAIN, run_launch
from tests.processes import run_python

LENET = [f"--set={setting}" for setting in (
    "net.name=lenet", "data.image_size=28", "data.train_classes=20", "data.test_classes=12", "data.images_per_class=8",
    "data.validation_classes=0.3", "train.epochs=2", "train.batch_size=24", "train.decay_at=[]",
)]  # fmt: skip
TRAIN = ["train", "quick", "--run", "r", *LENET]
# c1 has 6 dimensions, which pca:8 skips.
PROBE = ["probe", "r", "--layers", "c1@max,fc6", "--post", "none,l2+pca:8"]


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the files below a folder, but for locks."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that one process has trained."""
    folder = tmp_path_factory.mktemp("alone")
    ended = run_python(MAIN, *TRAIN, folder=folder)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[subprocess.CompletedProcess[str]]]:
    """The same of three processes, which also probe after every epoch, and what they have printed."""
    folder = tmp_path_factory.mktemp("shared")
    return folder, run_launch(MAIN, *TRAIN, "--probe", "fc6,pool5", size=3, folder=folder)


def losses(folder: Path) -> list[float]:
    lines = (folder / "cache/r/metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_processes_train_what_one_trains(
    alone: Path, shared: tuple[Path, list[subprocess.CompletedProcess[str]]]
) -> None:
    folder, ended = shared
    assert [process.returncode for process in ended] == [0, 0, 0], ended
    assert losses(folder) == pytest.approx(losses(alone), rel=1e-4)


def test_the_first_process_alone_prints(shared: tuple[Path, list[subprocess.CompletedProcess[str]]]) -> None:
    _, (first, *others) = shared
    assert "epoch 2/2: loss" in first.stderr
    assert [process.stdout + process.stderr for process in others] == ["", ""]


def test_the_record_says_how_many_processes_trained(
    alone: Path, shared: tuple[Path, list[subprocess.CompletedProcess[str]]]
) -> None:
    record = json.loads((shared[0] / "cache/r/run.json").read_text())
    assert record["processes"] == [[1, 3]]
    assert "processes" not in json.loads((alone / "cache/r/run.json").read_text())


def test_another_number_of_processes_goes_on_and_says_so(
    tmp_path: Path, shared: tuple[Path, list[subprocess.CompletedProcess[str]]]
) -> None:
    shutil.copytree(shared[0] / "cache", tmp_path / "cache")
    ended = run_launch(MAIN, *TRAIN, "--set=train.epochs=3", size=2, folder=tmp_path)
    assert "r: from epoch 3 on with 2 processes, before with 3" in ended[0].stderr
    record = json.loads((tmp_path / "cache/r/run.json").read_text())
    assert (record["processes"], record["state"]) == ([[1, 3], [3, 2]], "finished")


@pytest.fixture(scope="module")
def probed(alone: Path) -> Path:
    """The cache of the trained run, probed by one process."""
    ended = run_python(MAIN, *PROBE, folder=alone)
    assert ended.returncode == 0, ended.stderr
    return alone


@pytest.mark.parametrize(("size", "options"), [(3, []), (2, ["--shard-rows", "64"])])
def test_processes_store_the_bytes_of_one(size: int, options: list[str], probed: Path, tmp_path: Path) -> None:
    shutil.copytree(probed / "cache", tmp_path / "cache")
    for name in ("features", "ranks", "scores.csv"):
        path = tmp_path / "cache/r" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    ended = run_launch(MAIN, *PROBE, *options, size=size, folder=tmp_path)
    assert [process.returncode for process in ended] == [0] * size, ended
    assert not any(process.stdout + process.stderr for process in ended[1:])
    before, after = hashes(probed / "cache/r"), hashes(tmp_path / "cache/r")
    names = [
        name for name in before if name.startswith(("ranks", "scores") if options else ("ranks", "scores", "feat"))
    ]
    assert len(names) > 9 - 9 * bool(options)
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs"], "error: runs: only train and probe run under torchrun. Start it without torchrun.\n"),
        (
            [*TRAIN, "--set=train.batch_size=20"],
            "error: batches of 20 images cannot be shared by 3 processes. Start 1, 2, 4, 5, 10 or 20, or set"
            " train.batch_size to a multiple of 3.\n",
        ),
        (
            [*TRAIN, "--set=train.chunk=4"],
            "error: chunks of 4 images cannot be shared by 3 processes. Set train.chunk to a multiple of 3, or leave it"
            " out.\n",
        ),
    ],
)
def test_what_processes_cannot_do_is_refused_in_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    ended = run_launch(MAIN, *words, size=3, folder=tmp_path)
    assert [process.returncode for process in ended] == [2] * 3
    assert [process.stderr for process in ended] == [message, "", ""]


def test_the_json_of_an_error_is_the_first_processs(tmp_path: Path) -> None:
    ended = run_launch(MAIN, "probe", "no-such-run", "--json", size=2, folder=tmp_path)
    assert json.loads(ended[0].stdout)["error"]["code"] == "data"
    assert [process.returncode for process in ended] == [3, 3]
    assert not ended[1].stdout + ended[1].stderr


def test_a_command_that_ends_at_once_ends_well(tmp_path: Path) -> None:
    ended = run_launch(MAIN, "--version", size=2, folder=tmp_path)
    assert [process.returncode for process in ended] == [0, 0], ended


def test_a_start_that_was_stopped_in_its_first_epoch_is_not_recorded(
    tmp_path: Path, shared: tuple[Path, list[subprocess.CompletedProcess[str]]]
) -> None:
    shutil.copytree(shared[0] / "cache", tmp_path / "cache")
    path = tmp_path / "cache/r/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"processes": [[1, 3], [3, 4]]}))
    ended = run_launch(MAIN, *TRAIN, "--set=train.epochs=3", size=3, folder=tmp_path)
    assert ended[0].returncode == 0, ended
    assert json.loads(path.read_text())["processes"] == [[1, 3]]
