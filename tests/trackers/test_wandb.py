from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_python

pytest.importorskip("wandb")
PROGRAM = """
import sys
from pathlib import Path
from tests.trackers.material import log_all
log_all("wandb:project", Path.cwd(), sys.exit, failed=FAILED)
"""
BLOCK, HEAD = 32768, 7  # bytes


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: after a head of 7 bytes, chunks as in LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    content, place, chunk = path.read_bytes(), HEAD, b""
    while place + HEAD <= len(content):
        if (left := BLOCK - place % BLOCK) < HEAD:  # no chunk begins there
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        chunk += content[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in (1, 4):  # a whole record, or the last chunk of one
            yield wandb_internal_pb2.Record.FromString(chunk)
            chunk = b""


def offline_run(folder: Path, *, failed: bool) -> tuple[Path, dict[str, list[Any]]]:
    """The .wandb file of a run, and its records by kind."""
    folders = {f"WANDB_{kind}DIR": str(folder / "wandb") for kind in ("", "DATA_", "CACHE_", "CONFIG_")}
    environment = {**os.environ, **folders, "WANDB_MODE": "offline", "PYTHONPATH": str(Path(__file__).parents[2])}
    (folder / "wandb").mkdir()
    done = run_python(PROGRAM.replace("FAILED", str(failed)), folder=folder, environment=environment)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "wandb").rglob("offline-run-*/*.wandb")
    by_kind: dict[str, list[Any]] = {}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        by_kind.setdefault(kind, []).append(getattr(record, kind))
    return path, by_kind


def test_a_run_that_failed_has_exit_code_1(tmp_path: Path) -> None:
    _, by_kind = offline_run(tmp_path, failed=True)
    assert [record.exit_code for record in by_kind["exit"]] == [1]


def test_an_offline_run_has_numbers_figure_page_and_recipe(tmp_path: Path) -> None:
    path, by_kind = offline_run(tmp_path, failed=False)
    assert [record.exit_code for record in by_kind["exit"]] == [0]
    (run,), (artifact,) = by_kind["run"], by_kind["artifact"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.project, run.display_name) == ("project", "mine")
    assert {"train.epochs": 1, "net.name": "lenet"}.items() <= config.items()
    history = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item}
        for row in by_kind["history"]
    ]
    numbers = [{name: row.get(name) for name in ("epoch", "test_R@1/fc6@max", "loss")} for row in history[:2]]
    assert numbers == [
        {"epoch": 0, "test_R@1/fc6@max": 0.25, "loss": None},
        {"epoch": 1, "test_R@1/fc6@max": 0.5, "loss": 2},
    ]
    assert (path.parent / "files" / history[2]["layers/path"]).read_bytes()[1:4] == b"PNG"
    assert [entry.path for entry in artifact.manifest.contents] == ["report.html"]
