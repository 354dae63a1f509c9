from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA

import layerprobe
from layerprobe.store import read_feature_head, read_rank_file
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.workflow.compare.compare import compare
from layerprobe.workflow.compare.request import CompareRequest
from layerprobe.workflow.python.probed import Probed
from layerprobe.workflow.run.runs import Run
from tests.workflow.python.test_probe_model import TEST, TRAIN, nearest_has_the_class, number, small_model

BOTH = {"train": TRAIN, "test": TEST}


def unit(features: NDArray[np.float32]) -> NDArray[np.float64]:
    rows = features.astype(np.float64)
    found: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def probed(*post_process: str, layers: str = "0.0,0.1", **asked: object) -> Probed:
    splits = asked.pop("splits", BOTH)
    return layerprobe.probe(small_model(), splits, layers=layers, ks=(1,), pools="max", post=post_process, **asked)  # type: ignore[arg-type] # one test's fields each


@pytest.fixture(scope="module")
def result() -> Probed:
    return probed("none", "l2+pca:3+l2", "binary", "random:2x3", layers="0.0,0.1,0.1+0.0")


def test_post_processing_is_fitted_on_the_training_images(result: Probed) -> None:
    raw = {split: result.features[split, "0.1"] for split in ("train", "test")}
    pca = PCA(3, svd_solver="full").fit(unit(raw["train"]))
    for split in ("train", "test"):
        expected = unit(pca.transform(unit(raw[split])).astype(np.float32))
        found = result.features[split, "0.1/l2+pca:3+l2"]
        np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)
        by_hand = nearest_has_the_class(found, result.labels[split])
        assert result.ranks[split, "0.1@max/l2+pca:3+l2"].recall(1) == by_hand
        assert number(result.scores, split=split, layer="0.1", post_processing="l2+pca:3+l2", metric="R@1") == by_hand


def test_layers_side_by_side_are_made_of_their_features(result: Probed) -> None:
    members = [unit(result.features["test", name]) for name in ("0.0", "0.1")]
    np.testing.assert_allclose(result.features["test", "0.1+0.0@max"], np.concatenate(members, axis=1), rtol=1e-6)
    by_hand = nearest_has_the_class(result.features["test", "0.0+0.1"], result.labels["test"])
    assert number(result.scores, split="test", layer="0.0+0.1", post_processing="none", metric="R@1") == by_hand
    post_processed = result.features["test", "0.0+0.1/l2+pca:3+l2"]
    assert post_processed.shape == (9, 3)
    assert result.ranks["test", "0.0+0.1@max/l2+pca:3+l2"].recall(1) == nearest_has_the_class(
        post_processed, result.labels["test"]
    )


def test_binary_codes_are_searched_by_hamming(result: Probed) -> None:
    (score,) = [
        s
        for s in result.scores
        if (s.split, s.ranked.layer.layer, s.ranked.post_processing) == ("test", "0.1", "binary")
    ]
    assert score.ranked.similarity == "hamming"
    codes = result.features["test", "0.1/binary"]
    assert (str(codes.dtype), codes.shape) == ("uint8", (9, 1))
    np.testing.assert_array_equal(codes, np.packbits(result.features["test", "0.1"] > 0, axis=1))


def test_numbers_of_fewer_bits_are_given_as_such() -> None:
    found = probed("none", "l2+int8", "float16")
    raw = found.features["test", "0.1"].astype(float)
    codes = found.features["test", "0.1/l2+int8"]
    assert codes.dtype == np.int8
    np.testing.assert_allclose(codes, raw / np.abs(raw).max(1, keepdims=True) * 127, atol=0.5)
    halves = found.features["test", "0.1/float16"]
    assert halves.dtype == np.float16
    np.testing.assert_array_equal(halves, raw.astype(np.float16))
    by_hand = nearest_has_the_class(codes.astype(float), found.labels["test"])
    assert found.ranks["test", "0.1/l2+int8"].recall(1) == by_hand


def test_numbers_that_float16_cannot_hold_are_told_with_the_fix() -> None:
    long = {split: [(1e7 * images, labels) for images, labels in batches] for split, batches in BOTH.items()}
    with pytest.raises(RecipeError, match="no layer can take float16: .*ends at 65,504. Put l2 before float16"):
        probed("none", "float16", splits=long)
    assert probed("l2+float16", splits=long).scores


def test_a_mean_over_draws_is_that_of_its_ranks(result: Probed) -> None:
    (score,) = [
        s
        for s in result.scores
        if (s.split, s.ranked.layer.layer, s.ranked.post_processing) == ("test", "0.1", "random:2x3")
    ]
    draws = [result.ranks["test", f"0.1/random:2{draw}"].recall(1) for draw in ("", ":1", ":2")]
    assert score.value == pytest.approx(np.mean(draws))
    assert "mean of 3 draws" in score.notes


