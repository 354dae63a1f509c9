from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_python

pytest.importorskip("trackio")
PROGRAM = """
import os, sys
from pathlib import Path
from typing import Any
os.environ["TRACKIO_DIR"] = str(Path("kept").absolute())
from tests.trackers.material import log_all
import trackio
mine = trackio.init("other", name="the user's")
log_all("trackio:project", Path.cwd(), sys.exit)
trackio.log({"hers": 3}, step=0)
trackio.finish()
"""


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as opened:
        return opened.execute(query).fetchall()


def test_the_local_store_has_numbers_figure_page_and_recipe(tmp_path: Path) -> None:
    repository = str(Path(__file__).parents[2])
    done = run_python(PROGRAM, folder=tmp_path, environment={**os.environ, "PYTHONPATH": repository})
    assert (done.returncode, done.stderr.count("nothing more")) == (0, 0), done.stderr
    kept = tmp_path / "kept"
    logged = rows(kept / "project.db", "select run_name, step, metrics from metrics order by id")
    first, second, figure = [(run, step, json.loads(values)) for run, step, values in logged]
    assert first == ("mine", 0, {"test_R@1/fc6@max": 0.25})
    assert second == ("mine", 1, {"test_R@1/fc6@max": 0.5, "loss": 2})
    assert (kept / "media" / figure[2]["layers"]["file_path"]).read_bytes()[1:4] == b"PNG"
    ((config,),) = rows(kept / "project.db", "select config from configs")
    assert {"train.epochs": 1, "net.name": "lenet"}.items() <= json.loads(config).items()
    assert [path.read_text() for path in (kept / "artifacts").rglob("*") if path.is_file()] == ["<html>"]
    # A run that the user has begun herself stays the current one.
    assert rows(kept / "other.db", "select run_name, metrics from metrics") == [("the user's", b'{"hers":3}')]
