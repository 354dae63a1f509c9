from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from layerprobe import store
from layerprobe.cli.output import Terminal
from layerprobe.data.splits import Dataset, Split
from layerprobe.statistics.choice import folds_of_queries
from layerprobe.statistics.pair_rates import rate_intervals
from layerprobe.statistics.units import UnitSums, intervals
from layerprobe.system.errors import DataError, NumericError, RecipeError, UnknownNameError
from layerprobe.values.thresholds import MeasuredThresholds
from layerprobe.workflow.choose.user_features import check_features
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run import from_recipe, units
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.threshold.request import ThresholdRequest
from layerprobe.workflow.threshold.threshold import (
    pairs_to_set_on,
    split_in_halves,
    threshold,
    threshold_of_features,
    threshold_table,
)
from tests.post_processing.fitting import stored
from tests.workflow.selection_runs import C2, FC6, labels_of, write_run
from tests.workflow.stored_ranks import ranked

CLASSES = 20
HITS = np.ones(4 * CLASSES)


def features(split: str, seed: int, spread: float = 0.5) -> dict[str, NDArray[np.float32]]:
    """Four images around each class's centre, in 4 dimensions; and a layer that has collapsed."""
    rng, labels = np.random.default_rng(seed), labels_of(split, CLASSES)
    own = rng.normal(size=(CLASSES, 4))[labels - labels[0]] + spread * rng.normal(size=(len(labels), 4))
    return {"fc6@none": own.astype(np.float32), "c2@max": np.ones((len(labels), 3), np.float32)}


def run_of(cache: Path, splits: Sequence[str] = ("validation", "test"), **more: Any) -> Run:
    hits = {split: {FC6: HITS, C2: HITS} for split in splits}
    values = {split: features(split, seed) for seed, split in enumerate(splits)}
    return write_run(cache, "one", hits, features=values, **more)


def brute_force(split: str, seed: int, at_least: float) -> tuple[int, int]:
    """How many impostor and genuine pairs are accepted."""
    own, labels = features(split, seed)["fc6@none"].astype(float), labels_of(split, CLASSES)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    rows, columns = np.triu_indices(len(labels), 1)
    above, genuine = (own @ own.T)[rows, columns] >= at_least, labels[rows] == labels[columns]
    return int((above & ~genuine).sum()), int((above & genuine).sum())


def made(run: Run, layer: str | None = "fc6", rates: Sequence[float] = (0.1, 0.01)) -> MeasuredThresholds:
    return threshold(run, ThresholdRequest(layer, tuple(rates)), Terminal(quiet=True))


def test_a_threshold_of_validation_is_measured_on_test(tmp_path: Path) -> None:
    found = made(run_of(tmp_path))
    assert [row.asked for row in found.thresholds] == [0.01, 0.1]
    assert (found.set_on.split, found.set_on.genuine, found.set_on.impostor) == ("validation", 120, 3040)
    for row in found.thresholds:
        assert (row.set_far.accepted, row.set_tar.accepted) == brute_force("validation", 0, row.similarity)
        assert (row.far.accepted, row.tar.accepted) == brute_force("test", 1, row.similarity)
        # 30 and 304 of the impostor pairs are as many as may be accepted
        assert row.set_far.accepted == round(3040 * row.asked - 0.5)
        assert row.far.low is not None
        assert row.far.low < row.far.value < (row.far.high or 0)
        assert row.set_far.low is None


def test_features_larger_than_the_memory_are_paired_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, listener = run_of(tmp_path), Terminal(quiet=True)
    expected = threshold(run, ThresholdRequest("fc6"), listener)
    monkeypatch.setattr(store.FeatureFile, "read", None)  # a layer whole
    assert threshold(run, ThresholdRequest("fc6", memory=1), listener) == expected


def test_the_table_has_80_columns_and_few_lines(tmp_path: Path) -> None:
    table = threshold_table(made(run_of(tmp_path)))
    assert table.columns == ("asked\nFAR", "threshold", "valid.\nFAR", "valid.\nTAR", "test\nFAR", "test\nTAR")
    assert table.heading[0] == "one#2:fc6: accept if the cosine is at least the threshold"
    assert len(table.notes) <= 4
    assert table.notes[1].startswith("test: 120 genuine and 3,040 impostor pairs of 20 classes, EER ")
    assert all(len(line) <= 90 for line in table.notes)


