from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
import pytest

from layerprobe.data.splits import Dataset, digests_of
from layerprobe.system.errors import DataError, InterruptedRun
from layerprobe.values.layers import LayerKey
from layerprobe.values.scores import Score, read_scores
from layerprobe.workflow.probe import probed_run as module
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
POOL = LayerKey("pool5.3", "max")

Requests = Callable[..., TrainRequest]
REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), ks=(1, 2), device="cpu", workers=0)


def only(scores: list[Score], **fields: object) -> list[Score]:
    return [score for score in scores if fields.items() <= score.as_json().items()]


def test_a_second_probe_extracts_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe(run, REQUEST, Silent())
    monkeypatch.setattr(module, "extract", None)
    assert probe(run, REQUEST, Silent()) == first


def test_images_that_change_while_they_are_decoded_are_not_extracted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    build = from_recipe.build_dataset

    def changed(*given: Any, decode: bool = True) -> Dataset:
        dataset = build(*given, decode=decode)
        others = {name: replace(split, digests=digests_of(split) + 1) for name, split in dataset.splits.items()}
        return replace(dataset, splits=others) if decode else dataset

    monkeypatch.setattr(from_recipe, "build_dataset", changed)
    with pytest.raises(DataError, match="the train images changed while they were read"):
        probe(run, REQUEST, Silent())
    assert not run.feature_file(0, "train").exists()


def test_further_layers_lie_beside_the_old_ones(run: Run) -> None:
    probe(run, REQUEST, Silent())
    before = h5py.File(run.feature_file(2, "test"))["features/fc6@none"][:]
    probe(run, replace(REQUEST, layers=("pool4.1",), pools=("max", "avg")), Silent())
    with h5py.File(run.feature_file(2, "test").with_name("epoch-0002.test.1.h5")) as file:
        assert set(file["features"]) == {"pool4.1@max", "pool4.1@avg"}
    with run.open_features(2, "test") as files:
        assert set(map(str, files.layers)) == {"pool5.3@max", "fc6", "pool4.1@max", "pool4.1@avg"}
        assert np.array_equal(files.read(FC6), before)
    assert {(score.ranked.layer.layer, score.ranked.layer.pool) for score in read_scores(run.scores_file)} == {
        ("pool5.3", "max"), ("fc6", "none"), ("pool4.1", "max"), ("pool4.1", "avg"),
    }  # fmt: skip


def test_a_layer_with_nan_has_no_number_and_the_others_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from layerprobe.measure.extraction import extract

    def spoilt(*arguments: object, **keywords: object):  # type: ignore[no-untyped-def] # passes on what it gets
        for batch in extract(*arguments, **keywords):  # type: ignore[arg-type] # likewise
            batch[FC6][1] = np.nan
            yield batch

    monkeypatch.setattr(module, "extract", spoilt)
    scores = probe(run, replace(REQUEST, epochs="last"), Silent())
    assert {(s.value, s.notes) for s in only(scores, layer="fc6")} == {(None, ("NaN (1 rows)",))}
    assert all(score.value is not None for score in only(scores, layer="pool5.3"))


def test_a_signal_leaves_whole_files_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from layerprobe.measure.extraction import extract

    def slow(*arguments: object, **keywords: object):  # type: ignore[no-untyped-def] # passes on what it gets
        for batch in extract(*arguments, **keywords):  # type: ignore[arg-type] # likewise
            yield batch
            if run.feature_file(0, "test").exists():
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(module, "extract", slow)
    monkeypatch.setattr(module, "BATCH_SIZE", 4)
    with pytest.raises(InterruptedRun, match="probing stopped"):
        probe(run, REQUEST, Silent())
    assert sorted(path.name for path in run.feature_file(0, "test").parent.iterdir()) == [
        "epoch-0000.test.h5", "epoch-0000.train.h5",
    ]  # fmt: skip
    monkeypatch.undo()
    assert len(probe(run, REQUEST, Silent())) == 24
