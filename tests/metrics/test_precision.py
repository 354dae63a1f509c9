from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from layerprobe.metrics.precision import PrecisionAtPositives, ReciprocalRank, precision_of_queries, reciprocal_ranks
from layerprobe.ranking import retrieval, vectors
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.retrieval import Ranks

Array = NDArray[np.float64]
NAMES = ("MAP@R", "R-precision", "mAP", "MRR")


def on_circle(*degrees: float) -> Array:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def measured(features: Any, labels: Any, **keywords: Any) -> dict[str, float]:
    lone = {"lone": keywords.pop("lone")} if "lone" in keywords else {}
    made = retrieval(np.asarray(features), labels, **keywords)
    return {**PrecisionAtPositives(**lone)(made), **ReciprocalRank(**lone)(made)}


def of_order(relevant: list[bool]) -> tuple[float, float, float, float]:
    """One query's four values from its ranking, by their definitions."""
    places = [i for i, hit in enumerate(relevant, 1) if hit]
    precisions = [sum(relevant[:i]) / i for i in places]
    r = len(places)
    return (
        sum(p for i, p in zip(places, precisions, strict=True) if i <= r) / r,
        sum(relevant[:r]) / r,
        sum(precisions) / r,
        1 / places[0],
    )


def over_all_orders(groups: list[list[bool]]) -> Array:
    """The mean over every order of the tied, by going through all of them."""
    orders = itertools.product(*(list(itertools.permutations(group)) for group in groups))
    values: Array = np.mean([of_order([hit for group in order for hit in group]) for order in orders], axis=0)
    return values


def test_worked_by_hand() -> None:
    # From 0 degrees: 10 (other), 20 (same), 50 (other), 90 (same) -> hits at ranks 2 and 4 of R = 2.
    found, positives = precision_of_queries(retrieval(on_circle(0, 10, 20, 50, 90), [0, 1, 0, 1, 0]))
    assert positives.tolist() == [2, 1, 2, 1, 2]
    assert found["MAP@R"][0] == pytest.approx((1 / 2) / 2)
    assert found["R-precision"][0] == pytest.approx(1 / 2)
    assert found["mAP"][0] == pytest.approx((1 / 2 + 2 / 4) / 2)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_ties_have_the_mean_over_all_their_orders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Whole numbers on a line, searched by dot product from 1: equal numbers tie.
    values = np.sort(rng.integers(0, 4, int(rng.integers(2, 8))))[::-1]
    labels = rng.integers(0, 2, len(values))
    labels[rng.integers(len(values))] = 0
    gallery = values[:, None].astype(float)
    made = retrieval(np.ones((1, 1)), [0], gallery=gallery, gallery_labels=labels, similarity="dot")
    groups = [[bool(label == 0) for label in labels[values == value]] for value in sorted(set(values), reverse=True)]
    found = {**PrecisionAtPositives()(made), **ReciprocalRank()(made)}
    assert [found[name] for name in NAMES] == pytest.approx(list(over_all_orders(groups)), abs=1e-12)


