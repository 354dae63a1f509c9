from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from layerprobe import store
from layerprobe.system.errors import EnvironmentFault
from layerprobe.system.files import sha256
from layerprobe.values.keys import LayerKey, RankedLayer
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
POOL = LayerKey("pool5.3", "max")

Requests = Callable[..., TrainRequest]
REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), epochs="last", ks=(1, 2), device="cpu", workers=0)


def test_an_index_of_the_last_epoch_is_exported_with_its_ids(run: Run, faiss: Any) -> None:
    probe(run, replace(REQUEST, epochs="all", layers=("fc6",), export_index=True), Silent())
    path = run.index_file(2, "test", RankedLayer(FC6, "none", "cosine"))
    assert sorted(file.name for file in path.parent.glob("*.faiss")) == [
        "epoch-0002.test.fc6@none.faiss",
        "epoch-0002.train.fc6@none.faiss",
    ]
    listing = json.loads(path.with_name(f"{path.name}.json").read_text())
    features = store.read_features(run.feature_file(2, "test"), FC6)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    np.testing.assert_allclose(faiss.read_index(str(path)).reconstruct_n(0, 16), unit, rtol=1e-6)
    assert listing["ids"] == list(store.read_index(run.feature_file(2, "test"))[1])
    assert listing["facts"]["weights_sha256"] == sha256(run.checkpoint_file(2))


def test_without_faiss_no_index_is_begun(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(EnvironmentFault, match="faiss"):
        probe(run, replace(REQUEST, export_index=True), Silent())
    assert not run.feature_file(2, "test").exists()


def test_an_index_is_searched_by_the_runs_similarity_and_keeps_that_of_the_cosine(run: Run, faiss: Any) -> None:
    asked = replace(REQUEST, layers=("fc6",), splits=("test",), export_index=True)
    probe(run, asked, Silent())
    path = run.index_file(2, "test", RankedLayer(FC6, "none", "cosine"))
    before = sha256(path)
    probe(run, replace(asked, similarity="euclidean"), Silent())
    assert sha256(path) == before
    other = path.with_name("epoch-0002.test.fc6@none.euclidean.faiss")
    index = faiss.read_index(str(other))
    assert index.metric_type == faiss.METRIC_L2
    features = store.read_features(run.feature_file(2, "test"), FC6)
    np.testing.assert_array_equal(index.reconstruct_n(0, 16), features)
    assert json.loads(other.with_name(f"{other.name}.json").read_text())["similarity"] == "euclidean"


def test_a_reduced_layer_has_an_index_of_its_own_as_it_is_searched(run: Run, faiss: Any) -> None:
    listener = Silent()
    names = ("pca:3", "l2+binary", "random:2x3")
    probe(run, replace(REQUEST, layers=("fc6",), splits=("test",), reduce=names, export_index=True), listener)
    folder = run.folder / "index"
    assert sorted(file.name for file in folder.glob("*.faiss")) == [
        "epoch-0002.test.fc6@none.l2+binary.hamming.faiss",
        "epoch-0002.test.fc6@none.pca-3.faiss",
    ]
    train, test = (
        store.read_features(run.feature_file(2, split), FC6).astype(np.float64) for split in ("train", "test")
    )
    projected = PCA(3).fit(train).transform(test)
    unit = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    stored = faiss.read_index(str(folder / "epoch-0002.test.fc6@none.pca-3.faiss")).reconstruct_n(0, 16)
    np.testing.assert_allclose(stored @ stored.T, unit @ unit.T, atol=1e-5)
    codes = faiss.read_index_binary(str(folder / "epoch-0002.test.fc6@none.l2+binary.hamming.faiss"))
    assert (codes.d, codes.ntotal) == (8, 16)
    assert "no index of fc6 by random:2x3 on test: it is a mean of draws; name one of them, such as random:2" in (
        listener.heard
    )
