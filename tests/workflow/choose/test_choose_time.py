from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from layerprobe.measure.analysis import Features
from layerprobe.system.progress import Task
from layerprobe.workflow.choose import choose_time
from layerprobe.workflow.choose.choose_features import choose_file
from layerprobe.workflow.choose.given_files import read_given
from tests.workflow.choose.test_choose_features import some_layers


class Counting:
    """A listener that counts the steps of each task."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.totals: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self._name = ""

    def say(self, text: str) -> None:
        self.heard.append(text)

    @contextlib.contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[Task]:
        self.totals[name], self.done[name], self._name = total, 0, name
        yield self

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.done[self._name] += steps


def saved(folder: Path, splits: list[str] | None = None) -> Path:
    layers, labels = some_layers()
    further = {} if splits is None else {"split": np.array(splits)}
    np.savez(folder / "f.npz", **layers, labels=labels, **further)  # type: ignore[arg-type] # numpy's stub takes no mapping
    return folder / "f.npz"


def test_every_ranking_is_told_as_progress(tmp_path: Path) -> None:
    listener = Counting()
    choose_file(read_given(saved(tmp_path)), listener=listener)
    # 3 layers, raw and half-whitened, in each of 5 folds
    assert listener.totals["ranking"] == 3 * 2 * 5
    assert listener.done == listener.totals
    assert listener.heard == []


def test_rankings_of_test_rows_are_told_too(tmp_path: Path) -> None:
    listener = Counting()
    choose_file(read_given(saved(tmp_path, ["train"] * 40 + ["validation"] * 30 + ["test"] * 30)), listener=listener)
    # 3 layers on validation and test, as they are and half-whitened by a fit on train
    assert listener.totals["ranking"] == 3 * 2 * 2
    assert listener.done == listener.totals


def test_the_time_is_said_before_from_some_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sizes = [0.0], []
    monkeypatch.setattr(choose_time, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(choose_time, "_FEW", 4)
    monkeypatch.setattr(choose_time, "_MANY", 8)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)

    def ranked(queries: Features, gallery: Features, *_: object, **__: object) -> None:
        sizes.append(len(queries.labels))
        clock[0] += 2 + len(queries.labels) * len(gallery.labels) / 100  # 2 s for the gallery, 1 s for a query

    monkeypatch.setattr(choose_time, "rank", ranked)
    listener = Counting()
    choose_file(read_given(saved(tmp_path)), listener=listener)
    assert sizes == [4, 8] * 2
    # A ranking: 6 s of the sample of 4, and 100 queries, half of whose pairs are computed. 3 layers, raw and
    # half-whitened, in folds of a fifth of the rows that have a 25th of the pairs each.
    assert round((6 + 50) * 3 * 2 / 5) == 67
    said = "ranking 100 rows in 3 layers, raw and half-whitened: about 1 min 7 s"
    assert listener.heard == [said]
