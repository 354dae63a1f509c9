from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from layerprobe import load_encoder
from layerprobe.cli import main
from tests.workflow.selection_runs import C1, C2, hits, write_run

Command = Callable[..., tuple[int, str, str]]
LABELS = np.repeat(np.arange(12), 5)


@pytest.fixture
def layerprobe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run a command beside a file of features, `given.npz`, and a run whose features are gone, `held`."""
    monkeypatch.chdir(tmp_path)
    features = np.random.default_rng(0).normal(size=(12, 6))[LABELS] + np.arange(60)[:, None] % 5 / 100
    np.savez(tmp_path / "given.npz", labels=LABELS, deep=features)
    good, fair = hits(*[4] * 20), hits(*[3] * 20)
    write_run(tmp_path / "cache", "held", {"validation": {C1: fair, C2: good}, "test": {C1: good, C2: fair}})

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return run


def test_choose_exports_the_map_of_given_features(layerprobe: Command, tmp_path: Path) -> None:
    code, out, err = layerprobe("choose", "given.npz", "--export", "out")
    assert code == 0, err
    shown = out.splitlines()[-4:]
    assert shown[0] == "given.npz:deep: 6 numbers, 24 bytes an image"
    assert shown[1].startswith("  out: map.npz (")
    assert shown[2] == "  checked on 60 rows of given.npz against their map in torch:"
    assert shown[3].startswith("    map.npz: largest difference ")
    assert load_encoder("out").export["map"]["steps"] == ["l2"]


def test_json_is_one_object_with_the_choice_and_its_export(layerprobe: Command) -> None:
    code, out, _ = layerprobe("choose", "given.npz", "--export", "out", "--json")
    found = json.loads(out)
    assert (code, found["schema"], found["selected"]["layer"]) == (0, 4, "deep")
    assert found["export"].keys() == {
        "folder", "name", "dim", "post_processing", "similarity", "fitted_on", "files", "checked", "check",
    }  # fmt: skip


def test_choose_export_and_threshold_read_a_npy_with_labels(layerprobe: Command, tmp_path: Path) -> None:
    with np.load("given.npz") as given:
        np.save("deep.npy", given["deep"])
        np.save("y.npy", given["labels"])
    of_npy = [layerprobe(verb, "deep.npy", "--labels", "y.npy", *more) for verb, *more in _VERBS]
    of_npz = [layerprobe(verb, "given.npz", *more) for verb, *more in _VERBS]
    assert [code for code, _, _ in (*of_npy, *of_npz)] == [0] * 6
    assert [out.replace("deep.npy", "given.npz") for _, out, _ in of_npy] == [out for _, out, _ in of_npz]
    assert (tmp_path / "out" / "map.npz").is_file()


_VERBS = [["choose"], ["export", "--out", "out", "--force"], ["threshold", "--far", "0.1"]]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["export", "held"], 2, "export: no folder is named. Add --out DIR."),
        (["export", "held", "--out", "cache"], 2, "cache: it exists already and is not an"),
        (["export", "held", "--out", "cache", "--force"], 2, "cache: it exists already and is not an export alone"),
        (["export", "held", "--out", "out", "--format", "pt"], 2, "unknown format 'pt'. Did you mean 'pt2'"),
        (["export", "gone", "--out", "out"], 2, "unknown run 'gone'"),
        (["export", "held", "--out", "out", "--layer", "c9"], 2, "layer 'c9' is not ranked"),
        (["export", "held", "--out", "out", "--layer", "c1/random:2x3"], 2, "is a mean over 3 random draws"),
        (["choose", "held", "--export", "cache"], 2, "cache: it exists already"),
        (["choose", "given.npz", "--export", "cache"], 2, "cache: it exists already"),
        (["export", "given.npz", "--out", "out", "--layer", "deeep"], 2, "unknown layer 'deeep'. Did you mean 'deep'"),
        (["export", "given.npz", "--out", "out", "--epoch", "3"], 2, "given.npz: features have no epochs"),
        (["export", "held", "--out", "out", "--labels", "y.npy"], 2, "--labels: no file of features is named"),
        (["threshold", "cache/held/run.json"], 2, "run.json: features are read from .npz, .npy, .pt"),
        (["threshold", "given.npz", "--labels", "y.npy"], 3, "y.npy: no such file"),
    ],
)
def test_what_cannot_be_exported_ends_in_one_line(
    layerprobe: Command, words: list[str], code: int, message: str, tmp_path: Path
) -> None:
    found, out, err = layerprobe(*words)
    assert (found, out) == (code, "")
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [err.splitlines()[-1]]
    assert message in err
    assert not (tmp_path / "out").exists()
