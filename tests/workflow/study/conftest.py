"""A study of two cells and two seeds, seconds long, and its table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from layerprobe.workflow.study.study import StudyRequest, StudyTable, run_study
from layerprobe.workflow.study.study_file import load_study
from tests.workflow.conftest import Silent

TINY = """
[study]
title = "Two dimensions"
claim = "none"
[runs]
recipe = "quick"
seeds = [0, 1]
seeded = ["data.class_seed"]
[runs.set]
"data.train_classes" = 4
"data.test_classes" = 4
"data.images_per_class" = 8
"train.epochs" = 2
"train.batch_size" = 16
"net.name" = "lenet"
[grid]
"net.fc" = [[8], [16]]
[end]
table = "R@1"
layers = ["fc6", "pool5"]
"""


@dataclass(frozen=True)
class Made:
    """A study that was run to its end, with two trainings at once."""

    file: Path
    cache: Path
    table: StudyTable


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("study")
    file, cache = folder / "tiny.toml", folder / "cache"
    file.write_text(TINY)
    table = run_study(StudyRequest(load_study(str(file)), cache, None, ("cpu", "cpu")), Silent())
    assert isinstance(table, StudyTable)
    return Made(file, cache, table)


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> StudyRequest:
    """The study with its finished runs in a cache of the test's own."""
    shutil.copytree(made.cache, tmp_path / "cache")
    return StudyRequest(load_study(str(made.file)), tmp_path / "cache", devices=("cpu",))


@pytest.fixture
def file_of(tmp_path: Path) -> Callable[..., str]:
    """TINY as a file, with some text in place of other."""

    def write(*changes: tuple[str, str], name: str = "tiny") -> str:
        text = TINY
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return str(path)

    return write
