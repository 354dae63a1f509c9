from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import layerprobe
from layerprobe import store
from layerprobe.system.errors import DataError, UnknownNameError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from layerprobe.workflow.compare.compare import compare
from layerprobe.workflow.compare.request import CompareRequest
from layerprobe.workflow.plot.plot import draw_plot
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.opened_run import open_layer, read_layer
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.summary import stored_summary
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent, write_pairs

BOTH = LayerKey("pool5.3+fc6", "max")
REQUEST = ProbeRequest(layers=("fc6+pool5.3",), ks=(1,), device="cpu", workers=0)

Requests = Callable[..., TrainRequest]


@pytest.fixture
def untrained(request_for: Requests) -> Run:
    return train(request_for("train.epochs=0", 'probe.layers=["fc6+pool5.3"]'), Silent())


def by_hand(path: Path) -> np.ndarray:
    """The members as the file has them, over their lengths, side by side."""
    with h5py.File(path) as file:
        members = [file[f"features/{name}"][()].astype(np.float64) for name in ("pool5.3@max", "fc6@none")]
    return np.concatenate([m / np.linalg.norm(m, axis=1, keepdims=True) for m in members], axis=1).astype(np.float32)


def brute_force(path: Path) -> float:
    """Recall@1 of the members side by side, by every cosine."""
    rows, labels = by_hand(path), store.read_feature_head(path).rows[0]
    cosine = rows @ rows.T
    np.fill_diagonal(cosine, -1)
    return float((labels[cosine.argmax(axis=1)] == labels).mean())


def number(scores: list[Score], split: str) -> float | None:
    (found,) = [score for score in scores if (score.split, score.metric) == (split, "R@1")]
    return found.value


def test_only_what_is_asked_for_is_scored_and_its_members_alone_are_stored(untrained: Run) -> None:
    scores = probe(untrained, replace(REQUEST, layers=None), Silent())  # what its recipe says
    assert {str(score.ranked.layer) for score in scores} == {str(BOTH)}
    path = untrained.feature_file(0, "test")
    assert set(map(str, store.read_feature_head(path).columns)) == {"pool5.3@max", "fc6"}
    np.testing.assert_allclose(read_layer(untrained, 0, "test", BOTH), by_hand(path), rtol=1e-6)
    assert number(scores, "test") == brute_force(path)
    assert untrained.read().layer_order == ("pool5.3", "fc6")


def test_the_order_of_its_layers_makes_no_other_layer(untrained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe(untrained, REQUEST, Silent())
    monkeypatch.setattr("layerprobe.workflow.probe.scoring.rank", None)  # nothing is ranked again
    assert probe(untrained, replace(REQUEST, layers=("pool5.3+fc6@max",)), Silent()) == first


def test_ranks_are_not_used_after_a_member_has_changed(run: Run, request_for: Requests) -> None:
    asked = replace(REQUEST, splits=("test",), epochs="2")
    before = probe(run, asked, Silent())
    ranks = run.rank_file(2, "test").read_bytes()
    train(request_for("train.learning_rate=0.1", fresh=True), Silent())
    run.rank_file(2, "test").parent.mkdir(exist_ok=True)
    run.rank_file(2, "test").write_bytes(ranks)
    with h5py.File(run.rank_file(2, "test"), "r+") as file:
        file[f"{BOTH}/none/cosine/closer"][:] = 99
    after = probe(run, asked, Silent())
    assert number(after, "test") == brute_force(run.feature_file(2, "test"))
    assert len(after) == len(before)


def test_what_is_larger_than_the_memory_is_read_in_slices(untrained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe(untrained, REQUEST, Silent())
    for split in ("train", "test"):
        untrained.rank_file(0, split).unlink()
    monkeypatch.setattr("layerprobe.workflow.run.features.read_layer", None)
    assert probe(untrained, replace(REQUEST, memory=1000), Silent()) == first


def test_python_reads_it_from_a_run(untrained: Run) -> None:
    probe(untrained, replace(REQUEST, layers=("pool5.3", "pool4.1@avg", "fc6"), splits=("test",)), Silent())
    opened = layerprobe.open_run(untrained.folder)
    expected = by_hand(untrained.feature_file(0, "test"))
    for text in ("fc6+pool5.3", "pool5.3+fc6@max"):
        np.testing.assert_allclose(opened.features(epoch=0, split="test", layer=text), expected, rtol=1e-6)
    with pytest.raises(UnknownNameError, match="unknown layer 'pool4.1.pool5.3'"):
        opened.features(epoch=0, split="test", layer="pool4.1+pool5.3")


def test_a_member_that_is_not_stored_is_told(untrained: Run) -> None:
    probe(untrained, replace(REQUEST, layers=("pool5.3",), splits=("test",)), Silent())
    message = r"no features of pool5.3\+fc6@max. Run layerprobe probe tiny --layers pool5.3\+fc6@max"
    with pytest.raises(DataError, match=message), open_layer(untrained, 0, "test", BOTH):
        pass


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "images")


def test_it_is_compared_summed_up_and_plotted_beside_its_layers(untrained: Run) -> None:
    probe(untrained, replace(REQUEST, layers=("pool5.3", "fc6", "fc6+pool5.3")), Silent())
    ranked = RankedLayer(BOTH, "none", "cosine")
    request = CompareRequest(untrained.folder.parent, "tiny:fc6+pool5.3", "tiny:fc6")
    (found,) = compare(request)
    assert (found.a.name, found.a.subject.ranked) == ("pool5.3+fc6@max", ranked)
    (again,) = compare(replace(request, interval="redraw"))
    assert found.values is not None
    assert again.values == found.values
    summed = stored_summary(untrained)
    assert [layer.ranked.layer.layer for layer in summed.layers] == ["pool5.3", "fc6", "pool5.3+fc6"]
    for kind in ("layers", "train-vs-test", "cka"):
        assert draw_plot(kind, [untrained]).csv
