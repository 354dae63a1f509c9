"""Features that are stored post-processed alone, by a map that is fitted on a sample."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from layerprobe import store
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.export.export_run import export_run, layer_to_export
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.probe import probed_run
from layerprobe.workflow.probe.estimate_probe import estimate_probe
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.threshold.request import ThresholdRequest
from layerprobe.workflow.threshold.threshold import threshold
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

POOL = LayerKey("pool5.3", "max")
RAW = ProbeRequest(layers=("pool5.3", "fc6"), ks=(1,), epochs="last", device="cpu", workers=0)
REQUEST = replace(RAW, post=("pca:3",), store_post=9)
NOTES = {"fitted on 9 of 16 train images", "raw features are not stored"}


def files(run: Run) -> list[str]:
    return sorted(path.name for path in (run.folder / "features").iterdir())


def values(run: Run, name: str, layer: LayerKey = POOL) -> NDArray[np.float64]:
    return store.read_features(run.feature_file(2, name), layer).astype(np.float64)


def test_what_the_map_of_a_sample_gives_is_stored_and_nothing_else(run: Run, tmp_path: Path) -> None:
    raw = Run(Path(shutil.copytree(run.folder.parent, tmp_path / "raw")) / run.name)
    probe(raw, RAW, Silent())
    scores = probe(run, REQUEST, Silent())
    assert files(run) == ["epoch-0002.test~pca:3~9.h5", "epoch-0002.train~9.h5", "epoch-0002.train~pca:3~9.h5"]
    head = store.read_feature_head(run.feature_file(2, "train~9"))
    places = [raw.feature_head(2, "train").rows[1].index(name) for name in head.rows[1]]
    assert len(places) == 9
    assert places == sorted(places)
    np.testing.assert_allclose(values(run, "train~9"), values(raw, "train")[places], rtol=1e-5, atol=1e-6)
    oracle = PCA(3, svd_solver="full").fit(values(run, "train~9"))
    expected, found = oracle.transform(values(raw, "test")), values(run, "test~pca:3~9")
    signs = np.sign((expected * found).sum(0))
    np.testing.assert_allclose(found, expected * signs, rtol=1e-4, atol=1e-5)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    labels = raw.feature_head(2, "test").rows[0]
    recall = (labels[cosines.argmax(1)] == labels).mean()
    (score,) = [s for s in scores if (s.split, s.ranked.layer) == ("test", POOL)]
    assert score.value == pytest.approx(recall)


def test_every_score_says_how_many_images_the_map_was_fitted_on(run: Run) -> None:
    scores = probe(run, replace(REQUEST, metrics=("uniformity",), splits=("test",)), Silent())
    assert len(scores) == 4
    assert all({*score.notes} >= NOTES for score in run.scores())
    assert files(run) == ["epoch-0002.test~pca:3~9.h5", "epoch-0002.train~9.h5"]  # train is not asked for
    scores = probe(run, replace(REQUEST, post=("first:4",)), Silent())
    assert all("raw features are not stored" in score.notes for score in scores)


def test_a_map_that_is_fitted_on_what_is_searched_takes_a_sample_of_it(run: Run) -> None:
    scores = probe(run, replace(REQUEST, fit="gallery", splits=("test",)), Silent())
    assert files(run) == ["epoch-0002.test~9.h5", "epoch-0002.test~pca:3@gallery~9.h5"]
    assert all("fitted on 9 of 16 test images" in score.notes for score in scores)


def test_it_is_resumed_from_the_stored_sample(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = probe(run, REQUEST, Silent())
    before = {path: path.read_bytes() for path in run.folder.rglob("*~*.h5")}
    run.feature_file(2, "test~pca:3~9").unlink()
    assert probe(run, REQUEST, Silent()) == scores
    assert {path: path.read_bytes() for path in run.folder.rglob("*~*.h5")} == before
    monkeypatch.setattr(probed_run, "extract", None)
    assert probe(run, REQUEST, Silent()) == scores


def test_the_same_map_of_raw_features_is_another_number(run: Run) -> None:
    probe(run, REQUEST, Silent())
    scores = probe(run, replace(REQUEST, store_post=None), Silent())
    assert not any("not stored" in note for score in run.scores() for note in score.notes)
    assert len(run.scores()) == len(scores)


def test_it_lies_in_several_files_and_as_float16(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("measure.extraction", "workflow.probe.probed_run"):
        monkeypatch.setattr(f"layerprobe.{module}.BATCH_SIZE", 4)
    scores = probe(run, replace(REQUEST, shard_rows=8, store="float16"), Silent())
    assert all("stored as float16" in score.notes for score in scores)
    with h5py.File(run.folder / "features" / "epoch-0002.test~pca:3~9" / "00001-of-00002.h5") as file:
        assert (file["features/fc6@none"].shape, file["features/fc6@none"].dtype) == ((8, 3), np.float16)


def test_a_layer_is_chosen_among_them_and_what_needs_raw_features_says_so(
    request_for: Callable[..., TrainRequest], tmp_path: Path
) -> None:
    run = train(request_for("data.validation_classes=0.5", "train.batch_size=4", "train.epochs=0"), Silent())
    probe(run, replace(REQUEST, store_post=5), Silent())
    choice = choose_runs([run], ChooseRequest(device="cpu"), Silent())
    assert "on 2 validation classes" in str(choice)
    assert "PCA to 3" in str(choice)
    command = "Run layerprobe probe tiny .*--post pca:3"
    request = ExportRequest(tmp_path / "out", ("npz",), layer="pool5.3/pca:3")
    with pytest.raises(DataError, match=f"that pool5.3@max/pca:3 was ranked by are not stored.*{command}"):
        export_run(layer_to_export(run, request, Silent()), request, Silent())
    with pytest.raises(DataError, match=r"epoch-0000.validation.h5: no such feature file. Run layerprobe probe tiny"):
        threshold(run, ThresholdRequest(layer="pool5.3/pca:3"), Silent())


def test_maps_to_be_fitted_within_folds_of_the_selection_classes_need_raw_features(
    request_for: Callable[..., TrainRequest],
) -> None:
    run = train(request_for("train.epochs=0"), Silent())  # untrained, so that its train classes are chosen on
    probe(run, REQUEST, Silent())
    message = r"no layer can be chosen: skipped: .*, .* no such feature file. Run layerprobe probe tiny"
    with pytest.raises(DataError, match=message):
        choose_runs([run], ChooseRequest(device="cpu"), Silent())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"post": None}, "--store-post stores what one post-processing gives. Give one post-processing, such as"),
        ({"post": ("none",)}, "--store-post stores what one post-processing gives"),
        ({"post": ("pca:3", "pca:2")}, "--store-post stores what one post-processing gives"),
        ({"post": ("pca:3+binary",)}, "--store-post: pca:3.binary gives bit. Give one that gives float32"),
        ({"post": ("random:2x2",)}, "--store-post: random:2x2 gives several draws"),
    ],
)
def test_what_is_not_one_map_of_float32_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        replace(REQUEST, **changes)  # type: ignore[arg-type] # fields of a request


def test_what_needs_raw_features_is_refused_before_any_work(run: Run) -> None:
    with pytest.raises(RecipeError, match=r"pool5.3\+fc6@max is made of the raw features of several layers. Leave it"):
        probe(run, replace(REQUEST, layers=("pool5.3+fc6",)), Silent())
    with pytest.raises(RecipeError, match="--dry-run does not estimate --store-post"):
        estimate_probe(run, REQUEST)
    assert not (run.folder / "features").exists()