def test_rows_tables_and_plots_have_post_processings_and_layers_side_by_side(result: Probed) -> None:
    rows = dict.fromkeys((score.ranked.layer.layer, score.ranked.post_processing) for score in result.scores)
    assert list(rows) == [
        (layer, post_processing)
        for layer in ("0.0", "0.1", "0.0+0.1")
        for post_processing in ("none", "binary", "l2+pca:3+l2", "random:2x3")
    ]
    assert "0.0+0.1" in str(result.table())
    assert set(result.frame()["post_processing"]) == {"none", "binary", "l2+pca:3+l2", "random:2x3"}
    for kind in ("layers", "train-vs-test"):
        assert result.plot(kind).axes
    compared = result.plot("cka").axes[0].get_yticklabels()
    assert [label.get_text() for label in compared] == ["0.0@max", "0.1@max"]


def test_post_processing_fitted_on_what_is_searched_says_so() -> None:
    found = probed("none", "pca:2", "l2", fit="gallery", splits={"test": TEST})
    notes = {score.ranked.post_processing: score.notes for score in found.scores}
    told = {
        post_processing: "transductive: fitted on the images searched" in of for post_processing, of in notes.items()
    }
    assert told == {"none": False, "pca:2@gallery": True, "l2": False}
    raw = found.features["test", "0.1"]
    expected = PCA(2, svd_solver="full").fit_transform(raw.astype(np.float64))
    projected = found.features["test", "0.1/pca:2@gallery"]
    np.testing.assert_allclose(projected @ projected.T, expected @ expected.T, rtol=1e-4, atol=1e-4)


def test_without_training_images_nothing_is_fitted_on_them() -> None:
    message = 'pca:2 is fitted on training classes, and there is no train split. Give a train split, or fit="gallery"'
    with pytest.raises(RecipeError, match=message):
        probed("none", "pca:2", splits={"test": TEST})
    assert probed("l2", splits={"test": TEST}).scores


def test_what_a_layer_cannot_take_is_told_where_others_can() -> None:
    with pytest.warns(UserWarning, match="pca:5 skipped for 0.0@max"):
        found = probed("pca:5")
    assert {score.ranked.layer.layer for score in found.scores} == {"0.1"}
    with pytest.raises(RecipeError, match="no layer can take pca:9"):
        probed("pca:9")
    with pytest.raises(RecipeError, match="no layer can take shift: .*a model from Python brings none"):
        probed("shift")


def test_what_is_no_post_processing_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown post-processing 'binery'. Did you mean 'binary'"):
        probed("binery")
    with pytest.raises(UnknownNameError, match="unknown split to fit on 'test'"):
        probed("l2", fit="test")
    with pytest.raises(RecipeError, match="post is empty"):
        probed()


def test_a_post_processed_layer_that_is_not_there_is_told(result: Probed) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean '0.1@max/l2.pca:3.l2'"):
        result.ranks["test", "0.1@max/l2+pca:4+l2"]


def test_a_run_keeps_what_was_post_processed_and_its_ranks_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = probed("none", "l2+pca:3+l2", layers="0.1+0.0", cache=tmp_path)
    run = Run(tmp_path / found.name)
    assert set(map(str, read_feature_head(run.feature_file(0, "test")).columns)) == {"0.0@max", "0.1@max"}
    assert run.read().layer_order == ("0.0", "0.1")
    stored = read_rank_file(run.rank_file(0, "test")).stored.ranks
    assert {(ranked.layer.layer, ranked.post_processing) for ranked in stored} == {
        ("0.0+0.1", "none"), ("0.0+0.1", "l2+pca:3+l2"),
    }  # fmt: skip
    probed("l2", layers="0.1", cache=tmp_path)
    assert len(run.scores()) == 2 * 2 + 2
    (compared,) = compare(CompareRequest(tmp_path, f"{found.name}:0.0+0.1/l2+pca:3+l2", f"{found.name}:0.1/l2"))
    assert compared.values is not None
    assert compared.values[0] == found.ranks["test", "0.0+0.1/l2+pca:3+l2"].recall(1)
    opened = layerprobe.open_run(run.folder).features(epoch=0, split="test", layer="0.1+0.0")
    np.testing.assert_array_equal(opened, found.features["test", "0.0+0.1"])


def test_features_fitted_on_images_in_another_order_are_ranked_again(tmp_path: Path) -> None:
    first = probed("pca:2", layers="0.1", cache=tmp_path)
    images, labels = (torch.cat(parts) for parts in zip(*TRAIN, strict=True))
    turned = [(images.flip(0), labels.flip(0))]
    with pytest.warns(UserWarning, match="2 scores leave .*, as features or ranks hold no longer: 0.1@max"):
        again = probed("none", layers="0.1", cache=tmp_path, splits={"train": turned, "test": TEST})
    assert again.name == first.name
    ranks = read_rank_file(Run(tmp_path / first.name).rank_file(0, "test")).stored.ranks
    assert [ranked.post_processing for ranked in ranks] == ["none"]


def test_features_are_extracted_side_by_side() -> None:
    images = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    found = layerprobe.extract(small_model(), ["0.1+0.0@max", "0.0@max"], images)
    assert {name: values.shape for name, values in found.items()} == {"0.0@max": (4, 4), "0.0+0.1@max": (4, 10)}
    np.testing.assert_allclose(found["0.0+0.1@max"][:, :4], unit(found["0.0@max"]), rtol=1e-6)
