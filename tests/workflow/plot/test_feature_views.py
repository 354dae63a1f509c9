from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from layerprobe import store
from layerprobe.measure.distributions import LabelledFeatures
from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.intervals import IntervalKind, SamplingUnits
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from layerprobe.values.views import Selected
from layerprobe.workflow.plot.feature_views import (
    histograms_of,
    open_stored,
    read_layers,
    select_layers,
    selected_error_rates,
    selected_histograms,
    spectra_of,
)
from layerprobe.workflow.probe.chains import IN_SAMPLE
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.scores import with_layer
from tests.workflow import drawn_run, selection_runs

NAMES = ("pool1", "pool2", "pool3", "pool4", "pool5", "fc6")
SCORE = Score("one", "abc", 0, 1, "test", RankedLayer(LayerKey("fc6", "none"), "none", "cosine"), "R@1", 0.5, None, 4)


def scores_of(
    names: Sequence[str] = NAMES,
    splits: Sequence[str] = ("train", "test"),
    *,
    post_processing: str = "none",
    similarity: str = "cosine",
) -> list[Score]:
    layers = [RankedLayer(LayerKey(name, "none"), post_processing, similarity) for name in names]
    return [replace(SCORE, ranked=ranked, split=split) for ranked in layers for split in splits]


def read(split: str, ranked: RankedLayer) -> LabelledFeatures:
    values = np.random.default_rng(len(split)).normal(size=(6, 3))
    return LabelledFeatures(values, np.arange(6) % 2)


def layers_shown(scores: Sequence[Score], layers: tuple[str, ...] | None = None, epoch: int | None = None) -> list[str]:
    return [
        ranked.layer.layer
        for ranked, _ in read_layers(scores, read, select_layers([scores], PlotOptions(layers, epoch), {}))
    ]


def test_the_few_that_stand_for_all_are_shown_or_those_asked_for() -> None:
    assert layers_shown(scores_of()) == ["pool1", "pool3", "pool5", "fc6"]
    assert layers_shown(scores_of(), ("fc6", "pool2")) == ["pool2", "fc6"]
    with pytest.raises(UnknownNameError, match="Did you mean 'pool5'"):
        layers_shown(scores_of(), ("pol5",))


def test_runs_share_the_layer_that_is_best_on_validation_in_the_mean() -> None:
    first = [
        *scores_of(),
        replace(with_layer(SCORE, layer="pool2"), split="validation", value=0.9),
    ]
    validation = {"pool2": 0.1, "pool4": 0.6}
    second = [
        *scores_of(),
        *(replace(s, value=validation[s.ranked.layer.layer]) for s in scores_of([*validation], ["validation"])),
    ]
    choice = select_layers([first, second], PlotOptions(), {})
    # pool2 has 0.5 in the mean, pool4 0.6
    assert [ranked.layer.layer for ranked, _ in read_layers(first, read, choice)] == [
        "pool1",
        "pool3",
        "pool4",
        "pool5",
        "fc6",
    ]


def test_post_processed_layers_are_shown_where_they_are_asked_for() -> None:
    scores = [*scores_of(), *scores_of(["fc6"], post_processing="pca:2")]
    assert layers_shown(scores) == ["pool1", "pool3", "pool5", "fc6"]
    assert layers_shown(scores, ("fc6/pca:2",)) == ["fc6"]


def test_a_layer_that_is_searched_in_two_ways_is_shown_once() -> None:
    scores = [*scores_of(["fc6"]), *scores_of(["fc6"], similarity="euclidean")]
    assert layers_shown(scores) == layers_shown(scores, ("fc6",)) == ["fc6"]


@pytest.mark.parametrize(
    ("post_processing", "reason"), [("binary", "binary codes, not vectors"), ("random:2x3", "a mean over draws")]
)
def test_what_is_no_vectors_is_refused(post_processing: str, reason: str) -> None:
    scores = scores_of(["fc6"], post_processing=post_processing)
    with pytest.raises(RecipeError, match=f"fc6 after {post_processing}: {reason}. Ask for the raw layer"):
        layers_shown(scores, (f"fc6/{post_processing}",))


def test_the_last_epoch_is_shown_or_the_one_asked_for() -> None:
    scores = [*scores_of(["fc6"]), *(replace(score, epoch=4) for score in scores_of(["fc6"]))]
    for epoch, expected in ((None, 4), (1, 1)):
        assert {
            each.epoch for each in histograms_of(scores, read, select_layers([scores], PlotOptions(epoch=epoch), {}))
        } == {expected}
    with pytest.raises(RecipeError, match="no scores of epoch 3. Known: 1, 4"):
        select_layers([scores], PlotOptions(epoch=3), {})


def test_spectra_have_the_notes_of_their_split() -> None:
    scores = scores_of(["fc6"])
    noted = lambda split, ranked: replace(read(split, ranked), notes=(f"{split} note",))  # noqa: E731
    found = spectra_of(scores, noted, select_layers([scores], PlotOptions(), {}))
    assert [(each.split, each.notes, len(each.places)) for each in found] == [
        ("train", ("train note",), 3),
        ("test", ("test note",), 3),
    ]


