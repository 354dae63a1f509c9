"""Which commands import what: a heavy package costs every call of a command up to two seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import typer

from layerprobe import store
from layerprobe.cli import command_line
from layerprobe.registry import PLOTS
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score, ScoreTable
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.workflow.rank_files import ranks_of, stored

HEAVY = {
    "torch", "torchvision", "numpy", "h5py", "matplotlib", "faiss", "captum", "sklearn", "scipy", "PIL", "pydantic",
    "rich",
}  # fmt: skip
ALL = command_line()
TERMINAL = {"pydantic", "rich"}  # typer's, and the tables'
LISTS = ("recipes", "recipes netA", "runs", "runs one", "cache list", "cache clean", "data list")

# Runs the command lines one after the other and prints for each which heavy packages it was the first to import.
PROGRAM = """
import json, os, sys
from layerprobe.cli import main
heavy, found, known, out = set(sys.argv[1].split()), {}, set(), sys.stdout
sys.stdout = open(os.devnull, "w")
for line in sys.argv[2:]:
    sys.argv = ["layerprobe", *line.split()]
    try:
        main()
    except SystemExit as ended:
        new = (heavy & sys.modules.keys()) - known
        known |= new
        found[line] = [ended.code, sorted(new)]
print(json.dumps(found), file=out)
"""


def imported(folder: Path, *lines: str) -> dict[str, tuple[int, set[str]]]:
    """Command line -> its exit code and the heavy packages that it was the first to import, in one interpreter."""
    command = [sys.executable, "-c", PROGRAM, " ".join(HEAVY), *lines]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return {line: (code, set(names)) for line, (code, names) in json.loads(result.stdout).items()}


def commands(group: typer.Typer = ALL, prefix: str = "") -> Iterator[str]:
    for info in group.registered_commands:
        assert info.callback is not None
        yield prefix + (info.name or info.callback.__name__)
    for inner in (info.typer_instance for info in group.registered_groups):
        assert inner is not None
        yield f"{prefix}{inner.info.name}"
        yield from commands(inner, f"{prefix}{inner.info.name} ")


@pytest.fixture
def probed(tmp_path: Path) -> Path:
    """A folder with a run, its scores and its features."""
    run, layer = Run(tmp_path / "cache" / "one"), LayerKey("fc6", "none")
    run.folder.mkdir(parents=True)
    run.write(recorded({"epochs_done": 1, "recipe": {"net": {"fc": [3]}}}))
    scores = [
        Score(
            "one",
            "e",
            0,
            1,
            split,
            RankedLayer(LayerKey(layer.layer, layer.pool), post_processing, "cosine"),
            metric,
            0.5,
            None,
            8,
        )
        for split in ("train", "test")
        for post_processing in ("none", "l2+pca:2+l2")
        for metric in ("R@1", "NMI")
    ]
    ScoreTable(scores).write(run.scores_file)
    stored(run, 1, "test", {RankedLayer(layer, "none", "cosine"): ranks_of([0, 1] * 4)}, labels=np.arange(8) % 4)
    features = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    store.write_features(
        run.feature_file(1, "test"),
        store.FeatureKey("one", 1, "test", "", "", ""),
        store.Rows(np.arange(8) % 4, [f"image{i}" for i in range(8)]),
        store.Columns({layer: 3}, "cpu", 8),
        [{layer: features}],
    )
    return tmp_path


def test_no_help_imports_anything_heavy(tmp_path: Path) -> None:
    helps = ["--help", *(f"{name} --help" for name in commands())]
    assert len(helps) > 12
    assert imported(tmp_path, *helps) == dict.fromkeys(helps, (0, set()))


def test_lists_import_no_torch(probed: Path) -> None:
    found = imported(probed, *LISTS)
    assert {code for code, _ in found.values()} == {0}
    packages = {line: names - TERMINAL for line, (_, names) in found.items()}
    # cache reads the index of images with numpy, data list the data sets' modules.
    assert packages == {line: set() for line in LISTS} | {"cache list": {"numpy"}, "data list": {"PIL"}}


def test_plots_import_no_torch(probed: Path) -> None:
    # panels search features and read images, map and det compare pairs by what probing has, and others read checkpoints
    with_torch = ("panels", "map", "det", "learnt", "features-2d", "gradient")
    more = {"over-key": " --key net.fc"}
    kinds = [kind for kind in PLOTS if kind not in with_torch]
    plots = [f"plot {kind} one --csv {kind}.csv{more.get(kind, '')}" for kind in kinds]
    run = Run(probed / "cache" / "one")
    network: dict[str, object] = {
        "layers": ["fc6"],
        "embedding": ["fc6", "none"],
        "cuts": {},
        "input": None,
        "files": {},
    }
    run.write(recorded({"epochs_done": 1, "recipe": {"train": {"epochs": 1}, "net": {"fc": [8]}}, "network": network}))
    run.training_log_file.write_text('{"epoch": 1, "loss": 0.5, "images": 8}')
    found = imported(probed, *plots)
    assert {code for code, _ in found.values()} == {0}
    packages = {line: names - TERMINAL for line, (_, names) in found.items()}
    # the hypergeometric distribution
    assert packages.pop("plot gallery-size one --csv gallery-size.csv") == {"scipy"}
    assert set().union(*packages.values()) == {"numpy", "h5py", "matplotlib", "PIL"}


_MODEL = "--model python:mine.py:build --data folder:images"
REFUSED = {
    "probe nope": 2,
    "choose nope": 2,
    "summary nope": 2,
    "compare nope:a nope:b": 2,
    "plot layers nope": 2,
    "report nope": 2,
    "explain nope": 2,
    "probe one --k 0": 2,
    "probe one --metrics zz": 2,
    "probe one --splits zz": 2,
    "probe one --post zz": 2,
    "probe one --similarity zz": 2,
    "probe one --fit zz": 2,
    "probe one --epochs x": 2,
    "probe one --pool zz": 2,
    "probe one --device zz": 2,
    "train quick --cache mine.py": 5,
    "probe one --memory x": 2,
    "probe one --format zz": 2,
    "probe one --weights w.pt": 2,
    "choose one --metric NMI": 2,
    "choose one --within -1": 2,
    "choose one --epochs x": 2,
    "summary one --metric zz": 2,
    "compare one:fc6 one:fc6 --metric zz": 2,
    "report one --metric zz": 2,
    "report one --out images": 2,
    "explain one --out images": 2,
    "explain one --query a --where worst": 2,
    "probe --model zz:a --data folder:images": 2,
    "probe --model python:mine.py:build": 2,
    f"probe {_MODEL} --set net.fc=3": 2,
    f"probe {_MODEL} --set data.zz=3": 2,
    f"probe {_MODEL} --run a/b": 2,
    f"probe {_MODEL} --weights gone.pt": 3,
    f"probe {_MODEL} --weights run:nope": 2,
    f"probe {_MODEL} --cache mine.py": 5,
    "probe --model python:mine.py:build --data folder:gone": 3,
    "probe --model python:mine.py:build --data folder:empty": 3,
    "probe --model python:mine.py:build --data csv:gone.csv": 3,
    f"choose {_MODEL} --metric zz": 2,
}


def test_what_is_refused_without_a_network_imports_no_torch(probed: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (probed / "images" / name).mkdir(parents=True)
        for number in "01":
            (probed / "images" / name / f"{number}.png").touch()
    (probed / "empty").mkdir()
    (probed / "mine.py").touch()
    record = {"epochs_done": 1, "manifests": {"train": "m", "test": "m"}, "recipe": {"train": {"epochs": 1}}}
    Run(probed / "cache" / "one").write(recorded(record))
    before = sorted(probed.rglob("*.json"))
    found = imported(probed, *REFUSED)
    assert {line: code for line, (code, _) in found.items()} == REFUSED
    assert not {"torch", "torchvision", "matplotlib", "faiss"} & set().union(*(names for _, names in found.values()))
    assert sorted(probed.rglob("*.json")) == before


def test_heavy_packages_are_known_by_the_names_of_their_modules() -> None:
    for name in HEAVY:
        import_module(name)
    assert sys.modules.keys() >= HEAVY
