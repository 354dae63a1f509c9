"""Features that are stored as float16."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layerprobe import store
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.probe.estimate_probe import estimate_probe
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
REQUEST = ProbeRequest(layers=("fc6",), ks=(1,), epochs="last", device="cpu", workers=0, metrics=("uniformity",))
HALF = replace(REQUEST, store="float16")
NOTE = "stored as float16"


def dtype_of(run: Run, split: str = "test") -> str:
    return run.feature_head(2, split).facts.get("dtype", "float32")


def test_every_score_says_it_and_is_that_of_the_rounded_features(run: Run) -> None:
    exact = probe(run, REQUEST, Silent())
    assert not any(NOTE in score.notes for score in exact)
    values = store.read_features(run.feature_file(2, "test"), FC6)
    scores = probe(run, HALF, Silent())
    assert all(NOTE in score.notes for score in scores)
    assert all(NOTE in score.notes for score in run.scores())
    rounded = store.read_features(run.feature_file(2, "test"), FC6)
    np.testing.assert_array_equal(rounded, values.astype(np.float16).astype(np.float32))
    unit = rounded.astype(np.float64) / np.linalg.norm(rounded.astype(np.float64), axis=1, keepdims=True)
    pairs = np.triu_indices(len(unit), 1)
    squared = ((unit[:, None] - unit[None]) ** 2).sum(-1)[pairs]
    (uniformity,) = [s.value for s in scores if (s.split, s.metric) == ("test", "uniformity")]
    assert uniformity == pytest.approx(np.log(np.exp(-2 * squared).mean()), rel=1e-6)


def test_a_probe_that_names_no_type_keeps_that_of_the_epoch(run: Run) -> None:
    probe(run, HALF, Silent())
    before = run.feature_file(2, "test").stat().st_mtime_ns
    scores = probe(run, replace(REQUEST, layers=("fc6", "pool5.3")), Silent())
    assert all(NOTE in score.notes for score in scores)
    assert run.feature_file(2, "test").stat().st_mtime_ns == before
    with store.open_feature_file(run.feature_file(2, "test").with_name("epoch-0002.test.1.h5")) as files:
        assert files.layers == (LayerKey("pool5.3", "max"),)


def test_each_split_keeps_the_type_of_its_own(run: Run) -> None:
    probe(run, replace(REQUEST, metrics=(), splits=("train", "test")), Silent())
    probe(run, replace(HALF, metrics=(), splits=("test",)), Silent())
    before = run.feature_file(2, "test").stat().st_mtime_ns
    scores = probe(run, replace(REQUEST, metrics=(), splits=("train", "test")), Silent())
    assert {score.split for score in scores if NOTE in score.notes} == {"test"}
    assert (dtype_of(run), dtype_of(run, "train")) == ("float16", "float32")
    assert run.feature_file(2, "test").stat().st_mtime_ns == before


def test_a_probe_that_names_the_other_type_computes_them_again(run: Run) -> None:
    probe(run, HALF, Silent())
    listener = Silent()
    scores = probe(run, replace(REQUEST, store="float32"), listener)
    assert "epoch-0002.test.h5 is computed again: dtype is not what it was" in listener.heard
    assert not any(NOTE in score.notes for score in scores)
    assert (dtype_of(run), dtype_of(run, "train")) == ("float32", "float32")


@pytest.mark.parametrize(("dtype", "precision"), [("float16", None), (None, "bfloat16")])
def test_another_type_of_some_layers_is_refused_before_the_others_are_removed(
    run: Run, dtype: str | None, precision: str | None
) -> None:
    request = replace(REQUEST, metrics=())
    probe(run, replace(request, layers=("fc6", "pool5.3")), Silent())
    probe(run, replace(request, layers=("pool1.1",)), Silent())  # in a file beside the first
    before = {path: path.read_bytes() for path in run.feature_file(2, "test").parent.iterdir()}
    with pytest.raises(
        RecipeError, match=r"features of pool1.1@max,pool5.3@max at epoch 2 of .* Add them to --layers of"
    ):
        probe(run, replace(request, store=dtype, precision=precision), Silent())
    assert {path: path.read_bytes() for path in run.feature_file(2, "test").parent.iterdir()} == before
    scores = probe(
        run, replace(request, layers=("pool1.1@max", "pool5.3@max", "fc6"), store=dtype, precision=precision), Silent()
    )
    assert len({score.ranked.layer for score in scores if score.notes}) == 3


def test_a_dry_run_knows_that_they_take_half(run: Run) -> None:
    assert estimate_probe(run, HALF).disk == estimate_probe(run, REQUEST).disk / 2


def test_another_type_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown type 'float61'. Did you mean 'float16'"):
        replace(REQUEST, store="float61")
