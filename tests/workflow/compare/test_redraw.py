from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerprobe import store
from layerprobe.measure.analysis import Features, rank
from layerprobe.measure.redraw import groups_of
from layerprobe.statistics.jackknife import jackknife
from layerprobe.statistics.units import UnitSums
from layerprobe.store import read_feature_head, read_features
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.workflow.compare.compare import Evidence, compare
from layerprobe.workflow.compare.comparison import Comparison
from layerprobe.workflow.compare.redraw import LeftOutMetrics
from layerprobe.workflow.compare.request import CompareRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.references import find_layers, open_ranked_split, parse_reference
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent, write_pairs


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "images")


@pytest.fixture
def probed(request_for: Callable[..., TrainRequest]) -> Run:
    run = train(request_for("train.epochs=0"), Silent())
    probe(run, ProbeRequest(layers=("pool5.3", "fc6"), splits=("test",), ks=(1,)), Silent())
    return run


def compared(run: Run, a: str, b: str, metric: str = "R@1") -> Comparison:
    (found,) = compare(CompareRequest(run.folder.parent, a, b, metric, interval="redraw"))
    return found


def without_each_class(run: Run, layer: str) -> list[float]:
    """Recall@1 ranked anew without each class."""
    path = run.feature_file(0, "test")
    place = open_ranked_split(run, 0, "test")
    (ranked,) = find_layers(place, parse_reference(f"tiny:{layer}"))
    values, (labels, ids) = read_features(path, ranked.layer), read_feature_head(path).rows
    found = []
    for label in np.unique(labels):
        rest = np.flatnonzero(labels != label)
        left = Features(values[rest], labels[rest].astype(np.int64), [ids[row] for row in rest])
        found.append(rank(left, None).recall(1))
    return found


def test_the_interval_comes_from_leaving_each_class_out_of_queries_and_gallery(probed: Run) -> None:
    place = open_ranked_split(probed, 0, "test")
    layers = find_layers(place, parse_reference("tiny:*"))
    tables = LeftOutMetrics(place, None).tables(layers, "R@1")
    for layer in layers:
        assert tables[layer].sum(1) == pytest.approx(without_each_class(probed, layer.layer.layer))
    found = compared(probed, "tiny:pool5.3", "tiny:fc6")
    assert found.values is not None
    gained = found.values[0] - found.values[1]
    sizes = np.bincount(place.stored.labels)
    assert found.difference == jackknife([gained], [tables[layers[0]] - tables[layers[1]]], [sizes[sizes > 0]])[0]
    assert found.difference.low is not None
    unlike = "pool5.3@max and fc6: they differ in dimensions (64, 8)"
    assert found.as_json()["note"] == f"{unlike}; interval: redraw; interval over few classes: 12"


@pytest.mark.parametrize("metric", ["R@1", "MRR", "mAP"])
def test_layers_larger_than_the_memory_stay_on_disk_and_give_the_same_tables(
    probed: Run, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_ranked_split(probed, 0, "test")
    layers = find_layers(place, parse_reference("tiny:*"))
    expected = LeftOutMetrics(place, None).tables(layers, metric)
    monkeypatch.setattr(store.FeatureFile, "read", None)  # a layer whole
    tables = LeftOutMetrics(place, None, memory=1).tables(layers, metric)
    assert all((tables[layer] == expected[layer]).all() for layer in layers)


def test_two_trainings_share_the_units(probed: Run, request_for: Callable[..., TrainRequest]) -> None:
    other = train(request_for("train.epochs=0", "train.seed=1", run="other"), Silent())
    probe(other, ProbeRequest(layers=("pool5.3", "fc6"), splits=("test",), ks=(1,)), Silent())
    request = CompareRequest(probed.folder.parent, "tiny:pool5.3", "tiny:fc6", interval="redraw", seeds=True)
    (found,) = compare(request)
    each = [compared(run, f"{run.name}:pool5.3", f"{run.name}:fc6").difference for run in (probed, other)]
    assert found.seeds is not None
    assert found.seeds.over is not None
    assert found.seeds.over.mean == pytest.approx(np.mean([one.value for one in each if one]))
    assert found.seeds.over.classes.low is not None


def test_features_that_the_ranks_were_not_made_from_are_refused(probed: Run) -> None:
    with h5py.File(probed.feature_file(0, "test"), "r+") as file:
        file.attrs["weights_sha256"] = np.bytes_(b"of another training")
    with pytest.raises(DataError, match="the ranks of pool5.3@max were made from other features"):
        compared(probed, "tiny:pool5.3", "tiny:fc6")


def test_what_no_features_can_tell_is_refused(probed: Run) -> None:
    place = open_ranked_split(probed, 0, "test")
    with pytest.raises(RecipeError, match=r"--interval redraw is not for R@1\(G=20\)"):
        LeftOutMetrics(place, None).tables([], "R@1(G=20)")
    probed.feature_file(0, "test").unlink()
    with pytest.raises(DataError, match="no features of pool5.3@max at epoch 0 .* layerprobe probe tiny --epochs 0"):
        compared(probed, "tiny:pool5.3", "tiny:fc6")


def test_groups_of_units_have_the_queries_of_their_units() -> None:
    counts = np.arange(1.0, 21.0)[None]
    grouped = Evidence(np.zeros((1, 2)), UnitSums(counts * 0, counts), np.zeros((1, 7, 7))).queries
    groups, _ = groups_of(np.repeat(np.arange(20), counts[0].astype(int)), None, 7, seed=0)
    assert grouped.tolist() == [np.bincount(groups).tolist()]
