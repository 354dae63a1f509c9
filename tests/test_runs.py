from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from layerprobe.errors import BusyError, DataError, RecipeError, UnknownNameError
from layerprobe.runs import Run, find_run, list_runs, locked, named_run, set_aside

RECORD = {
    "state": "finished", "recipe_name": "netA", "recipe": {}, "experiment": "", "seed": 0, "epochs_done": 0,
    "hashes": {}, "manifests": {}, "new_parameters": [],
}  # fmt: skip
HOLDER = """
import sys, time
from pathlib import Path
from layerprobe.runs import Run, locked
with locked(Run(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


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


def test_the_run_touched_last_is_the_one_meant(tmp_path: Path) -> None:
    for name in ("first", "second"):
        Run(tmp_path / name).write(RECORD)
    Run(tmp_path / "first").write(RECORD)
    assert find_run(tmp_path, None).name == "first"
    assert [run.name for run, _ in list_runs(tmp_path)] == ["first", "second"]


def test_a_run_that_does_not_exist_has_the_near_miss(tmp_path: Path) -> None:
    Run(tmp_path / "netA").write(RECORD)
    with pytest.raises(UnknownNameError, match="unknown run 'netB'. Did you mean 'netA'"):
        find_run(tmp_path, "netB")


def test_no_run_at_all_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no run yet. Train one"):
        find_run(tmp_path, None)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "images"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="cannot name a run"):
        named_run(tmp_path, name)


def test_an_old_run_moves_aside_to_the_first_free_name(tmp_path: Path) -> None:
    for _ in range(2):
        run = Run(tmp_path / "netA")
        run.write({})
        aside = set_aside(run)
    assert aside.name == "netA~2"
    assert not run.folder.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not the record of a run"),
        ('{"schema": 1}', "not the record of a run"),
        ('{"schema": 99}', r"format 99\); this one reads format 1"),
    ],
)
def test_a_record_that_cannot_be_read_says_why(tmp_path: Path, text: str, message: str) -> None:
    run = Run(tmp_path / "netA")
    run.folder.mkdir()
    run.record_file.write_text(text)
    with pytest.raises(DataError, match=message):
        run.read()