def grouped(steps: list[int], labels: list[int], window: float) -> list[list[bool]]:
    """Groups of ties as the module states them: each is formed by the closest positive that none has taken."""
    left, groups = sorted(zip(steps, labels, strict=True)), []
    while leads := [step for step, label in left if label == 0]:
        taken = [item for item in left if abs(item[0] - leads[0]) <= window]
        groups += [[False] for step, _ in left if step < leads[0] - window]
        groups.append([label == 0 for _, label in taken])
        left = [item for item in left if item[0] > leads[0] + window]
    return groups


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_where_windows_overlap_the_closest_positive_takes_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Steps of 0.4 windows below 1, the longest: two steps tie, three do not.
    steps = [0, *rng.integers(0, 9, 7).tolist()]
    labels = [0, *rng.integers(0, 2, 7).tolist()]
    gallery = 1 - np.array(steps)[:, None] * 0.4e-12
    made = retrieval(np.ones((1, 1)), [0], gallery=gallery, gallery_labels=labels, similarity="dot")
    groups = grouped(steps, labels, 2.5)
    found, _ = precision_of_queries(made)
    assert [found[name][0] for name in NAMES[:3]] == pytest.approx(list(over_all_orders(groups)[:3]), abs=1e-12)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_without_ties_it_is_what_pytorch_metric_learning_gives(similarity: Any) -> None:
    from pytorch_metric_learning.distances import DotProductSimilarity, LpDistance
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 12, 150)
    features = rng.normal(size=(12, 8))[labels] + rng.normal(size=(150, 8))
    if similarity == "cosine":
        features /= np.linalg.norm(features, axis=1, keepdims=True)
    distance = LpDistance(normalize_embeddings=False) if similarity == "euclidean" else None
    knn = CustomKNN(distance or DotProductSimilarity(normalize_embeddings=False))
    names = ("mean_average_precision_at_r", "r_precision", "mean_average_precision", "mean_reciprocal_rank")
    calculator = AccuracyCalculator(include=names, k=149, knn_func=knn, device=torch.device("cpu"))
    theirs = calculator.get_accuracy(features, labels)
    ours = measured(features, labels, similarity=similarity)
    wanted = [theirs[name] for name in names]  # means in float32
    assert [ours[name] for name in NAMES] == pytest.approx(wanted, abs=1e-6)


def test_average_precision_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    labels, features = rng.integers(0, 5, 60), rng.normal(size=(60, 4))
    found, _ = precision_of_queries(retrieval(features, labels))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for i in range(60):
        others = np.arange(60) != i
        wanted = average_precision_score(labels[others] == labels[i], (unit @ unit[i])[others])
        assert found["mAP"][i] == pytest.approx(wanted)


def test_a_perfect_order_of_many_scores_1_to_the_last_digits() -> None:
    gallery = np.linspace(1, 0.5, 4000)[:, None]
    made = retrieval(np.ones((1, 1)), [0], gallery=gallery, gallery_labels=np.zeros(4000, int), similarity="dot")
    assert PrecisionAtPositives()(made)["mAP"] == pytest.approx(1, rel=0, abs=1e-14)


def test_collapsed_features_score_what_a_random_order_does() -> None:
    labels = np.repeat(np.arange(5), 4)
    found = measured(np.ones((20, 3)), labels)
    rng = np.random.default_rng(0)
    relevant = np.arange(19) < 3
    simulated = np.mean([of_order(rng.permutation(relevant).tolist()) for _ in range(20000)], axis=0)
    assert [found[name] for name in NAMES] == pytest.approx(list(simulated), abs=0.006)


def test_packed_bits_are_ranked_by_the_bits_that_differ() -> None:
    codes = np.array([[0b0000], [0b0001], [0b0011], [0b0111]], np.uint8)
    # From 0: 1, 2 and 3 bits differ; its positive is the last.
    found, _ = precision_of_queries(retrieval(codes, [0, 1, 1, 0], similarity="hamming"))
    assert found["mAP"][0] == pytest.approx(1 / 3)


def test_a_duplicate_of_the_query_counts_and_the_query_does_not() -> None:
    assert measured(on_circle(0, 0, 40, 40), [0, 0, 1, 1]) == dict.fromkeys(("MAP@R", "R-precision", "mAP", "MRR"), 1)


def test_items_with_the_querys_id_are_not_searched() -> None:
    features = on_circle(0, 10, 20)
    found = measured(
        features,
        [0, 1, 0],
        gallery=features,
        gallery_labels=[0, 1, 0],
        ids=["a", "b", "c"],
        gallery_ids=["a", "b", "c"],
    )
    # Queries 0 and 2 find the other of their class behind class 1; query 1 is lone.
    assert found["MRR"] == pytest.approx((1 / 2 + 0 + 1 / 2) / 3)
    assert found["mAP"] == pytest.approx((1 / 2 + 0 + 1 / 2) / 3)


def test_lone_queries_miss_are_left_out_or_are_an_error() -> None:
    features, labels = on_circle(0, 1, 90), [0, 0, 1]
    assert measured(features, labels)["mAP"] == pytest.approx(2 / 3)
    assert measured(features, labels, lone="exclude")["mAP"] == 1
    with pytest.raises(DataError, match="1 of 3 queries have no other item of their class"):
        measured(features, labels, lone="error")


