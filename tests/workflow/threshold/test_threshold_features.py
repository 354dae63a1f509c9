from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.cli.output import Terminal
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.thresholds import MeasuredThresholds
from layerprobe.workflow.choose.user_features import check_features
from layerprobe.workflow.threshold.request import ThresholdRequest
from layerprobe.workflow.threshold.threshold import split_in_halves, threshold_of_features, threshold_table
from tests.reductions.fitting import stored

SILENT = Terminal(quiet=True)
RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(40), 4)
VALUES = RNG.normal(size=(40, 4))[LABELS] + 0.5 * RNG.normal(size=(160, 4))
SPLITS = np.where(LABELS < 20, "validation", "test")
GROUPS = np.arange(160) // 2


def made(layer: str | None = "deep", splits: object = SPLITS, groups: object = None) -> MeasuredThresholds:
    given = check_features({"deep": VALUES}, LABELS, splits, groups, file=Path("f.npz"))
    return threshold_of_features(given, ThresholdRequest(layer, (0.1, 0.01)), Terminal(quiet=True))


def brute_force(rows: NDArray[np.bool_], at_least: float, values: NDArray[Any] = VALUES) -> tuple[int, int]:
    """How many impostor and genuine pairs are accepted."""
    own, labels = values[rows], LABELS[rows]
    own = own / np.linalg.norm(own, axis=1, keepdims=True)
    first, second = np.triu_indices(len(labels), 1)
    above, genuine = (own @ own.T)[first, second] >= at_least, labels[first] == labels[second]
    return int((above & ~genuine).sum()), int((above & genuine).sum())


def test_a_threshold_of_validation_rows_is_measured_on_test_rows() -> None:
    found = made()
    assert threshold_table(found).heading[0] == "f.npz:deep: accept if the cosine is at least the threshold"
    assert (found.set_on.split, found.set_on.genuine, found.set_on.impostor) == ("validation", 120, 3040)
    for row in found.thresholds:
        accepted = [(row.set_far.accepted, row.set_tar.accepted), (row.far.accepted, row.tar.accepted)]
        assert accepted == [brute_force(np.equal(SPLITS, split), row.similarity) for split in ("validation", "test")]
        assert row.set_far.accepted == round(3040 * row.asked - 0.5)


def test_a_reduction_is_that_of_the_rows_it_is_fitted_on() -> None:
    found = made("deep/pca:2")
    values = stored("pca:2", VALUES[SPLITS == "validation"], VALUES)
    for row in found.thresholds:
        assert (row.far.accepted, row.tar.accepted) == brute_force(np.equal(SPLITS, "test"), row.similarity, values)
    assert "pca:2 was fitted on the choosing classes themselves, so their rates flatter it" in found.notes


def test_pairs_of_one_group_do_not_count() -> None:
    # of the 6 genuine pairs of a class, 2 are of one group
    assert (made(groups=GROUPS).set_on.genuine, made(groups=GROUPS).test.genuine) == (80, 80)


def test_without_splits_no_class_is_in_both_halves() -> None:
    halves = split_in_halves(check_features({"deep": VALUES}, LABELS)).splits
    assert halves is not None
    classes = [set(LABELS[halves == split].tolist()) for split in ("validation", "test")]
    assert [len(one) for one in classes] == [20, 20]
    assert classes[0].isdisjoint(classes[1])
    found, on_test = made(splits=None), np.asarray(halves == "test")
    for row in found.thresholds:
        assert (row.far.accepted, row.tar.accepted) == brute_force(on_test, row.similarity)


def test_the_layer_that_choose_says_is_the_default() -> None:
    assert made(layer=None).ranked.layer.layer == "deep"


@pytest.mark.parametrize("others", ["train", "test"])
def test_test_rows_set_no_threshold(others: str) -> None:
    with pytest.raises(DataError, match=r"f\.npz: no rows to set a threshold on but those of test. Call rows of"):
        made(splits=np.where(LABELS < 20, others, "test"))


def test_a_mean_of_draws_has_no_threshold() -> None:
    with pytest.raises(RecipeError, match="a mean over draws"):
        made("deep/random:2x3")


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
