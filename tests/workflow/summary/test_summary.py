from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.summary.cells import Faults
from layerprobe.system.errors import DataError
from layerprobe.workflow.run import from_recipe, units
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.request import SummaryRequest
from layerprobe.workflow.summary.summary import stored_summary
from tests.scores import with_layer
from tests.workflow.drawn_run import write_run
from tests.workflow.rank_files import CLASSES, FC6, LABELS, POOL5, first_hit, ranks_of, stored, written


def test_recalls_gaps_and_counts_come_from_the_stored_ranks(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(
        run,
        stored(run, 0, "train", {FC6: first_hit(3), POOL5: first_hit(1)}),
        stored(run, 0, "test", {FC6: first_hit(3), POOL5: first_hit(2)}),
        stored(run, 5, "train", {FC6: first_hit(9), POOL5: first_hit(6)}),
        stored(run, 5, "test", {FC6: first_hit(6), POOL5: first_hit(8)}),
    )
    found = stored_summary(run)
    pool5, fc6 = found.layers
    # of 24 queries: train 6 and 9, test 8 and 6
    assert [(layer.levels["train"].value, layer.levels["test"].value) for layer in (pool5, fc6)] == [
        (6 / 24, 8 / 24),
        (9 / 24, 6 / 24),
    ]
    assert fc6.gap is not None
    assert fc6.gap.value == pytest.approx(3 / 24)
    assert fc6.gap_over_start is not None
    assert fc6.gap_over_start.value == pytest.approx(3 / 24 - 0)
    assert pool5.gap_over_start is not None
    assert pool5.gap_over_start.value == pytest.approx(-2 / 24 + 1 / 24)
    assert found.units == {"train": 12, "test": 12}


def test_stored_numbers_without_labels_are_compared_with_recall(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    recalls = stored(run, 5, "test", {FC6: first_hit(9), POOL5: first_hit(6)})
    written(run, recalls, [replace(score, metric="two-nn", value=7.5) for score in recalls])
    (found,) = stored_summary(run).label_free
    assert (found.metric, found.epoch, found.split, found.layers, found.correlation) == ("two-nn", 5, "test", 2, None)


def test_scores_without_ranks_are_told(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = stored(run, 5, "test", {FC6: first_hit(9), POOL5: first_hit(6)})
    with h5py.File(run.rank_file(5, "test"), "r+") as ranks:
        del ranks[str(POOL5.layer)]
    written(run, scores)
    found = stored_summary(run)
    assert [layer.ranked for layer in found.layers] == [FC6]
    assert f"test, epoch 5: {POOL5.layer} skipped, as their ranks are not stored; probe them again" in found.notes


def test_a_run_of_scores_without_any_ranks_of_them_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    (score,) = stored(run, 5, "test", {FC6: first_hit(9)})
    written(run, [with_layer(score, layer="gone")])
    with pytest.raises(DataError, match=r"test, epoch 5: gone skipped, .* Run layerprobe probe one"):
        stored_summary(run)


def test_a_gap_between_splits_of_the_same_classes_has_no_interval_and_says_why(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    files = [stored(run, 5, split, {FC6: first_hit(6)}, labels=LABELS["train"]) for split in ("train", "test")]
    written(run, *files)
    found = stored_summary(run)
    assert found.layers[0].gap is not None
    assert found.layers[0].gap.interval is None
    assert "no interval of a gap: train and test share classes" in found.notes


def test_ranks_without_a_score_hold_no_longer(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    first, _ = stored(run, 5, "test", {FC6: first_hit(9), POOL5: first_hit(6)})
    written(run, [first])
    assert [layer.ranked for layer in stored_summary(run).layers] == [FC6]


def test_what_a_reader_must_know_is_counted(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    faulty = ranks_of([1.0] * 24, lone=2, tied=20, zeros=3)
    written(run, stored(run, 5, "test", {FC6: faulty, POOL5: "NaN (3 rows)"}))
    pool5, fc6 = stored_summary(run).layers
    # 18 of the 22 queries that are not lone are tied
    assert fc6.faults["test"] == Faults(tied=18 / 22, zeros=3, lone=2)
    assert pool5.faults["test"] == Faults(invalid="NaN (3 rows)")
    assert pool5.levels["test"].value is None


@pytest.mark.parametrize(
    ("record", "start", "compared"),
    [
        ({}, "untrained", True),
        ({"recipe": {"net": {"weights": "imagenet"}, "train": {"epochs": 5}}}, "pretrained", True),
        ({"untrained": False}, "epoch 0", False),
    ],
)
def test_gaps_are_compared_with_those_of_a_start_alone(
    tmp_path: Path, record: dict[str, Any], start: str, compared: bool
) -> None:
    run = Run(tmp_path / "one")
    scores = [
        stored(run, epoch, split, {FC6: first_hit(hits)})
        for epoch, split, hits in ((0, "train", 3), (0, "test", 3), (5, "train", 9), (5, "test", 6))
    ]
    written(run, *scores, **record)
    found = stored_summary(run)
    assert found.data.start == start
    assert (found.layers[0].gap_over_start is not None) is compared


def test_epochs_that_cannot_be_read_or_have_other_images_are_left_out(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = [stored(run, epoch, "test", {FC6: first_hit(epoch)}) for epoch in (1, 2)]
    scores.append(stored(run, 3, "test", {FC6: ranks_of([1.0] * 4)}, labels=np.array([0, 0, 1, 1])))
    scores.append(stored(run, 4, "test", {FC6: ranks_of([1.0] * 4)}, labels=np.array([0, 0, 1, 1])))
    written(run, *scores)
    run.rank_file(4, "test").unlink()
    found = stored_summary(run)
    assert found.notes == (
        "test, epoch 4: skipped, its ranks cannot be read; probe it again",
        "test, epoch 2: skipped, it has other images than the last one",
        "test, epoch 1: skipped, it has other images than the last one",
    )
    assert found.layers[0].levels["test"].epoch == 3


def test_a_run_without_ranks_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    scores = stored(run, 5, "test", {FC6: first_hit(9)})
    written(run, scores)
    run.rank_file(5, "test").unlink()
    with pytest.raises(DataError, match="no ranks are stored. Run layerprobe probe one"):
        stored_summary(run)


def test_nothing_is_written(tmp_path: Path) -> None:
    run = write_run(tmp_path, epochs=(0, 1))
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    stored_summary(run)
    assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == before


def test_without_training_images_there_is_no_gap(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 0, "test", {FC6: first_hit(9)}))
    found = stored_summary(run)
    assert found.notes == ()
    assert found.layers[0].gap is None


def test_training_images_alone_have_their_recall(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "train", {FC6: first_hit(9)}))
    found = stored_summary(run)
    assert found.layers[0].levels["train"].value == 9 / 24


def no_image(index: int) -> Image:
    raise AssertionError(index)


def test_clusters_are_the_units_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "one")
    written(
        run,
        stored(run, 5, "train", {FC6: first_hit(9)}),
        stored(run, 5, "test", {FC6: first_hit(6)}),
    )
    # class 0 and 1 in folder 0, 2 and 3 in folder 1 ...
    names = tuple(f"{label // 2}/{label}" for label in range(2 * CLASSES))
    splits = {
        split: Split(split, labels, tuple(f"{split}{i}" for i in range(len(labels))), no_image)
        for split, labels in LABELS.items()
    }
    monkeypatch.setattr(units, "recorded_recipe", lambda *_: SimpleNamespace(data=None))
    monkeypatch.setattr(from_recipe, "load_dataset", lambda _: Dataset(splits, names))
    found = stored_summary(run, SummaryRequest("parent"))
    assert found.units == {"train": 6, "test": 6}
    assert found.kind.cluster == "parent"
    assert found.layers[0].levels["test"].interval is None  # of 6 units