def test_unseen_training_classes_take_the_place_of_validation(tmp_path: Path) -> None:
    net, data = {"weights": "imagenet"}, {"seen": False}
    run = run_of(tmp_path, ("train", "test"), epochs=(0,), net=net, data=data)
    found = made(run)
    assert (found.set_on.split, found.epoch) == ("train", 0)
    table = threshold_table(found)
    assert table.columns[2] == "selection\nFAR"
    assert table.notes[0].startswith("selection classes: 120 genuine")


def test_seen_training_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="one has seen its training classes.*Train with classes held out"):
        made(run_of(tmp_path, ("train", "test")))


def test_test_classes_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no classes to set a threshold on but those of test. Give two splits"):
        made(run_of(tmp_path, ("test",)))


def test_a_collapsed_layer_accepts_nothing_and_says_so(tmp_path: Path) -> None:
    found = made(run_of(tmp_path), "c2")
    assert [(row.far.accepted, row.tar.accepted) for row in found.thresholds] == [(0, 0), (0, 0)]
    assert found.set_on.equal_error_rate == pytest.approx(0.5)
    assert "all similarities are equal to 1e-6 on validation and test: it has collapsed" in found.notes


def test_a_rate_below_one_pair_is_told(tmp_path: Path) -> None:
    found = made(run_of(tmp_path), rates=[1e-4])
    assert found.thresholds[0].set_far.accepted == 0
    assert found.notes[0].startswith("0.01 %: less than 1 of the 3,040 impostor pairs of validation")
    assert "10,000 pairs would be needed" in found.notes[0]
    assert "inconclusive" in threshold_table(found).notes[2]


def bits_of(cache: Path, rate: float) -> MeasuredThresholds:
    """Thresholds of the signs of the same features on both splits."""
    bits = replace(FC6, post_processing="binary", similarity="hamming")
    hits = {split: {FC6: HITS, bits: HITS} for split in ("validation", "test")}
    return made(
        write_run(cache, "one", hits, features={split: features(split, 0) for split in hits}), "fc6/binary", [rate]
    )


def test_codes_of_8_bits_have_the_cosines_of_their_integers(tmp_path: Path) -> None:
    codes = replace(FC6, post_processing="int8")
    hits = {split: {FC6: HITS, codes: HITS} for split in ("validation", "test")}
    values = {split: features(split, seed) for seed, split in enumerate(hits)}
    found = made(write_run(tmp_path, "one", hits, features=values), "fc6/int8")
    for split, seed in (("validation", 0), ("test", 1)):
        own, labels = features(split, seed)["fc6@none"].astype(float), labels_of(split, CLASSES)
        integers = np.rint(own / np.abs(own).max(1, keepdims=True) * 127)
        lengths = np.sqrt((integers**2).sum(1))
        rows, columns = np.triu_indices(len(labels), 1)
        cosines = (integers @ integers.T)[rows, columns] / lengths[rows] / lengths[columns]
        for row in found.thresholds:
            accepted = (cosines >= row.similarity) & (labels[rows] != labels[columns])
            assert (row.set_far if split == "validation" else row.far).accepted == accepted.sum()


def test_bits_that_tie_above_the_rate_are_told(tmp_path: Path) -> None:
    found = bits_of(tmp_path, 0.001)
    assert (found.thresholds[0].similarity, found.thresholds[0].set_far.accepted) == (1, 0)
    assert found.notes[0].startswith("0.1 %: more of the impostor pairs of validation tie for the most similar")
    assert "inconclusive" in threshold_table(found).notes[2]


def test_what_ties_cost_is_no_lack_of_transfer(tmp_path: Path) -> None:
    found = bits_of(tmp_path, 0.3)
    (row,) = found.thresholds
    assert row.far.value == row.set_far.value
    assert row.far.high is not None
    assert row.far.high < 0.3
    assert threshold_table(found).notes[2].startswith("the FAR of validation lies in the interval on test")


def test_few_classes_are_told(tmp_path: Path) -> None:
    assert made(run_of(tmp_path)).notes == (f"interval over few classes: {CLASSES}",)


def test_without_a_layer_it_is_the_chosen_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = threshold(run_of(tmp_path), ThresholdRequest(rates=(0.01,)), Terminal())
    assert str(found.ranked) == "fc6"
    assert "one: layer fc6 of epoch 2, as layerprobe choose one --epochs last --cache" in capsys.readouterr().err


