from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from layerprobe.measure import pair_thresholds
from layerprobe.measure.pair_thresholds import (
    count_accepted,
    count_pairs,
    error_rates,
    error_rates_within_folds,
    locate,
)
from layerprobe.ranking.all_pairs import AllPairs, Tile, all_pairs
from layerprobe.system.errors import DataError, NotFiniteError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import SearchRules
from layerprobe.values.scores import Subject

Features = NDArray[np.floating[Any]] | NDArray[np.uint8]

# Of the images at these angles 16 impostor pairs are 5 10 15 35 40 50 75 80 90 90 100 120 130 130 170 and 180 degrees
# apart, and 12 genuine ones 10 30 40 40 50 50 80 80 85 90 115 and 165.
ANGLES = np.radians([0, 10, 50, 90, 15, 100, 130, 180])
EIGHT = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
OF_EIGHT = np.repeat([0, 1], 4)


def measured(pairs: AllPairs, rates: Sequence[float]) -> list[tuple[float, int, int]]:
    """Threshold, accepted impostor pairs and accepted genuine pairs at each rate."""
    found = locate(pairs, rates).thresholds
    counts = count_accepted(pairs, found)
    each = zip(found, counts.impostor.sum((1, 2)).tolist(), counts.genuine.sum(1).tolist(), strict=True)
    return [(pairs.in_user_units(threshold), *of) for threshold, *of in each]


def test_eight_images_by_hand() -> None:
    found = measured(all_pairs(EIGHT, OF_EIGHT), [0.2, 0.25, 0.01])
    # 3 of 16 may be accepted: those closer than 35 degrees, with the genuine pairs of 10 and 30. With 4 of them all
    # closer than 40, not the genuine ones of 40. 0.01 is less than one of 16: above the closest, 5 degrees apart.
    assert [of for _, *of in found] == [[3, 2], [4, 2], [0, 0]]
    assert [threshold for threshold, *_ in found] == pytest.approx(np.cos(np.radians([35, 40, 5])), abs=2e-12)
    assert all(
        threshold > cosine for (threshold, *_), cosine in zip(found, np.cos(np.radians([35, 40, 5])), strict=True)
    )


def test_the_equal_error_rate_by_hand() -> None:
    # accepting up to 75 degrees: 7/16 false accepts, 6/12 false rejects; up to 80: 8/16 and 4/12; they meet at 5/11
    assert count_pairs(all_pairs(EIGHT, OF_EIGHT)).equal_error_rate() == pytest.approx(5 / 11)


def brute_force(features: Features, similarity: str) -> NDArray[np.float64]:
    values = features.astype(np.float64)
    if similarity == "cosine":
        values /= np.linalg.norm(values, axis=1, keepdims=True)
    if similarity in ("cosine", "dot"):
        return np.asarray(values @ values.T, np.float64)
    if similarity == "euclidean":
        return np.asarray(-np.sqrt(np.square(values[:, None] - values).sum(2)), np.float64)
    bits = np.unpackbits(features.astype(np.uint8), axis=1)
    return np.asarray(-(bits[:, None] != bits).sum(2), np.float64)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "hamming"])
def test_rates_are_those_of_scikit_learns_roc_curve(similarity: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.ranking.items.BLOCK_ROWS", 64)  # several tiles
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 9, 150)
    features: Features = rng.normal(size=(9, 16))[labels] + rng.normal(size=(150, 16))
    features[10:13] = features[9]  # duplicates, of several classes
    if similarity == "hamming":
        features = np.packbits(features > 0, axis=1)
    rates = [0.5, 0.1, 0.01, 1e-3]
    rows, columns = np.triu_indices(150, 1)
    genuine = labels[rows] == labels[columns]
    values = brute_force(features, similarity)[rows, columns]
    false, true, _ = roc_curve(genuine, values.round(10), drop_intermediate=False)
    expected = [
        (false[false <= rate][-1] * (~genuine).sum(), true[false <= rate][-1] * genuine.sum()) for rate in rates
    ]
    found = measured(all_pairs(features, labels, similarity=similarity), rates)
    assert [of for _, *of in found] == [pytest.approx(each) for each in expected]
    for threshold, impostor, _ in found:
        assert (values[~genuine] >= threshold).sum() == impostor


def test_a_rate_that_is_a_share_of_the_pairs_allows_that_many() -> None:
    # 0.29 of 100 pairs are 29, though 0.29 * 100 is 28.999999999999996
    assert pair_thresholds._allowed_count(0.29, 100) == 29
    assert pair_thresholds._allowed_count(0.289, 100) == 28
    assert pair_thresholds._allowed_count(1e-9, 100) == 0


