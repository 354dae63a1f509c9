from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.data.splits import Dataset, Split
from layerprobe.values.layers import RankedLayer
from layerprobe.workflow.probe.searches import Searches
from layerprobe.workflow.run.features import RunFeatures
from layerprobe.workflow.run.runs import Run
from tests.workflow.drawn_run import FC6, SEED, SIZES, labels_of, write_run

FITTED = ["l2+pca:2+l2", "l2+whiten:2:0.5+l2", "pca:2+binary"]
KEPT = 7  # rows of a split that are not replaced

Changed = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@pytest.fixture
def searches(tmp_path: Path) -> Searches:
    run = write_run(tmp_path)
    splits = {name: _split(name, labels_of(sizes)) for name, sizes in SIZES.items()}
    dataset = Dataset(splits, tuple("abcdefghijkl"))
    features = RunFeatures(run, dataset, "resize", lambda epoch: f"w{epoch}", lambda epoch: None, lambda split: "m")
    return Searches(features=features, experiment="e", seed=SEED, device=lambda: torch.device("cpu"))


def _split(name: str, labels: NDArray[np.int64]) -> Split:
    return Split(name, labels, tuple(f"{name}/{i}.png" for i in range(len(labels))), lambda i: np.zeros((1, 1, 3), "B"))


def reduced(searches: Searches, chain: str) -> NDArray[np.float64]:
    """The first test features through a chain, which a new command fits."""
    ranked: RankedLayer = replace(FC6, reduction=chain)
    with replace(searches).reduced.opened(1, "test", ranked, None) as (queries, _):
        return np.asarray(queries.values[:KEPT], dtype=np.float64)


def replace_rows(run: Run, split: str) -> None:
    """Other features in the place of all but the first rows."""
    path = run.feature_file(1, split)
    values, labels = store.read_features(path, FC6.layer), store.read_feature_head(path).rows
    values[KEPT:] = np.random.default_rng(0).normal(size=values[KEPT:].shape) * [1, 5, 30] + 2
    key = store.FeatureKey(run.name, 1, split, "w1", "resize", "m")
    columns = store.Columns({FC6.layer: 3}, "cpu", 8)
    store.write_features(path, key, store.Rows(*labels), columns, [{FC6.layer: values}])


@pytest.mark.parametrize("chain", FITTED)
def test_nothing_is_fitted_on_test_features(searches: Searches, chain: str) -> None:
    before = reduced(searches, chain)
    replace_rows(searches.features.run, "test")
    assert (reduced(searches, chain) == before).all()


@pytest.mark.parametrize("chain", FITTED)
def test_what_is_fitted_is_fitted_on_training_features(searches: Searches, chain: str) -> None:
    before = reduced(searches, chain)
    replace_rows(searches.features.run, "train")
    assert (reduced(searches, chain) != before).any()


@pytest.mark.parametrize("chain", FITTED)
def test_what_is_fitted_on_the_gallery_is_fitted_on_what_is_searched_alone(searches: Searches, chain: str) -> None:
    before = reduced(searches, f"{chain}@gallery")
    replace_rows(searches.features.run, "train")
    assert (reduced(searches, f"{chain}@gallery") == before).all()
    replace_rows(searches.features.run, "test")
    assert (reduced(searches, f"{chain}@gallery") != before).any()
