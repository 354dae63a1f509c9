"""What a command opens once, and what a probe with nothing to do leaves alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from layerprobe.cli import main
from layerprobe.data.splits import Dataset
from layerprobe.values.sections import Data
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.from_recipe import load_dataset
from layerprobe.workflow.train import frozen_request
from tests.cli.test_main import Command, folder, train_words
from tests.cli.test_main import layerprobe as layerprobe
from tests.workflow.train.test_frozen import CODE, draw

# What each of some command lines prints, and the heavy packages that all of them import.
PROGRAM = """
import contextlib, io, json, sys
from layerprobe.cli import main
printed = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["layerprobe", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    printed.append([code, out.getvalue()])
heavy = {"torch", "torchvision", "timm", "captum", "matplotlib", "sklearn", "triton", "sympy"}
print(json.dumps([printed, sorted(heavy & sys.modules.keys())]))
"""


def repeated(*lines: list[str]) -> tuple[list[list[object]], list[str]]:
    """Exit code and stdout of each line, and the heavy packages that they import, in a process of their own."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(lines)]
    printed, heavy = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return printed, heavy


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a probed run of two epochs; tests work in copies."""
    root = tmp_path_factory.mktemp("repeat")
    folder(root / "root", 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for words in (train_words(Path("root")), ["probe", "tiny", "--k", "1"]):
            patch.setattr(sys, "argv", ["layerprobe", *words])
            with pytest.raises(SystemExit):
                main()
    return root


@pytest.fixture
def probed(trained: Path, layerprobe: Command, tmp_path: Path) -> Command:
    """The command, in a copy of that folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return layerprobe


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file of features or ranks is opened to read; one just copied counts as settled."""
    monkeypatch.setattr("layerprobe.system.files._TICK", 0)
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


def test_a_repeat_with_nothing_to_do_imports_neither_torch_nor_figures(probed: Command) -> None:
    probed("summary", "tiny")
    printed, heavy = repeated(["probe", "tiny", "--quiet", "--k", "1"], ["summary", "tiny", "--quiet"])
    assert ([code for code, _ in printed], heavy) == ([0, 0], [])


def words_of_a_model(tmp_path: Path, *more: str) -> list[str]:
    """What measures a user's own model, with two files of weights beside it."""
    (tmp_path / "mine.py").write_text(CODE)
    for epoch in (2, 9):
        torch.save(draw(epoch).state_dict(), tmp_path / f"epoch{epoch}.pt")
    data = f"folder:{folder(tmp_path / 'root', 8).name}"
    words = ["probe", "--model", "python:mine.py:build", "--data", data, "--set", "data.share=0.5", "--k", "1"]
    return [*words, "--device", "cpu", *more]


def test_a_models_repeat_imports_neither_torch_nor_figures(layerprobe: Command, tmp_path: Path) -> None:
    words = words_of_a_model(tmp_path)
    weights = ("none", "model", "epoch2.pt", "epoch*.pt")
    lines = [[*words, "--weights", name] for name in weights]
    lines += [[*line, "--run", f"named{number}"] for number, line in enumerate(lines)]
    first = [[0, layerprobe(*line)[1]] for line in lines]
    printed, heavy = repeated(*lines, ["probe", "named0", "--k", "1", "--quiet"])
    assert (printed[:-1], printed[-1][0], heavy) == (first, 0, [])


def test_a_models_repeat_lists_its_images_once(
    layerprobe: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, listings = words_of_a_model(tmp_path), []

    def counted(data: Data, cache: Path | None = None) -> Dataset:
        listings.append(data)
        return load_dataset(data, cache)

    layerprobe(*words)
    for module in (frozen_request, from_recipe):
        monkeypatch.setattr(module, "load_dataset", counted)
    assert layerprobe(*words)[0] == 0
    assert len(listings) == 1


def test_a_models_repeat_without_its_images_is_refused(layerprobe: Command, tmp_path: Path) -> None:
    words = words_of_a_model(tmp_path)
    layerprobe(*words)
    shutil.rmtree(tmp_path / "root")
    code, _, error = layerprobe(*words)
    assert (code, "root: no such folder. Expected DIR/CLASS/IMAGE" in error) == (3, True)


def test_a_probe_with_nothing_to_do_decodes_no_image(probed: Command) -> None:
    before = {path.name for path in Path("cache/images").iterdir()}
    probed("probe", "tiny", "--k", "1", "--workers", "1")  # with a worker, small images are kept on the disk, too
    assert {path.name for path in Path("cache/images").iterdir()} == before


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
    # Once for what the file says of itself, twice for the names of classes, by the choice and by the comparison, and
    # once for the features that are searched, and once for the map.
    assert max(count for name, count in opened.items() if name.startswith("features/")) <= 5
