from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from layerprobe import load_encoder
from layerprobe.workflow.choose.choose_features import choose_file
from layerprobe.workflow.choose.feature_files import read_user_features
from layerprobe.workflow.choose.user_features import check_features
from layerprobe.workflow.export.export_features import export_features, ranked_to_export
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.export.writing import Written
from tests.post_processing.fitting import stored
from tests.workflow.conftest import Silent

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(24), 5)
# One direction of noise is far longer than those that tell classes apart: partial whitening is chosen.
FEATURES = (RNG.normal(size=(24, 8))[LABELS] + 0.3 * RNG.normal(size=(120, 8))).astype(np.float32)
FEATURES[:, 0] += 8 * RNG.normal(size=120).astype(np.float32)


def exported(tmp_path: Path, **arrays: object) -> Written:
    file = tmp_path / "given.npz"
    np.savez(file, labels=LABELS, **arrays)  # type: ignore[arg-type] # arrays all
    given = read_user_features(file)
    ranked = choose_file(given).chosen.ranked
    request = ExportRequest(tmp_path / "out")
    return export_features(given, ranked, request, Silent(), seen=True, seed=0)


def test_the_map_of_given_features_is_that_of_the_rows_it_is_fitted_on(tmp_path: Path) -> None:
    split = np.where(LABELS < 12, "train", "test")
    written = exported(tmp_path, layer=FEATURES, split=split)
    assert (list(written.files), written.fitted_on) == (["map.npz", "example.py"], "train")
    post_processing = load_encoder(written.folder).export["post_processing"]
    assert post_processing == "l2+whiten:8:0.5+l2"
    expected = stored(post_processing, FEATURES[LABELS < 12], FEATURES)
    np.testing.assert_allclose(load_encoder(written.folder)(FEATURES), expected, atol=1e-6)


@pytest.mark.usefixtures("without_learned_maps")
def test_without_splits_all_rows_fit_what_is_shipped(tmp_path: Path) -> None:
    written = exported(tmp_path, layer=FEATURES)
    assert written.fitted_on == "test"
    expected = stored("l2+whiten:8:0.5+l2", FEATURES, FEATURES)
    np.testing.assert_allclose(load_encoder(written.folder)(FEATURES), expected, atol=1e-6)


@pytest.mark.parametrize("splits", [None, np.where(LABELS < 12, "train", "test")])
def test_a_map_with_classes_is_that_of_the_rows_it_is_fitted_on(splits: Any, tmp_path: Path) -> None:
    given = check_features({"layer": FEATURES}, LABELS, splits)
    request = ExportRequest(tmp_path / "out", layer="layer/lda:4:0.1")
    ranked = ranked_to_export(given, request, Silent())
    written = export_features(given, ranked, request, Silent(), seen=True, seed=0)
    rows = (24 if splits is None else 12) > LABELS
    assert written.fitted_on == ("test (24 classes)" if splits is None else "train (12 classes)")
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1, n_components=4)
    train = FEATURES[rows].astype(float)
    expected = lda.fit(train, LABELS[rows]).transform(FEATURES.astype(float)) - lda.transform(train).mean(0)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = load_encoder(written.folder)(FEATURES)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-5)  # an axis has no sign


def test_other_than_features_of_this_layer_are_refused(tmp_path: Path) -> None:
    encoder = load_encoder(exported(tmp_path, layer=FEATURES).folder)
    with pytest.raises(ValueError, match=r"expected features \(B, 8\), B at least 1, got float64 \(2, 7\)"):
        encoder(np.zeros((2, 7)))


def test_an_index_of_given_features_has_their_ids(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    ids = [f"{row}.jpg" for row in range(120)]
    np.savez(tmp_path / "given.npz", labels=LABELS, layer=FEATURES, filenames=ids)
    request = ExportRequest(tmp_path / "out", layer="layer/l2", index="flat")
    given = read_user_features(tmp_path / "given.npz")
    ranked = ranked_to_export(given, request, Silent())
    written = export_features(given, ranked, request, Silent(), seen=True, seed=0)
    assert (written.name, written.dim) == ("given.npz:layer/l2", 8)
    assert json.loads((written.folder / "index.json").read_text(encoding="utf-8"))["ids"] == ids


def test_layers_side_by_side_are_exported_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "given.npz", labels=LABELS, early=FEATURES[:, :3], late=FEATURES)
    request = ExportRequest(tmp_path / "out", layer="early+late")
    given = read_user_features(tmp_path / "given.npz")
    ranked = ranked_to_export(given, request, Silent())
    assert export_features(given, ranked, request, Silent(), seen=True, seed=0).dim == 11