def test_blocks_join_to_the_values_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.integers(0, 3, (40, 3)).astype(float), rng.integers(0, 4, 40)
    whole = measured(features, labels)
    monkeypatch.setattr(vectors, "_BLOCK", 40 * 7)
    assert measured(features, labels) == pytest.approx(whole, abs=1e-14)


def test_two_large_classes_are_ranked() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(1200) % 2
    features = rng.normal(size=(1200, 4)) + labels[:, None]
    found, positives = precision_of_queries(retrieval(features, labels, similarity="dot"))
    assert set(positives) == {599}
    for i in (0, 1, 1199):
        order = np.argsort(-features @ features[i])
        wanted = of_order([bool(labels[j] == labels[i]) for j in order if j != i])
        assert [found[name][i] for name in NAMES[:3]] == pytest.approx(list(wanted[:3]))


def test_features_that_are_not_finite_are_an_error() -> None:
    features = np.ones((4, 2))
    features[1, 1] = np.nan
    with pytest.raises(NumericError, match="1 of 4 feature rows"):
        PrecisionAtPositives()(retrieval(features, [0, 0, 1, 1]))


def test_reciprocal_ranks_of_ties_worked_by_hand() -> None:
    # One positive among three tied, two negatives closer: at place 3, 4 or 5 with 1/3 each.
    ranks = Ranks(*(np.array([x], np.int32) for x in (2, 2, 2, 1)))  # type: ignore[arg-type] # four arrays
    assert reciprocal_ranks(ranks)[0] == pytest.approx((1 / 3 + 1 / 4 + 1 / 5) / 3)


def test_open_counts_have_no_reciprocal_rank() -> None:
    ranks = Ranks(*(np.array([x], np.int32) for x in (0, 2, 0, 1)))  # type: ignore[arg-type] # four arrays
    with pytest.raises(ValueError, match="the counts of 1 queries are unresolved"):
        reciprocal_ranks(ranks)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_every_similarity_is_what_a_loop_in_float64_gives(similarity: Any) -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 6, 60)
    features = rng.normal(size=(6, 4))[labels] * rng.lognormal(0, 1, (60, 1)) + rng.normal(size=(60, 4))
    lengths = np.linalg.norm(features, axis=1)
    wanted = []
    for i in range(60):
        others = np.arange(60) != i
        close = features @ features[i]
        if similarity == "cosine":
            close = close / lengths / lengths[i]
        if similarity == "euclidean":
            close = -((features - features[i]) ** 2).sum(1)
        order = np.argsort(-close[others])
        wanted.append(of_order((labels[others] == labels[i])[order].tolist()))
    found = measured(features, labels, similarity=similarity)
    assert [found[name] for name in NAMES] == pytest.approx(np.mean(wanted, axis=0).tolist(), abs=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize(("near", "mrr"), [(1e-13, 3 / 4), (1e-11, 1 / 2)])
@pytest.mark.parametrize(("similarity", "positive"), [("dot", 1), ("euclidean", 0)])
def test_ties_are_relative_to_the_lengths(
    similarity: Any, positive: int, near: float, mrr: float, scale: float
) -> None:
    # From 1, the negative is closer by `near`: in a tie the positive is first or second.
    gallery, labels = scale * np.array([[2 + near], [2.0]]), [positive == 0, positive == 1]
    found = measured(scale * np.ones((1, 1)), [1], gallery=gallery, gallery_labels=labels, similarity=similarity)
    assert found["MRR"] == pytest.approx(mrr)


def test_lone_queries_that_are_left_out_have_no_value() -> None:
    # The images at 0 and 10 degrees find each other first: 1. those at 25 and 50 are alone in their classes.
    made = retrieval(on_circle(0, 10, 25, 50), [0, 0, 1, 2])
    for metric in (PrecisionAtPositives("exclude"), ReciprocalRank("exclude")):
        for name, values in metric.of_queries(made).items():
            assert np.isnan(values).tolist() == [False, False, True, True]
            assert metric(made)[name] == values[:2].mean()
    assert ReciprocalRank("miss").of_queries(made)["MRR"].tolist() == [1, 1, 0, 0]
