from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features
from layerprobe.measure.selection_folds import FoldSearch
from layerprobe.post_processing.chain import parse_chain
from layerprobe.statistics.choice import folds_of
from layerprobe.system.errors import DataError
from layerprobe.values.facts import WITHIN_FOLDS
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import ScoreTable
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.refits import ranked_raw, whitened_layers
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.run.runs import Run
from tests.scores import with_layer
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import C1, C2, labels_of, write_run

CLASSES, CHAIN = 12, "l2+whiten:9:1+l2"
WHITE = RankedLayer(C1.layer, CHAIN, "cosine")


def features_of(split: str) -> NDArray[np.float32]:
    """(Q, 9) of which the three directions that vary most say nothing of the class."""
    rng, labels = np.random.default_rng(len(split)), labels_of(split, CLASSES)
    of_class = rng.standard_normal((CLASSES, 9))[labels - labels.min()]
    found: NDArray[np.float32] = (
        of_class + 0.3 * rng.standard_normal((len(labels), 9)) * [20, 20, 20, 1, 1, 1, 1, 1, 1]
    ).astype(np.float32)
    return found


def write(cache: Path, *splits: str, layers: tuple[RankedLayer, ...] = (C1, WHITE)) -> Run:
    """A run of epoch 0; the stored ranks with the fitted post-processing have every query right on train."""
    features = {split: {"c1@max": features_of(split)} for split in splits}
    on = {
        split: {layer: np.full(4 * CLASSES, float(layer == WHITE and split == "train")) for layer in layers}
        for split in splits
    }
    return write_run(cache, "a", on, features=features, epochs=(0,))


def within_folds(split: str, chain: str) -> NDArray[np.float64]:
    """(Q,) Recall@1 of each query among the classes of its fold, by a fit on the other folds."""
    labels = labels_of(split, CLASSES)
    names, places = np.unique(labels, return_inverse=True)
    folds = folds_of(names, seed=0)[places]
    features = Features(features_of(split), labels, [f"{split}{label}-{i}" for i, label in enumerate(labels)])
    search = FoldSearch(features, None, folds, "cosine", torch.device("cpu"))
    return search.values(lambda fold: search.fit_without(parse_chain(chain), fold, seed=0)).values


def test_on_train_candidates_are_judged_within_folds_that_no_fit_has_seen(tmp_path: Path) -> None:
    found = choose_runs([write(tmp_path, "train", "test")], ChooseRequest("0", device="cpu"), Silent())
    unseen = within_folds("train", CHAIN)
    assert found.selected.post_processing == CHAIN
    assert found.chosen.value == pytest.approx(unseen.mean())
    assert unseen.mean() < 1  # what is stored of the fit on these classes
    assert f"selection classes: {WITHIN_FOLDS}" in found.notes


def test_a_limit_of_memory_changes_no_choice(tmp_path: Path) -> None:
    run = write(tmp_path, "train", "test")
    choices = [choose_runs([run], ChooseRequest(epochs="last", memory=memory), Silent()) for memory in (None, 1)]
    assert choices[0] == choices[1]


