"""Features in files of ranges of images, and beside one another."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import layerprobe
from layerprobe.system.errors import RecipeError
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe import probed_run
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent

REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), ks=(1, 2), epochs="last", device="cpu", workers=0)
SHARDS = ["00000-of-00002.h5", "00001-of-00002.h5"]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 16 images of a split, so that several files begin with a batch."""
    for module in ("measure.extraction", "workflow.probe.probed_run"):
        monkeypatch.setattr(f"layerprobe.{module}.BATCH_SIZE", 4)


@pytest.fixture
def request_of_shards() -> ProbeRequest:
    return replace(REQUEST, shard_rows=12)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each batch that was run through the network; a negative one ends the next run."""
    from layerprobe.measure.extraction import extract

    counts: list[int] = []

    def counting(module: Any, hooks: Any, batches: Any, *rest: Any, **options: Any) -> Iterator[Any]:
        for features in extract(module, hooks, batches, *rest, **options):
            if counts and counts[0] == -len(counts):
                raise KeyboardInterrupt
            counts.append(len(next(iter(features.values()))))
            yield features

    monkeypatch.setattr(probed_run, "extract", counting)
    return counts


def copy_of(run: Run, folder: Path) -> Run:
    return Run(Path(shutil.copytree(run.folder.parent, folder)) / run.name)


def test_scores_and_ranks_of_several_files_are_those_of_one_byte_by_byte(
    run: Run, tmp_path: Path, request_of_shards: ProbeRequest
) -> None:
    post_processed = {"post": ("none", "l2+pca:4"), "metrics": ("MAP@R",)}
    one = copy_of(run, tmp_path / "one")
    probe(run, replace(request_of_shards, **post_processed), Silent())  # type: ignore[arg-type] # fields of a request
    probe(one, replace(REQUEST, **post_processed), Silent())  # type: ignore[arg-type] # fields of a request
    assert sorted(path.name for path in (run.folder / "features" / "epoch-0002.test").iterdir()) == SHARDS
    assert one.feature_file(2, "test").exists()
    for path in ("scores.csv", "ranks/epoch-0002.test.h5", "ranks/epoch-0002.train.h5"):
        assert (run.folder / path).read_bytes() == (one.folder / path).read_bytes()
    opened, expected = layerprobe.open_run(run.folder), layerprobe.open_run(one.folder)
    for layer in ("fc6", "pool5.3", "fc6+pool5.3"):
        where = {"epoch": 2, "split": "test", "layer": layer}
        assert np.array_equal(opened.features(**where), expected.features(**where))  # type: ignore[arg-type] # its arguments
    assert repr(opened).endswith("features of test at 2; train at 2)")


def test_after_a_kill_no_finished_file_is_computed_again(
    run: Run, request_of_shards: ProbeRequest, forwards: list[int]
) -> None:
    forwards.append(-4)  # in the second file of train
    with pytest.raises(KeyboardInterrupt):
        probe(run, request_of_shards, Silent())
    assert forwards[1:] == [4, 4, 4]
    finished = run.folder / "features" / "epoch-0002.train" / SHARDS[0]
    touched = finished.stat().st_mtime_ns
    forwards.clear()
    assert probe(run, request_of_shards, Silent())
    assert sum(forwards) == 4 + 16  # the rest of train, and test
    assert finished.stat().st_mtime_ns == touched
    forwards.clear()
    probe(run, replace(request_of_shards, shard_rows=8), Silent())  # what is stored stays as it is
    assert forwards == []


def test_of_a_damaged_file_its_images_alone_are_computed_again(
    run: Run, request_of_shards: ProbeRequest, forwards: list[int]
) -> None:
    scores = probe(run, request_of_shards, Silent())
    run.rank_file(2, "test").unlink()
    damaged = run.folder / "features" / "epoch-0002.test" / SHARDS[1]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    forwards.clear()
    assert probe(run, request_of_shards, Silent()) == scores
    assert forwards == [4]


def test_a_choice_is_that_of_one_file(run: Run, tmp_path: Path, request_of_shards: ProbeRequest) -> None:
    one = copy_of(run, tmp_path / "one")
    probe(one, REQUEST, Silent())
    probe(run, replace(request_of_shards, layers=("fc6",)), Silent())
    probe(run, replace(REQUEST, layers=("pool5.3",)), Silent())
    assert (run.folder / "features" / "epoch-0002.test.1.h5").exists()
    choices = [choose_runs([probed], ChooseRequest(device="cpu"), Silent()) for probed in (run, one)]
    assert choices[0].as_json() == choices[1].as_json()


def test_features_that_are_removed_leave_no_file(run: Run, request_of_shards: ProbeRequest) -> None:
    probe(run, request_of_shards, Silent())
    probe(run, replace(REQUEST, layers=("pool4.1",)), Silent())
    for split in ("train", "test"):
        run.remove_features(2, split)
    assert list((run.folder / "features").iterdir()) == []
    assert not run.stored_features()


def test_a_stale_file_of_a_range_is_told_by_its_name(run: Run, request_of_shards: ProbeRequest) -> None:
    probe(run, request_of_shards, Silent())
    listener = Silent()
    for file in run.feature_file(2, "test").with_suffix("").iterdir():
        with h5py.File(file, "r+") as opened:
            opened.attrs["torch"] = np.bytes_("1.0")
    probe(run, request_of_shards, listener)
    assert f"epoch-0002.test/{SHARDS[0]} is computed again: torch is not what it was" in listener.heard


def test_files_begin_with_a_batch() -> None:
    with pytest.raises(
        RecipeError, match=r"--shard-rows 10: each .* a batch of 4 images. Give a multiple of 4, such as 12"
    ):
        replace(REQUEST, shard_rows=10)
