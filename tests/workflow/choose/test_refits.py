from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features
from layerprobe.measure.choosing_folds import FLATTERED, Refitting, out_of_fold, refitted
from layerprobe.reductions.chain import parse_chain
from layerprobe.statistics.choice import folds_of
from layerprobe.values.keys import RankedLayer
from layerprobe.workflow.choose.candidates import Hits
from layerprobe.workflow.choose.choose import ChooseRequest, choose_runs
from layerprobe.workflow.run.runs import Run
from tests.workflow.choosing_runs import C1, labels_of, write_run
from tests.workflow.conftest import Silent

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
    """A run of epoch 0; the stored ranks with the fitted reduction have every query right on train."""
    features = {split: {"c1@max": features_of(split)} for split in splits}
    on = {
        split: {layer: np.full(4 * CLASSES, float(layer == WHITE and split == "train")) for layer in layers}
        for split in splits
    }
    return write_run(cache, "a", on, features=features, epochs=(0,))


def search_of(split: str) -> tuple[Refitting, NDArray[np.int64]]:
    labels = labels_of(split, CLASSES)
    names, places = np.unique(labels, return_inverse=True)
    folds = folds_of(names, seed=0)[places]
    features = Features(features_of(split), labels, [f"{split}{label}-{i}" for i, label in enumerate(labels)])
    return Refitting(features, None, folds, "cosine", torch.device("cpu")), folds


def test_on_train_a_fitted_reduction_is_judged_by_classes_that_it_was_not_fitted_on(tmp_path: Path) -> None:
    found = choose_runs([write(tmp_path, "train", "test")], ChooseRequest("0", device="cpu"), Silent())
    unseen = out_of_fold(search_of("train")[0], parse_chain(CHAIN))
    assert found.ship.reduction == CHAIN
    assert found.chosen.value == pytest.approx(unseen.mean())
    assert unseen.mean() < 1  # what is stored of the fit on these classes
    assert FLATTERED in found.notes


def test_where_features_are_gone_a_fitted_reduction_is_left_out(tmp_path: Path) -> None:
    run = write(tmp_path, "train", "test")
    run.feature_file(0, "train").unlink()
    found = choose_runs([run], ChooseRequest("0", device="cpu"), Silent())
    assert found.ship.reduction == "none"
    assert FLATTERED not in found.notes
    assert any(note.startswith(f"skipped: a#0:c1@max/{CHAIN}: ") for note in found.notes)


def test_cross_fitting_fits_without_the_fold_that_is_judged(tmp_path: Path) -> None:
    run = write(tmp_path, "test", layers=(C1,))
    found = choose_runs([run], ChooseRequest(device="cpu"), Silent(), further=[WHITE])
    search, folds = search_of("test")
    values = features_of("test").astype(np.float64)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -9)
    labels = labels_of("test", CLASSES)
    raw = (labels[alike.argmax(1)] == labels).astype(float)
    judged: list[Hits] = []
    for fold in range(5):
        white = refitted(search, parse_chain(CHAIN), fold)
        others = folds != fold
        # far more than one point apart in every fold: the better one is chosen
        assert abs(white[others].mean() - raw[others].mean()) > 0.1
        better = white if white[others].mean() > raw[others].mean() else raw
        judged.append(better[folds == fold])
    assert found.test is not None
    assert (found.ship.reduction, found.ship.dim) == (CHAIN, 9)
    assert found.test.value == pytest.approx(np.concatenate(judged).mean())
    assert found.chosen.value == pytest.approx(out_of_fold(search, parse_chain(CHAIN)).mean())
