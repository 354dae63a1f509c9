from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from layerprobe.cli import main
from layerprobe.data.image_files import Files
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.workflow.run.images import Decoding, with_contents, with_decoded
from tests.workflow.conftest import Silent

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]


def pixels(index: int) -> Image:
    return np.full((8, 8, 3), index, np.uint8)


def decoded(cache: Path) -> Dataset:
    """Two splits of four images, decoded into a cache; in use as long as this is kept."""
    ids = tuple(f"{i}.png" for i in range(4))
    files = {}
    for name in ("train", "test"):
        (cache / name).mkdir()
        for file in ids:
            (cache / name / file).touch()
        files[name] = Files(cache / name, ids)
    splits = {name: Split(name, np.array([0, 0, 1, 1]) + c, ids, pixels) for name, c in (("train", 0), ("test", 2))}
    decoding = Decoding(cache, Silent(), 0)
    dataset = with_contents(Dataset(splits, ("a", "b", "c", "d")), decoding)
    return with_decoded(dataset, decoding, files=files, steps="8x8", source="folder:birds")


@pytest.fixture
def layerprobe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run a command line in this process on the cache `tmp_path`: exit code, stdout, stderr."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words, "--cache", str(tmp_path)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return run


def listed(layerprobe: Command) -> list[dict[str, object]]:
    return list(json.loads(layerprobe("cache", "list", "--json")[1])["images"])


def test_an_empty_cache_says_so(layerprobe: Command, tmp_path: Path) -> None:
    assert layerprobe("cache", "list") == (0, f"0 entries (0 MB) in {tmp_path / 'images'}\n", "")
    assert layerprobe("cache", "clean") == (0, f"removed 0 entries (0 MB) from {tmp_path / 'images'}\n", "")


def test_entries_are_rows(layerprobe: Command, tmp_path: Path) -> None:
    decoded(tmp_path)
    code, out, _ = layerprobe("cache", "list")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert sorted(row[1:4] for row in rows if "folder:birds" in row) == [
        ["folder:birds", "test", "4"],
        ["folder:birds", "train", "4"],
    ]
    assert out.splitlines()[-1].startswith("2 entries (0 MB) in ")


def test_json_has_bytes_and_whether_it_is_whole(layerprobe: Command, tmp_path: Path) -> None:
    decoded(tmp_path)
    assert {(e["split"], e["images"], e["size"], e["complete"]) for e in listed(layerprobe)} == {
        ("train", 4, 4 * (8 * 8 * 3 + 32), True),
        ("test", 4, 4 * (8 * 8 * 3 + 32), True),
    }


def test_what_is_in_use_is_left(layerprobe: Command, tmp_path: Path) -> None:
    dataset = decoded(tmp_path)
    assert layerprobe("cache", "clean")[1].endswith("; 2 in use by a process were left\n")
    assert dataset.splits["train"].image(3)[0, 0, 0] == 3
    assert len(listed(layerprobe)) == 2


def test_cleaning_removes_all_that_nobody_uses(layerprobe: Command, tmp_path: Path) -> None:
    decoded(tmp_path)
    code, out, _ = layerprobe("cache", "clean")
    assert (code, out.splitlines()[-1]) == (0, f"removed 2 entries (0 MB) from {tmp_path / 'images'}")
    assert listed(layerprobe) == []


def test_cleaning_one_leaves_the_other(layerprobe: Command, tmp_path: Path) -> None:
    decoded(tmp_path)
    first, second = listed(layerprobe)
    assert "; 1 left" in layerprobe("cache", "clean", str(first["id"]))[1]
    assert [e["id"] for e in listed(layerprobe)] == [second["id"]]


def test_an_unknown_entry_is_2_and_removes_nothing(layerprobe: Command, tmp_path: Path) -> None:
    decoded(tmp_path)
    known = str(listed(layerprobe)[0]["id"])
    code, out, err = layerprobe("cache", "clean", known, "nosuch")
    assert (code, out) == (2, "")
    assert "unknown entry 'nosuch'" in err
    assert len(listed(layerprobe)) == 2
