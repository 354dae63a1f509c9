from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.metrics.precision import reciprocal_ranks
from layerprobe.ranking import items, nearest_positive_ranks, search, vectors
from layerprobe.ranking.left_out import find_divided_class, left_out_means, left_out_recall
from layerprobe.system.errors import DataError, NotFiniteError
from layerprobe.values.retrieval import Ranks, SearchRules, Similarity
from tests.ranking.conftest import KINDS, make
from tests.ranking.test_levels import OnDisk

Array = NDArray[np.float64]
KS = (1, 2, 5)


def hits_and_reciprocals(ranks: Ranks) -> Array:
    return np.array([*(ranks.hits(k) for k in KS), reciprocal_ranks(ranks)])


def ranked_again(features: NDArray[Any], labels: Any, units: Any, similarity: Similarity = "cosine") -> Array:
    """The rows of each unit are removed and the rest is ranked."""
    found = []
    for unit in np.unique(units):
        rest = units != unit
        ranks = nearest_positive_ranks(features[rest], labels[rest], similarity=similarity, resolve="all")
        found.append(hits_and_reciprocals(ranks).mean(1))
    return np.array(found).T


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_unit_is_as_if_the_rest_were_ranked(
    kind: str, similarity: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "_BLOCK", 300)  # blocks of a few queries
    rng = np.random.default_rng(len(kind))
    labels = rng.integers(9, size=50) * 3 - 4
    features, units = make(kind, rng, labels, 4), labels // 9  # units of one to three classes
    parts = left_out_means(features, labels, units, values=hits_and_reciprocals, similarity=similarity)
    found = parts.sum(2)
    assert found == pytest.approx(ranked_again(features, labels, units, similarity), abs=1e-12)
    recalls = left_out_recall(features, labels, units, ks=KS, similarity=similarity)
    assert recalls == pytest.approx(parts[:3], abs=1e-12)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_features_on_disk_give_the_same_table(similarity: Similarity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_BLOCK", 300)
    monkeypatch.setattr(search, "CELLS", 900)  # three blocks of a few queries
    monkeypatch.setattr(items, "BLOCK_ROWS", 7)
    rng = np.random.default_rng(3)
    labels, searched = rng.integers(6, size=25), rng.integers(8, size=60)
    features, gallery = (rng.integers(-2, 3, (count, 3)).astype(np.float32) for count in (25, 60))

    def table(on: Any, of: Any = None) -> Array:
        both = {} if of is None else {"gallery": on(of), "gallery_labels": searched, "gallery_units": searched}
        return left_out_means(on(features), labels, labels, values=hits_and_reciprocals, similarity=similarity, **both)

    for other in (None, gallery):
        assert np.array_equal(table(OnDisk, other), table(np.asarray, other))


def test_bits_are_counted_too() -> None:
    rng = np.random.default_rng(0)
    labels, bits = rng.integers(6, size=40), rng.integers(0, 4, (40, 1)).astype(np.uint8)
    found = left_out_recall(bits, labels, labels, ks=KS, similarity="hamming").sum(2)
    assert found == pytest.approx(ranked_again(bits, labels, labels, "hamming")[:3], abs=1e-12)


def test_a_gallery_loses_the_unit_too_but_keeps_its_distractors() -> None:
    rng = np.random.default_rng(1)
    labels, searched = rng.integers(6, size=25), rng.integers(8, size=60)  # classes 6 and 7 are never searched for
    ids, gallery_ids = [f"{i}" for i in range(25)], [f"{i}" for i in range(10, 70)]  # 15 queries are in the gallery
    searched[:15] = labels[10:]
    features, gallery = rng.integers(-1, 2, (2, 60, 3)).astype(float)
    features = features[:25]
    gallery[:15] = features[10:]
    groups, gallery_groups = rng.integers(3, size=25), rng.integers(3, size=60)
    ignored = np.array([(query, item) for query in range(25) for item in range(60) if rng.random() < 0.1])

    def without(unit: int) -> Array:
        rest, items = np.flatnonzero(labels != unit), np.flatnonzero(searched != unit)
        there = ignored[np.isin(ignored[:, 0], rest) & np.isin(ignored[:, 1], items)]
        pairs = np.stack([np.searchsorted(rest, there[:, 0]), np.searchsorted(items, there[:, 1])], 1)
        ranks = nearest_positive_ranks(
            features[rest],
            labels[rest],
            gallery=gallery[items],
            gallery_labels=searched[items],
            ids=[ids[row] for row in rest],
            gallery_ids=[gallery_ids[row] for row in items],
            rules=SearchRules(groups[rest], gallery_groups[items], pairs),
        )
        means: Array = hits_and_reciprocals(ranks).mean(1)
        return means

    found = left_out_means(
        features,
        labels,
        labels,
        values=hits_and_reciprocals,
        gallery=gallery,
        gallery_labels=searched,
        gallery_units=searched,
        ids=ids,
        gallery_ids=gallery_ids,
        rules=SearchRules(groups, gallery_groups, ignored),
    )
    assert found.sum(2) == pytest.approx(np.stack([without(unit) for unit in range(6)], 1), abs=1e-12)


def on_circle(*degrees: float) -> Array:
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], 1)


