from __future__ import annotations

import numpy as np
import pytest
import torch

from layerprobe.post_processing.applying import Blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.unfitted import unit
from layerprobe.system.errors import DataError
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer
from layerprobe.workflow.choose.features_run import run_of_features
from layerprobe.workflow.choose.user_features import check_features
from layerprobe.workflow.probe.rerank import StoredSearch, whitening_fits
from layerprobe.workflow.run.memory_run import MemoryRun
from layerprobe.workflow.run.opened_run import equal_layers, read_layer
from layerprobe.workflow.run.stored_choice import stored_choice

LABELS = np.repeat(np.arange(8), 3)
FEATURES = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)


@pytest.fixture
def run() -> MemoryRun:
    splits = np.array(["train", "validation", "test"])[LABELS // 3]
    layers = {"a": FEATURES, "b": 2 * FEATURES, "c": FEATURES.copy()}
    return run_of_features(check_features(layers, LABELS, splits, LABELS % 2), seen=True, seed=3)


def test_the_features_of_a_split_are_its_rows(run: MemoryRun) -> None:
    np.testing.assert_array_equal(read_layer(run, 0, "validation", LayerKey("a", "none")), FEATURES[9:18])
    labels, ids = run.feature_head(0, "validation").rows
    assert labels.tolist() == LABELS[9:18].tolist()
    assert ids == tuple(map(str, range(9, 18)))


def test_one_split_is_not_copied() -> None:
    run = run_of_features(check_features({"a": FEATURES}, LABELS), seen=True, seed=0)
    assert np.shares_memory(read_layer(run, 0, "test", LayerKey("a", "none")), FEATURES)


def test_concatenated_layers_are_unit_vectors_side_by_side(run: MemoryRun) -> None:
    unit = FEATURES[18:] / np.linalg.norm(FEATURES[18:], axis=1, keepdims=True)
    both = read_layer(run, 0, "test", LayerKey("a+b", "none"))
    np.testing.assert_allclose(both, np.hstack([unit, unit]), rtol=1e-6)


def test_layers_of_the_same_numbers_are_one_by_several_names() -> None:
    values = np.random.default_rng(0).random((1200, 3), np.float32)
    last_row = values.copy()
    last_row[-1, -1] += 1
    layers = {"a": values, "b": values * 2, "c": values.copy(), "d": last_row, "e": values[:, :2]}
    run = run_of_features(check_features(layers, np.arange(1200) % 6), seen=True, seed=0)
    assert equal_layers(run, 0, "test", "a") == {LayerKey("c", "none")}
    assert equal_layers(run, 0, "test", "e") == equal_layers(run, 1, "test", "a") == frozenset()


def test_what_it_lacks_is_refused(run: MemoryRun) -> None:
    with pytest.raises(DataError, match="no features of gallery"):
        run.feature_head(0, "gallery")
    with pytest.raises(DataError, match="no features of d"):
        read_layer(run, 0, "test", LayerKey("d", "none"))
    with pytest.raises(DataError, match="gallery is not ranked"):
        run.ranks(0, "gallery")
    assert (run.has_features(1, "test"), run.ranked_epochs("test")) == (False, [0])


def test_groups_and_the_seed_are_kept_and_no_file_is_read(run: MemoryRun) -> None:
    rules = run.stored_rules("test")
    assert rules is not None
    assert np.asarray(rules.groups).tolist() == (LABELS[18:] % 2).tolist()
    assert run.read().seed == 3
    assert stored_choice(run) is None
    assert RankedLayer(LayerKey("a", "none"), NO_POST_PROCESSING, "cosine") not in run.ranks(0, "test").groups


def test_maps_by_fold_are_fitted_once_and_are_those_of_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of_features(check_features({"a": FEATURES}, LABELS), seen=True, seed=0)
    key, folds, cpu = LayerKey("a", "none"), LABELS % 4, torch.device("cpu")
    together = whitening_fits(run, 0, "test", key, folds, cpu, learned=False)
    assert together is not None
    chain = parse_chain("l2+whiten:5:0.5+l2")
    for fold in range(4):
        alone = chain.fit(Blocks(torch.from_numpy(FEATURES[folds != fold]), cpu), 5, seed=0)
        rows = torch.from_numpy(FEATURES).double()
        np.testing.assert_allclose(together.onto(5, unit)(fold)(rows), alone(rows), rtol=1e-6, atol=1e-8)
    monkeypatch.setattr("layerprobe.workflow.probe.rerank.partial_whitening", lambda *_: pytest.fail("fitted again"))
    assert whitening_fits(run, 0, "test", key, folds, cpu, learned=False) is together


@pytest.mark.parametrize("chain", ["l2+whiten:130:0.5+l2", "l2+lwhiten:130:lw+int8"])
def test_layers_side_by_side_are_whitened_to_more_than_128_dimensions_by_fold(
    chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(40), 5)
    layers = {name: 0.4 * rng.normal(size=(40, 70))[labels] + rng.normal(size=(200, 70)) for name in ("a", "b")}
    run = run_of_features(check_features(layers, labels), seen=True, seed=0)
    search = StoredSearch(run, 0, "test", torch.device("cpu"))
    ranked = RankedLayer(LayerKey("a+b", "none"), chain, "cosine")
    together = search.within_folds(ranked, 0)
    monkeypatch.setattr("layerprobe.workflow.probe.rerank.parse_whitening", lambda _: None)  # each fold fits the chain
    np.testing.assert_array_equal(together.values, search.within_folds(ranked, 0).values)
    assert 0.1 < together.values.mean() < 1


def test_of_the_fits_of_all_axes_two_are_kept() -> None:
    layers = {name: FEATURES * scale for scale, name in enumerate("abcd", start=1)}
    run = run_of_features(check_features(layers, LABELS), seen=True, seed=0)
    for name in layers:
        for most in (128, 500):
            key = LayerKey(name, "none")
            whitening_fits(run, 0, "test", key, LABELS % 4, torch.device("cpu"), learned=False, most=most)
    kept = [(key[2].layer, key[-1]) for key in run.fold_fits]
    assert kept == [("a", 128), ("b", 128), ("c", 128), ("c", 500), ("d", 128), ("d", 500)]