def test_splits_that_were_not_probed_are_left_out() -> None:
    scores = [*scores_of(["fc6"], ["test"]), *scores_of(["fc5"], ["validation"])]
    found = histograms_of(scores, read, select_layers([scores], PlotOptions(), {}))
    assert {(each.split, each.ranked.layer.layer) for each in found} == {("test", "fc6")}
    with pytest.raises(DataError, match="one: no layer was probed on the training or test split"):
        layers_shown(scores_of(["fc6"], ["validation"]))


def test_stored_features_are_read_with_the_notes_that_all_scores_have(tmp_path: Path) -> None:
    values = probed(tmp_path)
    scores = [
        replace(score, metric=metric, notes=notes)
        for metric, notes in (("R@1", ("partial", "tied")), ("R@2", ("partial",)))
        for score in scores_of(["fc6"])
    ]
    units = SamplingUnits(IntervalKind(), 6)  # there is no interval in these figures
    scores = [replace(score, units=units) for score in scores]
    own, reads = open_stored(Run(tmp_path / "one"), scores, None)
    found = reads("test", scores[0].ranked)
    assert np.array_equal(found.features, values["test"])
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert (found.notes, own) == (("partial",), scores)


def test_a_split_whose_features_are_gone_is_left_out_and_told(tmp_path: Path) -> None:
    probed(tmp_path)
    run, scores = Run(tmp_path / "one"), scores_of(["fc6"])
    run.feature_file(1, "train").unlink()
    own, reads = open_stored(run, scores, None)
    found = histograms_of(own, reads, select_layers([own], PlotOptions(), {}))
    assert {(each.split, each.notes) for each in found} == {("test", ("no features of train are stored",))}
    run.feature_file(1, "test").unlink()
    own, reads = open_stored(run, scores, None)
    with pytest.raises(DataError, match="epoch-0001.train.h5: no such feature file. Run layerprobe probe .*first"):
        histograms_of(own, reads, select_layers([own], PlotOptions(), {}))


def test_post_processed_features_are_those_that_the_search_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = probed(tmp_path)
    monkeypatch.setattr(StoredSearch, "_searches_itself", True)
    _, reads = open_stored(Run(tmp_path / "one"), scores_of(["fc6"]), None)
    found = reads("test", replace(SCORE.ranked, post_processing="pca:2"))
    train = values["train"].astype(np.float64)
    axes = np.linalg.svd(train - train.mean(0))[2][:2]
    expected = (values["test"] - train.mean(0)) @ axes.T
    assert np.abs(found.features) == pytest.approx(np.abs(expected), abs=1e-5)


def probed(folder: Path) -> dict[str, NDArray[np.float32]]:
    """A run with features of fc6 at epoch 1."""
    run, layer = Run(folder / "one"), LayerKey("fc6", "none")
    run.folder.mkdir(parents=True)
    run.write(
        recorded({
            "state": "finished", "recipe_name": "netA", "recipe": {}, "experiment": "abc", "seed": 0, "epochs_done": 1,
            "hashes": {}, "manifests": {}, "new_parameters": [],
        })
    )  # fmt: skip
    rng = np.random.default_rng(0)
    found = {split: rng.normal(size=(8, 3)).astype(np.float32) for split in ("train", "test")}
    for split, values in found.items():
        rows = store.Rows(np.arange(8) % 2, [f"{split}{i}" for i in range(8)])
        key = store.FeatureKey("one", 1, split, "", "", "")
        store.write_features(
            run.feature_file(1, split), key, rows, store.Columns({layer: 3}, "cpu", 8), [{layer: values}]
        )
    return found


def test_without_training_images_a_selected_map_is_fitted_on_validation(tmp_path: Path) -> None:
    rng, splits = np.random.default_rng(0), ("validation", "test")
    features = {split: {"fc6@none": rng.normal(size=(80, 4)).astype(np.float32)} for split in splits}
    ranks = {split: {selection_runs.FC6: np.ones(80)} for split in splits}
    run, pca = selection_runs.write_run(tmp_path, "one", ranks, features=features), PCA(2)
    score = replace(SCORE, run="one", epoch=2, ranked=replace(selection_runs.FC6, post_processing="pca:2"))
    selected = Selected("fc6, PCA to 2", score, 2)
    (rates,) = selected_error_rates(run, run.scores(), selected)
    same_class, _ = selected_histograms(run, run.scores(), selected)
    values = pca.fit(features["validation"]["fc6@none"]).transform(features["test"]["fc6@none"])
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    labels, (rows, columns) = selection_runs.labels_of("test"), np.triu_indices(80, 1)
    genuine = (values @ values.T)[rows, columns][labels[rows] == labels[columns]]
    assert same_class.median == pytest.approx(np.median(genuine), abs=1e-3)
    assert rates.set_on == "validation"
    assert any(note.startswith("thresholds are set on pairs within each fifth") for note in rates.notes)


def test_features_of_the_classes_that_their_map_is_fitted_with_say_so(tmp_path: Path) -> None:
    run = drawn_run.write_run(tmp_path)
    _, read_stored = open_stored(run, run.scores(), 1)
    notes = {
        split: read_stored(split, replace(drawn_run.FC6, post_processing="lda:2")).notes for split in ("train", "test")
    }
    assert [IN_SAMPLE in of_split for of_split in notes.values()] == [True, False]