def test_nan_is_told(tmp_path: Path) -> None:
    values = {split: features(split, 0) for split in ("validation", "test")}
    run = write_run(tmp_path, "one", {split: {FC6: HITS} for split in values}, features=values)
    values["test"]["fc6@none"][3] = np.nan
    broken = write_run(
        tmp_path / "b", "one", {split: {ranked("fc6@none", "l2"): HITS} for split in values}, features=values
    )
    assert made(run).set_on.images == 80
    with pytest.raises(NumericError, match="fc6/l2 has no threshold on test: 1 of 80 feature rows hold NaN or Inf"):
        made(broken, "fc6/l2")


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("nolayer", "layer 'nolayer' is not ranked"),
        ("two:fc6", "--layer two:fc6: thresholds are of one#2. Name the run before --layer"),
        ("one#1:fc6", "--layer one#1:fc6: thresholds are of one#2"),
        ("*", "names several layers. Choose one of c2@max, fc6"),
        ("fc6/random:2x2", "fc6/random:2x2: a mean over draws"),
        ("fc6/whiten:2:1@gallery", "fitted on the searched images"),
    ],
)
def test_a_layer_without_one_map_is_refused(tmp_path: Path, layer: str, message: str) -> None:
    post_processed = [
        ranked("fc6@none", "whiten:2:1@gallery"),
        *(ranked("fc6@none", f"random:2{x}") for x in ("", ":1")),
    ]
    layers = dict.fromkeys((FC6, C2, *post_processed), HITS)
    values = {split: features(split, 0) for split in ("validation", "test")}
    with pytest.raises(RecipeError, match=message.replace("*", r"\*")):
        made(write_run(tmp_path, "one", dict.fromkeys(values, layers), features=values), layer)


