from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe import store
from layerprobe.post_processing.chain import Chain
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.workflow.probe.post_processed_features import are_stored
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), epochs="last", ks=(1,), metrics=("MAP@R",), device="cpu", workers=0)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How often each chain was fitted, by its dimensions."""
    found: Counter[tuple[str, int]] = Counter()
    fit = Chain.fit

    def counted(chain: Chain, batches: object, dim: int, **more: object) -> object:
        found[chain.text, dim] += 1
        return fit(chain, batches, dim, **more)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr(Chain, "fit", counted)
    return found


def test_a_map_that_is_fitted_on_train_is_fitted_once_for_all_splits(run: Run, fits: Counter[tuple[str, int]]) -> None:
    probe(run, replace(REQUEST, post=("pca:3",)), Silent())
    assert set(fits.values()) == {1}
    assert {dim for _, dim in fits} == {8, 64}  # fc6 and pool5.3


def test_a_map_that_is_fitted_on_a_gallery_is_fitted_once_for_each(run: Run, fits: Counter[tuple[str, int]]) -> None:
    probe(run, replace(REQUEST, post=("pca:3",), fit="gallery"), Silent())
    assert set(fits.values()) == {2}  # train and test are searched in themselves


def test_the_draws_of_post_processing_are_drawn_once(run: Run, fits: Counter[tuple[str, int]]) -> None:
    probe(run, replace(REQUEST, layers=("fc6",), post=("random:3x2",)), Silent())
    assert fits == {("random:3", 8): 2, ("random:3:1", 8): 2}  # their dimensions are those of each split


@pytest.mark.parametrize(
    ("gone", "stored"),
    [(None, True), (Run.feature_file, False)],
)
def test_features_that_are_gone_are_not_stored(
    run: Run, gone: Callable[[Run, int, str], Path] | None, stored: bool
) -> None:
    probe(run, replace(REQUEST, post=("none", "pca:3")), Silent())
    if gone is not None:
        gone(run, 2, "train").unlink()
    raw, fitted = (RankedLayer(FC6, post_processing, "cosine") for post_processing in ("none", "pca:3"))
    assert are_stored(run, 2, "test", "test", raw)
    assert are_stored(run, 2, "test", "test", fitted) is stored


def test_features_that_ranks_were_not_made_from_are_not_those(run: Run) -> None:
    probe(run, REQUEST, Silent())
    path, raw = run.feature_file(2, "test"), RankedLayer(FC6, "none", "cosine")
    assert are_stored(run, 2, "test", "test", raw)
    key = store.FeatureKey(run.name, 2, "test", "other", "", "")
    labels, ids = store.read_feature_head(path).rows
    columns = store.Columns({FC6: 2}, "cpu", 8)
    store.write_features(path, key, store.Rows(labels, ids), columns, [{FC6: np.zeros((len(ids), 2), np.float32)}])
    assert not are_stored(run, 2, "test", "test", raw)
