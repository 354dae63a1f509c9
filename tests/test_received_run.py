"""A run folder that somebody else made runs none of their Python, in real processes of every command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from layerprobe.registry import PLOTS
from layerprobe.system.errors import RecipeError
from layerprobe.workflow.manage.layers import layers
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.frozen import frozen_run
from layerprobe.workflow.train.frozen_request import FrozenRequest
from tests.processes import MAIN, run_python
from tests.workflow.conftest import Silent

CODE = """
from pathlib import Path
from torch import nn

Path({marker!r}).touch()

def build():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    return model, {{"size": 16, "filter": "bilinear", "crop": 1.0}}
"""
Command = Callable[..., subprocess.CompletedProcess[str]]


def write_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "abcdefg":
        (folder / name).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 256, (20, 20, 3), np.uint8)
            PIL.Image.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 0 epochs, measured; its Python file writes the marker when it is imported."""
    home = tmp_path_factory.mktemp("made")
    write_images(home / "data")
    file = home / "net.py"
    file.write_text(CODE.format(marker=str(home / "marker")))
    request = FrozenRequest(
        f"python:{file}:build", f"folder:{home / 'data'}", home / "cache", "none", run="m", device="cpu", workers=0
    )
    run = frozen_run(request, Silent())
    probe(run, ProbeRequest(device="cpu", workers=0, ks=(1,)), Silent())
    (home / "marker").unlink()
    return home


@pytest.fixture
def received(made: Path, tmp_path: Path) -> Path:
    """The same at its receiver's: the Python file lies in the run's folder, where run.json names it."""
    home = tmp_path / "home"
    shutil.copytree(made, home)
    code = CODE.format(marker=str(home / "marker"))
    (home / "net.py").unlink()
    (home / "cache/m/net.py").write_text(code)
    name_in_record(home, "cache/m/net.py")
    return home


def name_in_record(home: Path, file: str) -> None:
    """Let run.json name a file, as whoever made it could: with the hashes of what lies there."""
    run = Run(home / "cache/m")
    record = json.loads(run.record_file.read_text())
    digest = sha256((home / file).read_bytes()).hexdigest()
    record["recipe"]["net"]["name"] = f"python:{file}:build"
    record["recipe"]["data"]["root"] = str(home / "data")
    record["versions"][Path(file).name] = digest[:12]
    record["network"]["files"] = {"": digest}
    run.record_file.write_text(json.dumps(record))


@pytest.fixture
def layerprobe(received: Path) -> Command:
    """Run a command, in a process of its own, as somebody who has named nothing."""
    environment = {**os.environ, "XDG_STATE_HOME": str(received / "state"), "MPLBACKEND": "agg"}
    environment.pop("LAYERPROBE_NAMED_MODELS", None)

    def command(*words: str, program: str = MAIN) -> subprocess.CompletedProcess[str]:
        return run_python(program, *words, folder=received, environment=environment)

    return command


REFUSED = (
    "error: {home}/cache/m/net.py: lies in the run folder {home}/cache/m (by its run.json), of which nothing is"
    " imported. Read it. If you trust it, copy it to a folder of yours and name the copy by --model.\n"
)


# Several commands in one process, since starting one takes seconds; what each prints, and its exit code.
COMMANDS = """
import contextlib, io, json, sys
from layerprobe.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv[1:], shown = words.split(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            main()
        except SystemExit as ending:
            code = ending.code
    print(json.dumps([words, code, shown.getvalue()]))
"""


@pytest.fixture
def layerprobes(layerprobe: Command) -> Callable[..., dict[str, tuple[int, str]]]:
    """Run commands one after the other in a process of their own: command -> exit code and what is shown."""

    def commands(*all_words: str) -> dict[str, tuple[int, str]]:
        done = layerprobe(json.dumps(all_words), program=COMMANDS)
        assert done.returncode == 0, done.stderr
        found = map(json.loads, done.stdout.splitlines())
        return {words: (code, shown) for words, code, shown in found}

    return commands


def test_reading_and_drawing_a_run_imports_nothing_of_it(
    received: Path, layerprobes: Callable[..., dict[str, Any]]
) -> None:
    read = (
        "report m", "plot layers m", "plot panels m --queries 2", "choose m", "summary m", "compare m:output m:1",
        "compare m:1 m --interval redraw --json", "runs", "doctor", "recipes", "cache list", "data list",
    )  # fmt: skip
    found = layerprobes(*read, *(f"plot {kind} m" for kind in PLOTS))
    assert {words: found[words][0] for words in read} == dict.fromkeys(read, 0)
    assert {code for code, _ in found.values()} <= {0, 2, 3}  # some plots need more runs, or what this one has not
    assert not (received / "marker").exists()


