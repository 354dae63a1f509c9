"""Images in a table through the whole program."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import ipc

from layerprobe.cli import main
from layerprobe.data import pixel_cache
from layerprobe.workflow.manage.cache import list_images
from tests.data.tabled import as_folder, rows, write
from tests.data.test_tar_shards import members, shard

SETTINGS = ("data.image_size=28", "net.name=lenet", "net.fc=[8]", "train.epochs=0", "train.batch_size=4",
            "train.images_per_class=2")  # fmt: skip

Run = Callable[..., str]


@pytest.fixture
def layerprobe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run a command line in this process to an end with this exit code: its stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")

    def run(*words: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert caught.value.code == code, err
        return out + err

    return run


def probed(layerprobe: Run, run: str, data: str) -> list[list[str]]:
    """The scores of an untrained network, without the columns that name the run."""
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    layerprobe("train", "netA", "--data", data, "--run", run, "--device", "cpu", "--workers", "0", *words)
    layerprobe("probe", run, "--k", "1,2", "--metrics", "mAP", "--workers", "0")
    with (Path("cache") / run / "scores.csv").open(newline="") as stream:
        return [row[2:] for row in csv.reader(stream)]


def test_scores_are_those_of_the_same_files_also_from_decoded_images(
    layerprobe: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixel_cache, "_LIMIT", 0)  # too large to be held in memory
    as_folder(tmp_path / "images")
    table = write(tmp_path / "t.parquet", rows())
    expected = probed(layerprobe, "files", f"folder:{tmp_path / 'images'}")
    assert len(expected) > 10
    assert probed(layerprobe, "table", f"parquet:{table}") == expected
    assert [entry.complete for entry in list_images(Path("cache"))] == [True] * 4
    data = json.loads(Path("cache/table/run.json").read_text())["recipe"]["data"]
    assert (data["name"], data["root"]) == ("parquet", str(table))


def test_a_run_on_a_data_set_of_the_hub_does_not_fetch_it_again(
    layerprobe: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hub" / "acme___birds" / "default" / "0.0.0" / "hash"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text('{"splits": {"train": {"dataset_name": "birds"}}}')
    table = pyarrow.table(rows())
    with ipc.new_stream(folder / "birds-train.arrow", table.schema) as stream:
        stream.write_table(table)
    scores = probed(layerprobe, "hub", "hf-dataset:acme/birds")
    assert json.loads(Path("cache/hub/run.json").read_text())["recipe"]["data"]["root"] == "acme/birds"
    assert {row[2] for row in scores[1:]} == {"train", "test"}
    shutil.rmtree(tmp_path / "hub")
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    assert "you have not named it" in layerprobe("probe", "hub", "--k", "1,3", code=2)


def test_scores_of_tar_shards_are_those_of_the_same_files(layerprobe: Run, tmp_path: Path) -> None:
    as_folder(tmp_path / "images")
    for number in range(4):
        shard(tmp_path / "shards" / f"{number:03}.tar", members(rows=range(2 * number, 2 * number + 2), label="txt"))
    expected = probed(layerprobe, "files", f"folder:{tmp_path / 'images'}")
    assert probed(layerprobe, "tars", f"wds:{tmp_path}/shards/{{000..003}}.tar") == expected
    assert len(list(Path("cache/images/shards").iterdir())) == 4