def test_a_closer_class_that_is_left_out_makes_a_hit() -> None:
    # Class 0 at 0 and 20, class 1 at 5 and 100, class 2 at 96 and 200: 0 and 20 find 5, which finds 0; 100 finds 96 and
    # 96 finds 100; 200 finds 100. Without 0, class 1 (at 5 and 100) still misses and class 2 too; without 1, class 0
    # hits and class 2 (at 96 and 200) finds 20 and 96; without 2, 0 and 20 and 5 miss, and 100 finds 20.
    features, labels = on_circle(0, 20, 5, 100, 96, 200), [0, 0, 1, 1, 2, 2]
    parts = left_out_recall(features, labels, labels)
    assert parts.sum(2).tolist() == [[0, 3 / 4, 0]]
    # Without class 1 both of class 0 hit, and one of class 2.
    assert parts[0, 1].tolist() == [2 / 4, 0, 1 / 4]


def test_lone_queries_may_stay_out_of_the_mean() -> None:
    # The item of class 2 at 3 degrees is alone; without it 0 finds 5, else 3.
    features, labels = on_circle(0, 5, 90, 95, 3), [0, 0, 1, 1, 2]
    assert left_out_recall(features, labels, labels, lone="exclude").sum(2).tolist() == [[1, 0, 1]]
    assert left_out_recall(features, labels, labels).sum(2).tolist() == [[2 / 3, 0, 1]]
    with pytest.raises(DataError, match="1 of 5 queries have no other item"):
        left_out_recall(features, labels, labels, lone="error")


def test_nothing_is_left_of_a_single_unit() -> None:
    assert np.isnan(left_out_recall(on_circle(0, 5, 90), [0, 0, 0], [0, 0, 0])).all()


def test_a_class_is_never_divided() -> None:
    assert find_divided_class(np.array([3, 1, 3, 1]), np.array([0, 0, 0, 1])) == 1
    assert find_divided_class(np.array([3, 1, 3]), np.array([0, 0, 0])) is None
    with pytest.raises(ValueError, match="class 4 is in two units"):
        left_out_recall(on_circle(0, 5, 90), [4, 4, 5], [0, 1, 1])
    with pytest.raises(ValueError, match="class 4 is in two units"):
        left_out_recall(
            on_circle(0, 5), [4, 5], [0, 1], gallery=on_circle(3, 6), gallery_labels=[4, 5], gallery_units=[1, 1]
        )


def test_what_does_not_fit_is_refused() -> None:
    features, labels = on_circle(0, 5, 90), [0, 0, 1]
    with pytest.raises(ValueError, match="lists of right items"):
        left_out_recall(features, labels, labels, rules=SearchRules(positives=np.array([[0, 2]])))
    with pytest.raises(ValueError, match="K = 0: must be at least 1"):
        left_out_recall(features, labels, labels, ks=[0])
    with pytest.raises(ValueError, match="gallery_units need a gallery"):
        left_out_recall(features, labels, labels, gallery_units=labels)
    with pytest.raises(ValueError, match="labels of units of the gallery|units of the gallery needs labels"):
        left_out_recall(features, labels, labels, gallery=features, gallery_labels=labels)
    with pytest.raises(NotFiniteError):
        left_out_recall(np.array([[np.nan, 1], [0, 1]]), [0, 0], [0, 0])


@pytest.mark.gpu
def test_a_gpu_counts_the_same() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(20, size=300)
    features = torch.from_numpy(rng.integers(-1, 2, (300, 4)).astype(np.float32))
    found = left_out_recall(features.cuda(), labels, labels, ks=KS)
    assert found == pytest.approx(left_out_recall(features, labels, labels, ks=KS), abs=1e-12)
