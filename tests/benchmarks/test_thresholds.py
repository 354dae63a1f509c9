from __future__ import annotations

import numpy as np
import pytest

from benchmarks.thresholds import UNEQUAL, Drawn, Population, Unequal, unequal_ends


def test_a_draw_counts_the_pairs_of_two_classes_at_a_threshold() -> None:
    case = Unequal("groups", shape=0, groups=(2, 2), alike=0.6)
    drawn = Drawn.of(Population.of(-1.0), case, np.random.default_rng(0), 12)
    threshold = drawn.threshold(0.1)
    impostor, genuine = drawn.accepted(threshold)
    classes = np.repeat(np.arange(12), drawn.sizes)
    expected, right = np.zeros((12, 12), int), np.zeros(12, int)
    for i, j in zip(*np.triu_indices(len(classes), 1), strict=True):
        above = drawn.cosines[i, j] >= threshold
        if classes[i] == classes[j]:
            right[classes[i]] += above
        else:
            expected[classes[i], classes[j]] += above
    assert (impostor.tolist(), genuine.tolist()) == (expected.tolist(), right.tolist())
    assert impostor.sum() == int(0.1 * drawn.pairs.sum())
    assert drawn.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_the_true_rate_is_that_of_pairs_within_groups_and_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.thresholds.UNEQUAL_DRAWS", {20: 2})
    twins = next(case for case in UNEQUAL if case.name == "twins")
    flat = np.full(200_001, 0.25)
    monkeypatch.setattr(Population, "rate_within", lambda *_: np.full(200_001, 0.75))
    found = unequal_ends(Population.of(0.0), (flat, flat), twins, 20, 0)
    assert set(found) == {(clustered, rate) for clustered in (False, True) for rate in (1e-2, 1e-3)}
    # of 190 pairs of classes, 10 are twins
    assert found[True, 1e-2][0] == pytest.approx(0.25 + 0.5 * 10 / 190)
    assert found[True, 1e-2][3] == pytest.approx(0.25)