def test_equal_similarities_are_accepted_or_rejected_together() -> None:
    features = np.tile(np.random.default_rng(0).normal(size=(1, 50)), (12, 1)) * np.arange(1, 13)[:, None]
    pairs = all_pairs(features, np.repeat([0, 1, 2], 4))
    counts = count_pairs(pairs)
    # all cosines are 1, whatever their rounding: no impostor pair can be accepted alone
    found = measured(pairs, [0.1, 0.9])
    assert [of for _, *of in found] == [[0, 0], [0, 0]]
    assert [threshold for threshold, *_ in found] == pytest.approx([1, 1])
    assert counts.collapsed
    assert counts.equal_error_rate() == pytest.approx(0.5)
    assert not count_pairs(all_pairs(EIGHT, OF_EIGHT)).collapsed


def test_nothing_is_accepted_where_images_of_two_classes_are_the_same() -> None:
    pairs = all_pairs(EIGHT[[0, 1, 2, 0, 4, 5]], [0, 0, 0, 1, 1, 1])
    ((threshold, impostor, genuine),) = measured(pairs, [0.01])
    assert (impostor, genuine) == (0, 0)
    assert 1 < threshold < 1 + 1e-11


def test_classes_of_one_image_have_impostor_pairs_only() -> None:
    pairs = all_pairs(EIGHT[:4], [0, 0, 1, 2])
    counts = count_accepted(pairs, [-2.0])
    # the pairs of 0, 10, 50 and 90 degrees
    assert counts.genuine_pairs.tolist() == [1, 0, 0]
    assert counts.impostor_pairs.tolist() == [[0, 2, 2], [0, 0, 1], [0, 0, 0]]
    with pytest.raises(DataError, match="no genuine pair: every class has one image"):
        count_pairs(all_pairs(EIGHT[:3], [0, 1, 2])).rates()
    with pytest.raises(DataError, match="no impostor pair: all images are of one class"):
        locate(all_pairs(EIGHT, [0] * 8), [0.1])


def test_nan_is_refused() -> None:
    with pytest.raises(NotFiniteError, match="1 of 8 feature rows hold NaN or Inf"):
        all_pairs(np.where(np.arange(8)[:, None] == 3, np.nan, EIGHT), OF_EIGHT)


def test_more_classes_than_units_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_thresholds, "_MOST_UNITS", 2)
    counts = count_accepted(all_pairs(EIGHT[:4], [0, 1, 2, 2]), [np.cos(np.radians(45))])
    # class 2 is in the unit of class 0; 0 and 1 are 10 degrees apart, 1 and the first of 2 are 40
    assert counts.impostor_pairs.tolist() == [[2, 1], [2, 0]]
    assert counts.impostor.tolist() == [[[0, 1], [1, 0]]]
    assert counts.genuine.tolist() == [[1, 0]]


def test_points_of_a_curve_are_thinned_and_keep_its_ends() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 40)
    counts = count_pairs(all_pairs(rng.normal(size=(10, 8))[labels] + rng.normal(size=(400, 8)), labels))
    accepts, rejects = counts.thinned()
    every = set(zip(*(rates.tolist() for rates in counts.rates()), strict=True))
    assert set(zip(accepts.tolist(), rejects.tolist(), strict=True)) < every
    assert len(accepts) < 1500 < len(every)
    assert (np.diff(accepts) <= 0).all()
    assert (np.diff(rejects) >= 0).all()


def test_rules_decide_which_pairs_count() -> None:
    rules = SearchRules(groups=np.array([0, 0, 1, 1, 0, 0, 0, 1]), ignored=np.array([[0, 4], [4, 1]]))
    counts = count_accepted(all_pairs(EIGHT, OF_EIGHT, rules=rules), [-2.0])
    # of 6 pairs of each class 2 and 3 are of one group; two impostor pairs are ignored
    assert counts.genuine_pairs.tolist() == [4, 3]
    assert counts.impostor_pairs.sum() == 14


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


