"""What `layerprobe features` prints, and the file that it writes."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import layerprobe as package
from layerprobe.cli import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def features(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run the command in a folder whose cache has a run of 12 images and two layers of 4 numbers."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    labels = torch.arange(12) // 3
    images = torch.rand(4, 3, 1, 1)[labels] + torch.rand(12, 3, 8, 8) / 10
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    package.probe(model, {"test": [(images, labels)]}, layers="0,1", pools="avg", ks=[1], cache="cache")

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", "features", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return command


def test_the_file_and_its_layers_are_told(features: Command) -> None:
    code, out, err = features("--layers", "0,1", "--out", "new/table.parquet")
    assert (code, out) == (0, "new/table.parquet: 12 images, 0@avg (4), 1@avg (4)\n")
    assert err.startswith("run ")
    assert Path("new/table.parquet").exists()


def test_json_is_one_object(features: Command) -> None:
    code, out, _ = features("--layers", "1", "--out", "table.npz", "--json")
    values = json.loads(out)
    assert (code, values["schema"], values["epoch"], values["split"], values["images"]) == (0, 2, 0, "test", 12)
    assert (values["layers"], values["file"]) == ({"1@avg": 4}, "table.npz")


def test_a_stream_gets_csv_alone(features: Command) -> None:
    with open("stream.csv", "wb") as stream:  # noqa: PTH123 - its descriptor
        stream_number = stream.fileno()
        os.set_inheritable(stream_number, True)
        code, out, _ = features("--layers", "1", "--out", f"/dev/fd/{stream_number}")
    assert (code, out) == (0, f"/dev/fd/{stream_number}: 12 images, 1@avg (4)\n")
    assert len(list(csv.DictReader(io.StringIO(Path("stream.csv").read_text())))) == 12


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--layers", "1"], 2, "features: no file is named. Add --out FILE.parquet, .npz or .csv"),
        (["--out", "t.xlsx"], 2, "t.xlsx: cannot be written as '.xlsx'. Name it .parquet, .npz or .csv"),
        (["--out", "/proc/t.csv"], 5, "/proc: cannot be written to. Choose a path you may write to"),
        (["absent", "--out", "t.csv"], 2, "unknown run 'absent'"),
        (["--layers", "0,1", "--out", "t.csv"], 2, "t.csv: a csv file has a column for each number of one layer"),
    ],
)
def test_what_cannot_be_done_is_one_line(features: Command, words: list[str], code: int, message: str) -> None:
    exit_code, out, err = features(*words)
    assert (exit_code, out) == (code, "")
    assert message in err.splitlines()[-1]
