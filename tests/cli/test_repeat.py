"""What a command opens once, and what a probe with nothing to do leaves alone."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.cli.test_main import Command, folder, train_words
from tests.cli.test_main import layerprobe as layerprobe

# The heavy packages that a command line imports.
PROGRAM = """
import sys
from layerprobe.cli import main
sys.argv = ["layerprobe", *sys.argv[1:]]
try:
    main()
finally:
    print(sorted({"torchvision", "timm", "captum", "matplotlib", "sklearn", "triton", "sympy"} & sys.modules.keys()))
"""


@pytest.fixture
def probed(layerprobe: Command, tmp_path: Path) -> Command:
    """The command, in a folder with a probed run of two epochs."""
    layerprobe(*train_words(folder(tmp_path / "root", 8)))
    layerprobe("probe", "tiny", "--k", "1")
    return layerprobe


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file of features or ranks is opened to read."""
    found: Counter[str] = Counter()
    init = h5py.File.__init__

    def counting(file: h5py.File, name: Any, mode: str = "r", *args: Any, **options: Any) -> None:
        if mode == "r" and isinstance(name, str | Path):
            found[f"{Path(name).parent.name}/{Path(name).name}"] += 1
        init(file, name, mode, *args, **options)

    monkeypatch.setattr(h5py.File, "__init__", counting)
    return found


def test_a_repeated_probe_prints_the_same_and_opens_each_file_once(probed: Command, opened: Counter[str]) -> None:
    first = probed("probe", "tiny", "--k", "1")
    assert {Path(name).parts[0] for name in opened} == {"features", "ranks"}
    opened.clear()
    assert probed("probe", "tiny", "--k", "1") == first
    assert set(opened.values()) == {1}


def test_a_probe_with_nothing_to_do_imports_neither_networks_nor_figures(probed: Command) -> None:
    words = ("probe", "tiny", "--k", "1", "--quiet")
    told = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "[]"


def test_a_repeated_probe_changes_no_file_but_the_record_and_the_lock(probed: Command) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in Path("cache/tiny").rglob("*") if path.is_file()}

    before = times()
    probed("probe", "tiny", "--k", "1")
    assert {path.name for path, time in times().items() if time != before.get(path)} <= {".lock", "run.json"}


def test_a_second_summary_opens_each_rank_file_once(probed: Command, opened: Counter[str]) -> None:
    probed("summary", "tiny")
    opened.clear()
    probed("summary", "tiny")
    assert {count for name, count in opened.items() if name.startswith("ranks/")} == {1}


def test_choose_opens_each_rank_file_once(probed: Command, opened: Counter[str]) -> None:
    probed("choose", "tiny", "--epochs", "0")
    assert {count for name, count in opened.items() if name.startswith("ranks/")} == {1}


def test_a_report_opens_rank_files_once_and_features_once_for_all_layers(probed: Command, opened: Counter[str]) -> None:
    assert probed("report", "tiny")[0] == 0
    assert {count for name, count in opened.items() if name.startswith("ranks/")} == {1}
    # Once for what the file says of itself, and once for the features that are searched.
    assert max(count for name, count in opened.items() if name.startswith("features/")) <= 2
