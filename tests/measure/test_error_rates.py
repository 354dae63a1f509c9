from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_curve

from layerprobe.measure.error_rates import error_rates, error_rates_within_folds
from layerprobe.ranking.all_pairs import AllPairs, all_pairs
from layerprobe.system.errors import NotFiniteError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Subject

SUBJECT = Subject("m", "e", 0, 0, "test", RankedLayer(LayerKey("fc6", "none"), "none", "cosine"), ("a note",))
LABELS = np.repeat(np.arange(6), 5)


def pairs_of(split: str) -> AllPairs:
    rng = np.random.default_rng(len(split))
    features = rng.normal(size=(6, 8))[LABELS] + rng.normal(size=(30, 8))
    if split == "collapsed":
        features = np.ones((30, 8))
    if split == "broken":
        raise NotFiniteError(1, 30)
    return all_pairs(features, np.arange(30) if split == "lone" else LABELS)


def test_the_curve_is_that_of_scikit_learn() -> None:
    found = error_rates(SUBJECT, pairs_of, "validation")
    pairs = pairs_of("test")
    (tile,) = pairs.tiles()
    counted = (tile.genuine | tile.impostor).numpy()
    false, true, _ = roc_curve(tile.genuine.numpy()[counted], tile.similarities.numpy()[counted])
    reached = set(zip(false.round(9).tolist(), (1 - true).round(9).tolist(), strict=True))
    # the corners of the curve, beside points on its steps
    own = set(zip(np.round(found.false_accepts, 9).tolist(), np.round(found.false_rejects, 9).tolist(), strict=True))
    assert len(reached & own) > 20
    assert found.n == 30
    assert found.notes == ("a note",)


def test_thresholds_are_set_on_the_other_split() -> None:
    found = error_rates(SUBJECT, pairs_of, "validation")
    assert [each.asked for each in found.thresholds] == [1e-3, 1e-2]
    assert found.set_on == "validation"
    assert all(0 <= each.false_accepts < 0.2 and 0.3 < each.false_rejects <= 1 for each in found.thresholds)
    assert error_rates(SUBJECT, pairs_of, None).thresholds == ()


@pytest.mark.parametrize(
    ("split", "note"),
    [
        ("collapsed", "all similarities are equal to 1e-6"),
        ("broken", "1 of 30 feature rows"),
        ("lone", "no genuine pair"),
    ],
)
def test_what_has_no_curve_says_why(split: str, note: str) -> None:
    of = Subject("m", "e", 0, 0, split, SUBJECT.ranked)
    found = error_rates(of, pairs_of, "test")
    assert (found.false_accepts, found.thresholds) == ((), ())
    assert note in found.notes[-1]
    if split != "collapsed":
        assert f"no thresholds set on {split}: " in error_rates(SUBJECT, pairs_of, split).notes[-1] or split == "lone"


def test_within_folds_the_pairs_of_all_folds_count_together() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(6, 8))[LABELS] + rng.normal(size=(30, 8))
    folds = [slice(0, 15), slice(15, 30)]  # three classes each
    found = error_rates_within_folds(SUBJECT, lambda: [all_pairs(features[rows], LABELS[rows]) for rows in folds])
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    pairs = [(i, j) for rows in folds for i in range(30)[rows] for j in range(i + 1, rows.stop)]
    genuine = np.array([LABELS[i] == LABELS[j] for i, j in pairs])
    false, true, _ = roc_curve(genuine, [float(units[i] @ units[j]) for i, j in pairs])
    reached = set(zip(false.round(9).tolist(), (1 - true).round(9).tolist(), strict=True))
    own = set(zip(np.round(found.false_accepts, 9).tolist(), np.round(found.false_rejects, 9).tolist(), strict=True))
    assert len(reached & own) > 20
    assert (found.n, found.thresholds) == (30, ())
