"""Maps that are fitted with classes as candidates of `choose`: judged on classes that they are not fitted on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe import choose
from layerprobe.statistics.choice import folds_of
from layerprobe.statistics.units import intervals, unit_sums
from layerprobe.values.choice import Choice, label_text

Array = NDArray[Any]
DIM, CLASSES, IMAGES = 24, 60, 6
LABELS = np.repeat(np.arange(CLASSES), IMAGES)
SPLITS = np.where(LABELS % 2, "test", "train")


def noisy(seed: int = 0, *, spread: float = 6.0) -> Array:
    """Features of classes that differ in 8 directions, hidden by a strong variation that all classes share."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(CLASSES, DIM)) * (np.arange(DIM) < 8)
    within = random.normal(size=(len(LABELS), DIM)) * np.where(np.arange(DIM) < 16, 0.6, spread)
    rotation = np.linalg.qr(random.normal(size=(DIM, DIM)))[0]
    return np.asarray((centres[LABELS] + within) @ rotation, np.float32)


def unit(rows: Array) -> Array:
    lengths: Array = np.linalg.norm(rows, axis=1, keepdims=True)
    divided: Array = rows / lengths
    return divided


def hits(rows: Array, labels: Array) -> Array:
    """Whether the nearest other row by cosine is of the same class."""
    similarities = unit(rows) @ unit(rows).T
    np.fill_diagonal(similarities, -2)
    return np.asarray(labels[similarities.argmax(1)] == labels, np.float64)


def learned(fitted_on: Array, labels: Array, asked: Array) -> Array:
    """Learned whitening to all dimensions, with the shrinkage of Ledoit & Wolf, by inverse square roots."""
    from sklearn.covariance import ledoit_wolf

    rows, asked = unit(fitted_on.astype(float)), unit(asked.astype(float))
    centred = rows - np.stack([rows[labels == label].mean(0) for label in labels])
    covariance, _ = ledoit_wolf(centred, assume_centered=True)
    variances, axes = np.linalg.eigh(covariance)
    return np.asarray((asked - rows.mean(0)) @ (axes / np.sqrt(variances)) @ axes.T)


@pytest.fixture(scope="module")
def choice() -> Choice:
    """Chosen on train classes, which the network has not seen."""
    return choose({"early": noisy(1, spread=20), "late": noisy()}, LABELS, splits=SPLITS, seen=False)


def test_a_map_that_gains_by_classes_is_preferred(choice: Choice) -> None:
    assert (choice.preferred.layer, choice.preferred.post_processing) == ("late", f"l2+lwhiten:{DIM}:lw+l2")
    assert choice.advice == "switch"


def test_its_recall_on_test_is_of_the_map_that_is_fitted_with_all_selection_classes(choice: Choice) -> None:
    train, test = SPLITS == "train", SPLITS == "test"
    mapped = learned(noisy()[train], LABELS[train], noisy()[test])
    assert choice.preferred_test is not None
    assert choice.preferred_test.value == pytest.approx(hits(mapped, LABELS[test]).mean())


def test_its_recall_where_it_is_chosen_is_of_classes_that_it_is_not_fitted_on(choice: Choice) -> None:
    rows, labels = noisy()[SPLITS == "train"], LABELS[SPLITS == "train"]
    folds = folds_of(labels)[np.unique(labels, return_inverse=True)[1]]
    values = np.zeros(len(labels))
    for fold in range(5):
        there = folds == fold
        values[there] = hits(learned(rows[~there], labels[~there], rows[there]), labels[there])
    assert choice.chosen.value == pytest.approx(values.mean())


def test_the_gain_is_over_the_candidate_that_is_preferred_without_labels(choice: Choice) -> None:
    assert choice.labels is not None
    assert choice.labels.classes == CLASSES // 2
    assert choice.labels.other.post_processing in ("none", f"l2+whiten:{DIM}:0.5+l2")
    test, labels = SPLITS == "test", LABELS[SPLITS == "test"]
    assert choice.labels.other.layer == "late"
    other = noisy()[test]
    if choice.labels.other.post_processing != "none":
        rows = unit(noisy()[SPLITS == "train"].astype(float))
        variances, axes = np.linalg.eigh(np.cov(rows.T))
        other = (unit(noisy()[test].astype(float)) - rows.mean(0)) @ (axes / variances**0.25)
    mapped = learned(noisy()[~test], LABELS[~test], noisy()[test])
    difference = unit_sums(hits(mapped, labels) - hits(other, labels), labels)
    (interval,) = intervals(difference)
    assert interval is not None
    assert choice.labels.gain is not None
    assert choice.labels.gain.difference == pytest.approx(float(difference.means[0]))
    assert choice.labels.gain.low == pytest.approx(interval.low, abs=0.02)


def test_what_permuted_labels_leave_is_of_a_map_fitted_with_them(choice: Choice) -> None:
    assert choice.labels is not None
    assert choice.labels.gain is not None
    assert choice.labels.gain.low is not None
    assert choice.labels.gain.low > 0
    assert choice.labels.permuted is not None
    train = SPLITS == "train"
    permuted = np.random.default_rng(0).permutation(LABELS[train])
    mapped = hits(learned(noisy()[train], permuted, noisy()[~train]), LABELS[~train]).mean()
    gained = choice.labels.gain.difference - choice.labels.permuted.difference
    assert choice.preferred_test is not None
    assert choice.preferred_test.value is not None
    assert gained == pytest.approx(choice.preferred_test.value - mapped)
    assert gained > 0.05


def test_where_classes_tell_nothing_more_a_map_with_them_gains_nothing() -> None:
    """The features vary alike in all directions, within classes and between them."""
    random = np.random.default_rng(3)
    centres = random.normal(size=(CLASSES, DIM))
    plain = (centres[LABELS] + 0.5 * random.normal(size=(len(LABELS), DIM))).astype(np.float32)
    chosen = choose({"late": plain}, LABELS, splits=SPLITS, seen=False)
    assert chosen.preferred.post_processing in ("none", f"l2+whiten:{DIM}:0.5+l2")
    assert chosen.labels is None


def test_where_test_is_cross_fitted_the_gain_is_in_fifths() -> None:
    """The gain is that of the procedures; permuted labels are of the preferred candidate."""
    crossed = choose({"early": noisy(1, spread=20), "late": noisy()}, LABELS)
    assert crossed.preferred.post_processing == f"l2+lwhiten:{DIM}:lw+l2"
    assert crossed.labels is not None
    assert crossed.labels.gain is not None
    assert crossed.labels.permuted is not None
    assert crossed.labels.classes == CLASSES
    assert crossed.labels.gain.difference > crossed.labels.permuted.difference + 0.1
    assert "in fifths of the test classes" in label_text(crossed)


def test_the_sentence_says_classes_gain_and_what_is_left_without_it(choice: Choice) -> None:
    text = label_text(choice)
    assert text.startswith("The map of late is fitted with 30 labelled classes: +")
    assert ", which would be preferred without labels; fitted with permuted labels +" in text


def test_few_classes_have_no_such_candidate() -> None:
    """A fit on four fifths of 18 classes has 14."""
    rows = LABELS < 18
    few = choose({"late": noisy()[rows]}, LABELS[rows], within=0)
    assert not any("lwhiten" in name for name in few.shares)
    assert few.labels is None
    assert not label_text(few)