def nested(classes_of: int) -> Dataset:
    """The data set of a run of `run_of`: so many neighbouring classes in a folder."""

    def no_image(index: int) -> NDArray[np.uint8]:
        raise AssertionError(index)

    splits = {}
    for split in ("validation", "test"):
        labels = labels_of(split, CLASSES)
        ids = tuple(f"{split}{label}-{place}" for place, label in enumerate(labels))
        splits[split] = Split(split, labels, ids, no_image, columns={"half": tuple("ab" * (len(labels) // 2))})
    return Dataset(splits, tuple(f"{label // classes_of}/{label}" for label in range(300)))


def clustered(cache: Path, monkeypatch: pytest.MonkeyPatch, classes_of: int, cluster: str) -> MeasuredThresholds:
    monkeypatch.setattr(units, "recorded_recipe", lambda *_: SimpleNamespace(data=None))
    monkeypatch.setattr(from_recipe, "load_dataset", lambda _: nested(classes_of))
    return threshold(run_of(cache), ThresholdRequest("fc6", (0.1,), cluster), Terminal(quiet=True))


def test_the_intervals_over_clusters_are_those_of_pairs_merged_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = clustered(tmp_path, monkeypatch, 2, "parent")
    own, labels = features("test", 1)["fc6@none"].astype(float), labels_of("test", CLASSES)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    above = own @ own.T >= found.thresholds[0].similarity
    impostor, impostor_pairs = np.zeros((2, 10, 10), int)
    genuine, genuine_pairs = np.zeros((2, 10), int)
    for i, j in zip(*np.triu_indices(len(labels), 1), strict=True):
        u, v = sorted(((labels[i] - 200) // 2, (labels[j] - 200) // 2))
        if labels[i] == labels[j]:
            genuine_pairs[u] += 1
            genuine[u] += above[i, j]
        else:
            impostor_pairs[u, v] += 1
            impostor[u, v] += above[i, j]
    assert impostor_pairs.diagonal().tolist() == [16] * 10  # classes of one folder are impostors, too
    (far,) = rate_intervals(impostor[None], impostor_pairs, classes=20)
    (tar,) = intervals(UnitSums(genuine[None].astype(float), genuine_pairs[None].astype(float)))
    (row,) = found.thresholds
    assert (row.far.accepted, row.tar.accepted) == (impostor.sum(), genuine.sum())
    assert far is not None
    assert tar is not None
    assert (row.far.low, row.far.high) == pytest.approx((far.low, far.high))
    assert (row.tar.low, row.tar.high) == pytest.approx((tar.low, tar.high))
    assert threshold_table(found).heading[1].endswith("in % [95 % over clusters of classes (parent)]")
    assert (found.cluster, found.notes) == ("parent", ("interval over few clusters: 10",))


def test_fewer_than_ten_clusters_have_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = clustered(tmp_path, monkeypatch, 4, "parent")
    assert (found.thresholds[0].far.low, found.thresholds[0].tar.low) == (None, None)
    assert found.notes == ("no interval: 5 clusters, at least 10 are needed",)


@pytest.mark.parametrize(
    ("cluster", "kind", "message"),
    [
        ("parnt", UnknownNameError, "unknown column in --cluster: 'parnt'. Did you mean 'parent'"),
        ("half", RecipeError, "--cluster half: images of class 200 are of several. Leave --cluster out, or name"),
    ],
)
def test_what_is_no_cluster_is_refused_before_anything_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str, kind: type[Exception], message: str
) -> None:
    monkeypatch.setattr("layerprobe.workflow.threshold.threshold.layer_pairs", lambda *_: pytest.fail("compared"))
    with pytest.raises(kind, match=message):
        clustered(tmp_path, monkeypatch, 2, cluster)


def test_a_note_says_that_classes_lie_in_folders_unless_they_are_the_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head_of, names = Run.feature_head, tuple(nested(2).class_names)
    monkeypatch.setattr(Run, "feature_head", lambda *place: replace(head_of(*place), class_names=names))
    note = (
        "classes lie in 10 folders (100, 101, 102, 103, 104 and 5 more): if those of a folder are alike, add --cluster"
    )
    assert any(one.startswith(note) for one in made(run_of(tmp_path)).notes)
    found = clustered(tmp_path / "b", monkeypatch, 2, "parent")
    assert not any("folders" in one for one in found.notes)


def test_few_classes_in_most_pairs_are_told(tmp_path: Path) -> None:
    # 11 classes, one of 12 images and ten of 2. It is in 12 x 20 = 240 of 240 + 4 x 45 = 420 impostor pairs, each other
    # one in 2 x 30 = 60: 840^2 / (240^2 + 10 x 60^2) = 7.54. Genuine pairs: 76^2 / (66^2 + 10) = 1.32
    labels = np.repeat(np.arange(11), [12, *[2] * 10])
    values = np.random.default_rng(0).normal(size=(32, 4))
    given = check_features(
        {"a": np.r_[values, values]}, np.r_[labels, labels + 20], np.repeat(["validation", "test"], 32)
    )
    found = threshold_of_features(given, ThresholdRequest("a", (0.1,)), Terminal(quiet=True))
    # without the largest 1, 2 ... 4 classes: 180, 144, 112, 84 pairs of 420, so the 4 largest are in 336 = 80 %
    assert found.notes[1] == (
        "11 classes count as 8 (FAR) and 1 (TAR) of equal size: 4 of them are in 80 % of the impostor pairs"
    )


def test_the_command_line_has_json_and_refuses_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    from layerprobe.cli import main

    run_of(tmp_path)

    def called(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", "threshold", "--cache", str(tmp_path), *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    code, out, err = called("--layer", "fc6", "--far", "0.1", "--json")
    shown = json.loads(out)
    assert (code, err) == (0, "run one\n")
    assert (shown["schema"], shown["layer"], shown["pool"], shown["set_on"]["split"]) == (
        2,
        "fc6",
        "none",
        "validation",
    )
    assert shown["thresholds"][0]["set_far"]["accepted"] == 304
    assert called("--far", "1e-3,x")[2] == "error: --far x: not a number. Write rates such as 1e-3,1e-2.\n"
    assert called("--far", "1")[0] == 2
    np.savez(tmp_path / "f.npz", a=np.eye(4), labels=[0, 0, 1, 1])
    code, out, err = called(str(tmp_path / "f.npz"), "--cluster", "x")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "f.npz: unknown array in --cluster: 'x'." in err
    assert err.count("\n") == 1
    code, out, _ = called("one", "--layer", "fc6", "--quiet")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 90


SILENT = Terminal(quiet=True)
RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(40), 4)
VALUES = RNG.normal(size=(40, 4))[LABELS] + 0.5 * RNG.normal(size=(160, 4))
SPLITS = np.where(LABELS < 20, "validation", "test")
GROUPS = np.arange(160) // 2


def made_of_rows(layer: str | None = "deep", splits: object = SPLITS, groups: object = None) -> MeasuredThresholds:
    given = check_features({"deep": VALUES}, LABELS, splits, groups, file=Path("f.npz"))
    return threshold_of_features(given, ThresholdRequest(layer, (0.1, 0.01)), Terminal(quiet=True))


def brute_force_of(rows: NDArray[np.bool_], at_least: float, values: NDArray[Any] = VALUES) -> tuple[int, int]:
    """How many impostor and genuine pairs are accepted."""
    own, labels = values[rows], LABELS[rows]
    own = own / np.linalg.norm(own, axis=1, keepdims=True)
    first, second = np.triu_indices(len(labels), 1)
    above, genuine = (own @ own.T)[first, second] >= at_least, labels[first] == labels[second]
    return int((above & ~genuine).sum()), int((above & genuine).sum())


def test_a_threshold_of_validation_rows_is_measured_on_test_rows() -> None:
    found = made_of_rows()
    assert threshold_table(found).heading[0] == "f.npz:deep: accept if the cosine is at least the threshold"
    assert (found.set_on.split, found.set_on.genuine, found.set_on.impostor) == ("validation", 120, 3040)
    for row in found.thresholds:
        accepted = [(row.set_far.accepted, row.set_tar.accepted), (row.far.accepted, row.tar.accepted)]
        assert accepted == [brute_force_of(np.equal(SPLITS, split), row.similarity) for split in ("validation", "test")]
        assert row.set_far.accepted == round(3040 * row.asked - 0.5)


def test_post_processing_is_that_of_the_rows_it_is_fitted_on() -> None:
    found = made_of_rows("deep/pca:2")
    values = stored("pca:2", VALUES[SPLITS == "validation"], VALUES)
    for row in found.thresholds:
        assert (row.far.accepted, row.tar.accepted) == brute_force_of(np.equal(SPLITS, "test"), row.similarity, values)


def post_processed_by_sklearn(
    chain: str, train: NDArray[Any], labels: NDArray[np.int64], asked: NDArray[Any]
) -> NDArray[np.float64]:
    """Some rows through scikit-learn's PCA or LDA, less the mean of what it is fitted on."""
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1, n_components=2)
    fitted = (lda if chain.startswith("lda") else PCA(2)).fit(train.astype(float), labels)
    centred: NDArray[np.float64] = fitted.transform(asked.astype(float)) - fitted.transform(train.astype(float)).mean(0)
    return centred


@pytest.mark.parametrize("chain", ["pca:2", "lda:2:0.1"])
def test_thresholds_of_post_processing_are_set_on_classes_that_it_is_not_fitted_on(chain: str) -> None:
    values, labels = VALUES[SPLITS == "validation"].astype(np.float32), LABELS[SPLITS == "validation"]
    folds, similarities, same = folds_of_queries(labels, seed=0), [], []
    for fold in range(5):
        others, own = folds != fold, labels[folds == fold]
        post_processed = post_processed_by_sklearn(chain, values[others], labels[others], values[~others])
        post_processed /= np.linalg.norm(post_processed, axis=1, keepdims=True)
        pairs = np.triu_indices(len(own), 1)
        similarities.append((post_processed @ post_processed.T)[pairs])
        same.append(own[pairs[0]] == own[pairs[1]])
    similarity, genuine = np.concatenate(similarities), np.concatenate(same)
    found = made_of_rows(f"deep/{chain}")
    # a fold has 4 classes of 4 images: 5 x 4 x 6 genuine pairs, 5 x 6 x 16 others
    assert (found.set_on.genuine, found.set_on.impostor) == (120, 480)
    impostor = np.sort(similarity[~genuine])[::-1]
    for row in found.thresholds:
        allowed = int(480 * row.asked)
        assert row.similarity == pytest.approx(impostor[allowed], abs=1e-6)
        accepted = int((similarity[genuine] >= impostor[allowed]).sum())
        assert (row.set_far.accepted, row.set_tar.accepted) == (allowed, accepted)
    note = "validation: pairs within each fifth of the classes, with post-processing fitted on the other four"
    assert found.notes[0] == note


def test_thresholds_of_too_few_classes_for_folds_say_that_their_rates_are_flattered() -> None:
    few = LABELS < 18
    splits = np.where(LABELS[few] < 9, "validation", "test")
    given = check_features({"deep": VALUES[few]}, LABELS[few], splits)
    found = threshold_of_features(given, ThresholdRequest("deep/lda:2", (0.1,)), SILENT)
    assert found.set_on.impostor == 36 * 35 // 2 - 9 * 6  # of 9 classes of 4 images
    assert found.notes[0] == "lda:2 was fitted on the selection classes themselves, so their rates flatter it"


def test_only_post_processing_that_is_fitted_on_the_split_is_fitted_in_folds(tmp_path: Path) -> None:
    run, lda, folds = run_of(tmp_path), replace(FC6, post_processing="lda:2:0.1"), {}
    for fitted_on in ("validation", "test"):
        search = StoredSearch(run, 2, "validation", torch.device("cpu"), fitted_on)
        pairs, notes = pairs_to_set_on(search, lda, labels_of("validation"))
        folds[fitted_on] = (pairs.folds is not None, len(notes))
    assert folds == {"validation": (True, 1), "test": (False, 0)}


def test_pairs_of_one_group_do_not_count() -> None:
    # of the 6 genuine pairs of a class, 2 are of one group
    assert (made_of_rows(groups=GROUPS).set_on.genuine, made_of_rows(groups=GROUPS).test.genuine) == (80, 80)


def test_without_splits_no_class_is_in_both_halves() -> None:
    halves = split_in_halves(check_features({"deep": VALUES}, LABELS)).splits
    assert halves is not None
    classes = [set(LABELS[halves == split].tolist()) for split in ("validation", "test")]
    assert [len(one) for one in classes] == [20, 20]
    assert classes[0].isdisjoint(classes[1])
    found, on_test = made_of_rows(splits=None), np.asarray(halves == "test")
    for row in found.thresholds:
        assert (row.far.accepted, row.tar.accepted) == brute_force_of(on_test, row.similarity)


def test_the_layer_that_choose_says_is_the_default() -> None:
    assert made_of_rows(layer=None).ranked.layer.layer == "deep"


@pytest.mark.parametrize("others", ["train", "test"])
def test_test_rows_set_no_threshold(others: str) -> None:
    with pytest.raises(DataError, match=r"f\.npz: no rows to set a threshold on but those of test. Call rows of"):
        made_of_rows(splits=np.where(LABELS < 20, others, "test"))


def test_a_mean_of_draws_has_no_threshold() -> None:
    with pytest.raises(RecipeError, match="a mean over draws"):
        made_of_rows("deep/random:2x3")


def test_three_classes_cannot_be_halved() -> None:
    labels = np.repeat(np.arange(3), 4)
    given = check_features({"a": np.random.default_rng(0).normal(size=(12, 4))}, labels)
    with pytest.raises(DataError, match="3 classes; 2 to set a threshold and 2 to measure it are needed"):
        split_in_halves(given)


def test_clusters_are_the_units_and_lie_in_one_half_each() -> None:
    families = LABELS // 2
    given = check_features({"deep": VALUES}, LABELS, clusters=families)
    halves = split_in_halves(given).splits
    assert halves is not None
    assert {*families[halves == "test"].tolist()}.isdisjoint(families[halves == "validation"].tolist())
    found = threshold_of_features(given, ThresholdRequest("deep", (0.1,)), Terminal(quiet=True))
    assert found.notes == ("interval over few clusters: 10",)
    assert found.cluster == "clusters"
    by_class = threshold_of_features(
        replace(given, clusters=None, cluster=None, splits=halves), ThresholdRequest("deep", (0.1,)), SILENT
    )
    assert (found.thresholds[0].far.value, found.test) == (by_class.thresholds[0].far.value, by_class.test)
    assert found.thresholds[0].far.high != by_class.thresholds[0].far.high


def test_a_note_says_that_the_names_of_classes_are_of_folders() -> None:
    names = np.array([f"{label // 2}/{label}" for label in LABELS])
    given = check_features({"deep": VALUES}, names, SPLITS)
    found = threshold_of_features(given, ThresholdRequest("deep", (0.1,)), SILENT)
    assert found.notes[1].startswith("classes lie in 10 folders (10, 11, 12, 13, 14 and 5 more): if those of a folder")


def test_rows_of_a_class_are_of_one_cluster() -> None:
    with pytest.raises(DataError, match="rows of class 0 are of several clusters. Give one to all its rows"):
        check_features({"deep": VALUES}, LABELS, clusters=np.arange(160))


def test_ranks_of_features_on_disk_are_those_of_features_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path)
    searches = [StoredSearch(run, 2, "test", torch.device("cpu"), memory=memory) for memory in (None, 1)]
    expected = searches[0].ranks(FC6)
    monkeypatch.setattr(store.FeatureFile, "read", None)  # a layer whole
    found = searches[1].ranks(FC6)
    assert not isinstance(expected, str)
    assert not isinstance(found, str)
    assert found.closer.tolist() == expected.closer.tolist()