def test_where_features_are_gone_a_fitted_post_processing_is_left_out(tmp_path: Path) -> None:
    of_class = np.random.default_rng(0).standard_normal((CLASSES, 9)).astype(np.float32)[np.arange(4 * CLASSES) // 4]
    features = {split: {"c1@max": of_class} for split in ("train", "test")}
    layers = dict.fromkeys(features, dict.fromkeys((C1, WHITE), np.ones(4 * CLASSES)))
    run = write_run(tmp_path, "a", layers, features=features, epochs=(0,))
    run.feature_file(0, "train").unlink()
    found = choose_runs([run], ChooseRequest("0", device="cpu"), Silent())
    assert found.selected.post_processing == "none"
    assert WITHIN_FOLDS not in found.notes
    (note,) = [note for note in found.notes if note.startswith("skipped: ")]
    assert f"a#0:c1@max/{CHAIN}" in note


def test_candidates_that_are_skipped_for_one_reason_have_one_note(tmp_path: Path) -> None:
    run = write(tmp_path, "test", layers=(C1,))
    wide = [RankedLayer(C1.layer, chain, "cosine") for chain in ("pca:90+l2", "l2+whiten:90:0.5+l2")]
    choice = choose_runs([run], ChooseRequest(device="cpu"), Silent(), further=[WHITE, *wide])
    (note,) = [note for note in choice.notes if note.startswith("skipped: ")]
    assert note.startswith("skipped: a#0:c1@max/pca:90+l2, a#0:c1@max/l2+whiten:90:0.5+l2: ")


def test_cross_fitting_searches_raw_and_fitted_candidates_within_the_same_folds(tmp_path: Path) -> None:
    run = write(tmp_path, "test", layers=(C1,))
    found = choose_runs([run], ChooseRequest(device="cpu"), Silent(), further=[WHITE])
    raw, white = within_folds("test", "none"), within_folds("test", CHAIN)
    assert white.mean() > raw.mean() + 0.1
    assert found.test is not None
    assert (found.selected.post_processing, found.selected.dim) == (CHAIN, 9)
    assert found.test.value == pytest.approx(white.mean())
    assert found.chosen.value == pytest.approx(white.mean())


def test_features_without_any_class_gain_nothing_by_a_fit_on_other_classes(tmp_path: Path) -> None:
    # Within folds a whitening of noise is at chance, as raw features are.
    rng = np.random.default_rng(0)
    noise = {"test": {"c1@max": rng.standard_normal((4 * CLASSES, 9)).astype(np.float32)}}
    run = write_run(tmp_path, "a", {"test": {C1: np.ones(4 * CLASSES)}}, features=noise, epochs=(0,))
    with pytest.raises(DataError, match="no layer is above chance on the 12 test classes"):
        choose_runs([run], ChooseRequest(device="cpu"), Silent(), further=[WHITE])


def test_what_train_classes_can_fit_is_not_fitted_within_folds_of_test(tmp_path: Path) -> None:
    splits = ("train", "test")
    rng, hits = np.random.default_rng(0), {split: {C1: np.ones(4 * CLASSES)} for split in splits}
    classes = np.repeat(rng.normal(size=(CLASSES, 9)), 4, axis=0)
    noisy = (classes + 0.1 * rng.normal(size=classes.shape)).astype(np.float32)
    features = {split: {"c1@max": noisy} for split in splits}
    run = write_run(tmp_path, "a", hits, features=features, epochs=(0,))
    record = run.read()  # of weights that may have been trained on the train classes, so that test is chosen on
    run.write(replace(record, from_python=True, untrained=False))
    request = ChooseRequest(device="cpu")
    choice = choose_runs([run], request, Silent(), further=[WHITE])
    assert (choice.chosen.split, choice.within_folds, choice.candidates) == ("test", False, 1)
    assert choice == choose_runs([run], request, Silent())


def test_trainings_of_several_seeds_have_the_same_folds(tmp_path: Path) -> None:
    # Else a class would be chosen on in one training, and judged in another.
    features = {"test": {"c1@max": features_of("test")}}
    on = {"test": {C1: np.ones(4 * CLASSES)}}
    runs = [
        write_run(tmp_path, name, on, features=features, epochs=(0,), seed=seed) for seed, name in ((0, "a"), (5, "b"))
    ]
    both = choose_runs(runs, ChooseRequest(device="cpu"), Silent(), further=[WHITE])
    alone = choose_runs(runs[:1], ChooseRequest(device="cpu"), Silent(), further=[WHITE])
    assert both.chosen.value == alone.chosen.value


def test_a_layer_is_partially_whitened_to_the_rank_that_its_features_have_in_all_folds(tmp_path: Path) -> None:
    # 12 classes of 4 images; the second layer has 3 directions among its 6 numbers.
    features = np.random.default_rng(0).standard_normal((48, 6)).astype(np.float32)
    flat = features @ np.diag([1, 1, 1, 0, 0, 0]).astype(np.float32)
    values = {"test": {"c1@max": features, "c2@max": flat}}
    run = write_run(tmp_path, "a", {"test": {C1: np.ones(48), C2: np.ones(48)}}, features=values, epochs=(0,))
    found = whitened_layers(run, "test", [C1, C2], 0)
    assert [str(ranked) for ranked in found] == ["c1@max/l2+whiten:6:0.5+l2", "c2@max/l2+whiten:3:0.5+l2"]


def test_post_processed_and_concatenated_layers_are_not_partially_whitened(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"test": {C1: np.ones(80)}})
    (score,) = run.scores()
    others = [
        with_layer(score, layer="c1+c2"),
        with_layer(score, post_processing="l2"),
        replace(with_layer(score, layer="c2"), value=None),
    ]
    ScoreTable([score, *others], stored=[]).write(run.scores_file)
    assert ranked_raw(run, "test") == [C1]