def cosines_of(pairs: AllPairs) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Of each pair the cosine, and whether it is genuine."""
    rows = pairs.queries.take(slice(None)).numpy()
    first, second = np.triu_indices(len(rows), 1)
    return brute_force(rows, "cosine")[first, second], pairs.queries.labels[first] == pairs.queries.labels[second]


def test_the_curve_is_that_of_scikit_learn() -> None:
    found = error_rates(SUBJECT, pairs_of, "validation")
    pairs = pairs_of("test")
    similarities, genuine = cosines_of(pairs)
    false, true, _ = roc_curve(genuine, similarities)
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


def located_by_hand(pairs: AllPairs, rates: Sequence[float]) -> tuple[float, list[float]]:
    """The equal error rate from the bins of all pairs, and the thresholds from all similarities in steps."""
    (values, genuine), counts = cosines_of(pairs), count_pairs(pairs)
    steps = np.sort(np.round(values[~genuine] / pairs.step))[::-1]
    ranks = [pair_thresholds._allowed_count(rate, len(steps)) for rate in rates]
    return counts.equal_error_rate(), [(steps[rank] + 0.5) * pairs.step for rank in ranks]


@pytest.mark.parametrize("kind", ["spread", "within 1e-7", "few values", "collapsed"])
@pytest.mark.parametrize("runs", [2**22, 3])
@pytest.mark.parametrize("errors", [None, 6, 0])
def test_what_is_located_is_exact(kind: str, runs: int, errors: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if errors is not None:  # 16 of the 90 queries are a sample, which with 0 errors is believed to be exact
        monkeypatch.setattr(pair_thresholds, "_SAMPLED", 16)
        monkeypatch.setattr(pair_thresholds, "_ERRORS", errors)
    # with 3 runs the similarities in a bin are told apart by further sweeps
    monkeypatch.setattr(pair_thresholds, "_MOST_RUNS", runs)
    monkeypatch.setattr(pair_thresholds, "_MOST_WAITING", 10)
    monkeypatch.setattr(pair_thresholds, "_AT_ONCE", 100)
    monkeypatch.setattr("layerprobe.ranking.items.BLOCK_ROWS", 32)
    rng = np.random.default_rng(3)
    labels = np.sort(rng.integers(0, 7, 90))
    features = rng.normal(size=(7, 6))[labels] + rng.normal(size=(90, 6))
    if kind == "within 1e-7":
        features = 1 + 1e-4 * features
    if kind == "few values":
        features = np.eye(3)[rng.integers(0, 3, 90)] + np.eye(3)[rng.integers(0, 3, 90)]
    if kind == "collapsed":
        features = np.ones((90, 6))
    pairs, rates = all_pairs(features, labels), [0.3, 0.05, 0.001]
    equal, thresholds = located_by_hand(pairs, rates)
    found = pair_thresholds.locate(pairs, rates)
    assert found.thresholds == pytest.approx(thresholds, rel=0, abs=pairs.step)
    if runs > 3:  # as many as there are bins of similarities
        assert found.counts.equal_error_rate() == equal
        assert found.counts.collapsed == count_pairs(pairs).collapsed == (kind in ("within 1e-7", "collapsed"))


@pytest.mark.parametrize("sampled", [1024, 16])
def test_a_sample_says_where_the_impostor_pairs_are_counted(sampled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_thresholds, "_SAMPLED", sampled)
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 20
    pairs = all_pairs(rng.normal(size=(20, 8))[labels] + rng.normal(size=(400, 8)), labels)
    queries, sweep = list[int](), AllPairs.sweep

    def counted(swept_pairs: AllPairs, *counts: Callable[[Tile], None]) -> None:
        queries.append(len(swept_pairs.queries))
        sweep(swept_pairs, *counts)

    monkeypatch.setattr(AllPairs, "sweep", counted)
    pair_thresholds.locate(pairs, [0.01])
    assert queries == [400, min(sampled, 400), 400]


def test_folds_and_parts_of_the_queries_count_each_pair_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.ranking.items.BLOCK_ROWS", 8)
    monkeypatch.setattr("layerprobe.ranking.ranks.BLOCK_ROWS", 8)
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 9, 70)
    features, folds = rng.normal(size=(70, 4)), labels % 3
    pairs = replace(all_pairs(features, labels, memory=1), folds=folds)
    counts = count_accepted(pairs, [0.2])
    values = brute_force(features, "cosine")
    i, j = np.triu_indices(70, 1)
    there = folds[i] == folds[j]
    i, j = i[there], j[there]
    table, genuine = np.zeros((9, 9), int), np.zeros(9, int)
    every = np.zeros((9, 9), int)
    for a, b in zip(i, j, strict=True):
        if labels[a] == labels[b]:
            genuine[labels[a]] += values[a, b] >= 0.2
        else:
            every[labels[a], labels[b]] += 1
            table[labels[a], labels[b]] += values[a, b] >= 0.2
    assert counts.impostor[0].tolist() == table.tolist()
    assert counts.impostor_pairs.tolist() == every.tolist()
    assert counts.genuine[0].tolist() == genuine.tolist()


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize("power", [27, 100, -100])
def test_features_of_another_scale_have_the_same_thresholds_in_it(similarity: Any, power: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 9, 150)
    features = rng.normal(size=(9, 16))[labels] + rng.normal(size=(150, 16)) + 1
    scaled = features * 2.0**power  # exact
    unit = 2.0 ** (2 * power)  # dot products, or halved squares of distances
    plain = locate(all_pairs(features, labels, similarity=similarity), [0.1, 0.01]).thresholds
    located = locate(all_pairs(scaled, labels, similarity=similarity), [0.1, 0.01]).thresholds
    assert [threshold / unit for threshold in located] == pytest.approx(plain, rel=1e-9)