def test_what_needs_the_network_refuses_a_file_in_a_run(
    received: Path, layerprobes: Callable[..., dict[str, Any]]
) -> None:
    (received / "cache/m/mine.toml").write_text(
        f'[data]\nname = "folder"\nroot = "{received}/data"\ntransform = "model"\n'
        '[net]\nname = "python:cache/m/net.py:build"\nweights = "none"\n[loss]\nname = "triplet"\n[train]\nepochs = 1\n'
    )
    found = layerprobes(
        "layers m", "explain m --quiet", "probe m", "probe m --dry-run", "probe m --model python:cache/m/net.py:build",
        "train cache/m/mine.toml", "export m --layer output --out encoder --quiet",
    )  # fmt: skip
    assert found == dict.fromkeys(found, (2, REFUSED.format(home=received)))
    assert not (received / "marker").exists()


def test_opening_a_run_from_python_imports_nothing(received: Path, layerprobe: Command) -> None:
    lines = "import layerprobe; run = layerprobe.open_run('cache/m'); print(len(run.scores()))"
    assert layerprobe(program=lines).stdout.strip() != "0"
    assert not (received / "marker").exists()


OUTSIDE = ["../theirs/net.py", "{outside}/net.py", "link.py"]


@pytest.mark.parametrize("file", OUTSIDE)
def test_a_file_outside_of_the_run_is_not_imported_before_it_is_named(
    received: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    outside = received.parent / "theirs"
    outside.mkdir()
    (received / "cache/m/net.py").rename(outside / "net.py")
    if file == "link.py":
        (received / file).symlink_to(outside / "net.py")
    file = file.format(outside=outside)
    name_in_record(received, file)
    monkeypatch.chdir(received)
    digest = sha256((outside / "net.py").read_bytes()).hexdigest()[:12]
    what = rf"python:{outside}/net.py:build \(sha256 {digest}\) is a Python file that you have not named"
    with pytest.raises(RecipeError, match=what):
        probe(Run(Path("cache/m")), ProbeRequest(device="cpu", workers=0), Silent())
    assert not (received / "marker").exists()


def test_a_recipe_of_the_runs_name_names_nothing(received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    monkeypatch.chdir(received)
    shutil.move("cache/m/net.py", "net.py")
    name_in_record(received, "net.py")
    Path("recipes").mkdir()
    Path("recipes/m.toml").write_text(
        '[data]\nname = "glyphs"\nimage_size = 16\n[net]\nname = "python:net.py:build"\nweights = "none"\n'
        '[loss]\nname = "triplet"\n[train]\nepochs = 1\n'
    )
    with pytest.raises(RecipeError, match="net.py:build .* is a Python file that you have not named"):
        layers("m", Path("cache"))
    assert not (received / "marker").exists()
    assert layers("m", Path("cache"), "python:net.py:build").layers[-1].layer == "output"


def test_a_named_copy_measures_the_run_and_holds_until_it_is_swapped(received: Path, layerprobe: Command) -> None:
    copy = received / "mine.py"
    shutil.copy(received / "cache/m/net.py", copy)
    named = layerprobe("probe", "m", "--model", "python:mine.py:build", "--layers", "1", "--k", "1", "--workers", "0")
    assert (named.returncode, (received / "marker").exists()) == (0, True)
    name_in_record(received, "mine.py")
    (received / "marker").unlink()
    again = layerprobe("layers", "m")  # the user has named this file before
    assert (again.returncode, (received / "marker").exists()) == (0, True)
    (received / "marker").unlink()
    copy.write_text(copy.read_text() + "# swapped\n")
    name_in_record(received, "mine.py")
    swapped = layerprobe("probe", "m")
    assert (swapped.returncode, (received / "marker").exists()) == (2, False)
    assert "has changed since you named it. Read it. If you trust it, name it by --model" in swapped.stderr


def test_a_run_whose_record_says_nothing_of_its_network_is_shown_and_no_file_is_run(
    received: Path, layerprobes: Callable[..., dict[str, Any]]
) -> None:
    run = Run(received / "cache/m")
    record = json.loads(run.record_file.read_text())
    del record["network"]
    run.record_file.write_text(json.dumps(record))
    found = layerprobes("report m", "choose m", "plot panels m")
    assert [code for code, _ in found.values()] == [0, 0, 2]
    assert not (received / "marker").exists()
