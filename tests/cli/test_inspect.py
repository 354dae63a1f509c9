"""What a user sees and is asked when a run is removed."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.cli import main
from layerprobe.workflow.run.runs import Run
from tests.records import recorded

Command = Callable[..., tuple[int, str, str]]


class Typed(io.StringIO):
    """What is typed on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def layerprobe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run a command line in this process, in a folder with the runs `tiny` and `remove`; `typed` on a terminal."""
    monkeypatch.chdir(tmp_path)
    record = {
        "state": "finished", "recipe_name": "", "recipe": {}, "experiment": "", "seed": 0, "epochs_done": 0,
        "hashes": {}, "manifests": {}, "new_parameters": [],
    }  # fmt: skip
    for name in ("remove", "tiny"):
        run = Run(Path("cache") / name)
        run.feature_file(0, "test").parent.mkdir(parents=True)
        run.feature_file(0, "test").write_bytes(bytes(2_000_000))
        run.write(recorded(record))

    def command(*words: str, typed: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
        monkeypatch.setattr(sys, "stdin", Typed(typed) if typed is not None else io.StringIO("y\n"))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: typed is not None)
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return command


def exists(name: str) -> bool:
    return Run(Path("cache") / name).exists()


def test_without_a_terminal_it_needs_yes(layerprobe: Command) -> None:
    code, out, err = layerprobe("runs", "remove", "tiny")
    assert (code, out) == (2, "")
    assert err == "error: the run tiny (2 MB) would be removed; confirmation needs a terminal. Give --yes.\n"
    assert exists("tiny")
    assert layerprobe("runs", "remove", "tiny", "--yes") == (0, "removed the run tiny (2 MB)\n", "")
    assert not exists("tiny")
    assert exists("remove")


def test_on_a_terminal_it_asks_with_the_size(layerprobe: Command) -> None:
    code, out, err = layerprobe("runs", "remove", "tiny", "--features", typed="\n")
    assert (code, out) == (0, "nothing was removed\n")
    assert err == "Remove features of the run tiny (2 MB)? [y/N] "
    assert Path("cache/tiny/features").exists()
    assert layerprobe("runs", "remove", "tiny", "--features", typed="y\n")[0] == 0
    assert not Path("cache/tiny/features").exists()
    assert exists("tiny")


def test_json_says_what_went(layerprobe: Command) -> None:
    _, out, _ = layerprobe("runs", "remove", "tiny", "--features", "--yes", "--json")
    assert json.loads(out) == {"schema": 2, "removed": ["tiny"], "parts": ["features"], "bytes": 2_000_000}


def test_a_run_that_is_not_there_has_the_near_miss(layerprobe: Command) -> None:
    code, _, err = layerprobe("runs", "remove", "tinny", "--yes")
    assert code == 2
    assert "unknown run 'tinny'. Did you mean 'tiny'?" in err


def test_runs_shows_sizes_and_a_run_that_is_called_remove(layerprobe: Command) -> None:
    assert layerprobe("runs")[1].count("2 MB") == 2
    found = {row["run"]: row["bytes"] for row in json.loads(layerprobe("runs", "--json")[1])["runs"]}
    assert found["tiny"] == 2_000_000 + Path("cache/tiny/run.json").stat().st_size
    assert "total 2 MB, features 2 MB" in layerprobe("runs", "tiny")[1]
    assert json.loads(layerprobe("runs", "--json", "--", "remove")[1])["run"] == "remove"
    assert layerprobe("runs", "remove", "remove", "--yes")[0] == 0
    assert not exists("remove")


def test_remove_without_a_name_is_a_usage_error(layerprobe: Command) -> None:
    code, _, err = layerprobe("runs", "remove")
    assert code == 2
    assert "Missing argument 'NAME'. layerprobe runs remove --help shows what there is." in err
