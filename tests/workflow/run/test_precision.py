"""Features that are computed in bfloat16."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layerprobe import store
from layerprobe.system.errors import UnknownNameError
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.probe.probe import prepare, probe
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
REQUEST = ProbeRequest(layers=("fc6",), ks=(1,), epochs="last", device="cpu", workers=0)
HALF = replace(REQUEST, precision="bfloat16")
NOTE = "computed in bfloat16"


def features(run: Run) -> np.ndarray:
    return store.read_features(run.feature_file(2, "test"), FC6)


def test_every_score_says_it_and_its_features_are_near_those_of_float32(run: Run) -> None:
    assert not any(NOTE in score.notes for score in probe(run, REQUEST, Silent()))
    exact, listener = features(run), Silent()
    assert all(NOTE in score.notes for score in probe(run, HALF, listener))
    assert all(NOTE in score.notes for score in run.scores())
    assert "epoch-0002.test.h5 is computed again: precision is not what it was" in listener.heard
    # bfloat16 has 8 bits, and a few layers of products lie before fc6
    error = np.linalg.norm(features(run) - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < 0.05


def test_a_probe_that_names_no_precision_keeps_that_of_the_epoch(run: Run) -> None:
    probe(run, HALF, Silent())
    scores = probe(run, replace(REQUEST, layers=("fc6", "pool5.3")), Silent())
    assert all(NOTE in score.notes for score in scores)


def test_each_split_keeps_the_precision_of_its_own(run: Run) -> None:
    probe(run, replace(REQUEST, splits=("train", "test")), Silent())
    probe(run, replace(HALF, splits=("test",)), Silent())
    scores = probe(run, replace(REQUEST, splits=("train", "test")), Silent())
    assert {score.split for score in scores if NOTE in score.notes} == {"test"}


def test_features_of_one_precision_never_serve_the_other(run: Run) -> None:
    exact = probe(run, REQUEST, Silent())
    before = features(run)
    probe(run, HALF, Silent())
    again = probe(run, replace(REQUEST, precision="float32"), Silent())
    assert [(score.value, score.notes) for score in again] == [(score.value, score.notes) for score in exact]
    np.testing.assert_array_equal(features(run), before)


def test_what_is_missing_says_how_it_is_computed(run: Run) -> None:
    # The first process of a launch tells the others so, which find no stale file any more.
    probe(run, HALF, Silent())
    run.feature_file(2, "test").unlink()
    prepared = prepare(run, replace(REQUEST, layers=("fc6", "pool5.3")))
    missing = [prepared.features.missing(2, split, prepared.selection.hooks) for split in ("train", "test")]
    assert [item.precision for item in missing] == ["bfloat16", "bfloat16"]


def test_another_precision_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown precision 'bfloat61'. Did you mean 'bfloat16'"):
        replace(REQUEST, precision="bfloat61")
