from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from layerprobe.metrics.clustering import ClusterAgreement, agreement, expected_information
from layerprobe.metrics.kmeans import initial_rows
from layerprobe.ranking import retrieval
from layerprobe.system.errors import DataError, NumericError

NAMES = {"NMI", "NMI-sd", "NMI-geometric", "NMI-chance", "AMI", "AMI-sd"}


def clustered(count: int, dim: int, classes: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    return (rng.standard_normal((classes, dim))[labels] + spread * rng.standard_normal((count, dim))), labels


def entropy(*shares: float) -> float:
    return -sum(share * math.log(share) for share in shares)


def test_two_by_two_by_hand() -> None:
    # Classes 2 + 2, clusters 3 + 1: of ln 2, the cluster of three leaves the entropy of 1/3 open, that of one nothing.
    shared = math.log(2) - 3 / 4 * entropy(1 / 3, 2 / 3)
    first, second = math.log(2), entropy(1 / 4, 3 / 4)
    found = agreement([0, 0, 1, 1], [0, 0, 0, 1])
    assert found.nmi == pytest.approx(2 * shared / (first + second), rel=1e-14)
    assert found.nmi_geometric == pytest.approx(shared / math.sqrt(first * second), rel=1e-14)
    # Every permutation has those overlaps: chance is all there is.
    assert found.chance == pytest.approx(found.nmi, rel=1e-14)
    assert found.ami == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("seed", range(4))
def test_agreement_is_that_of_sklearn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = rng.integers(12, size=400)
    clusters = np.where(rng.random(400) < 0.4, classes, rng.choice(9, 400, p=np.arange(1, 10) / 45))
    found = agreement(classes, clusters)
    assert found.nmi == pytest.approx(normalized_mutual_info_score(classes, clusters), rel=1e-12)
    geometric = normalized_mutual_info_score(classes, clusters, average_method="geometric")
    assert found.nmi_geometric == pytest.approx(geometric, rel=1e-12)
    assert found.ami == pytest.approx(adjusted_mutual_info_score(classes, clusters), rel=1e-9)


def test_chance_is_the_mean_over_every_permutation() -> None:
    classes, clusters = [0, 0, 0, 1, 1, 2], [5, 5, 3, 3, 3, 5]
    values = [normalized_mutual_info_score(order, clusters) for order in set(permutations(classes))]
    assert agreement(classes, clusters).chance == pytest.approx(np.mean(values), rel=1e-12)


def test_expected_information_of_sizes_that_must_overlap() -> None:
    # 6 of 7 and 5 of 7 share at least 4: overlaps below have no probability.
    classes, clusters = [0] * 6 + [1], [0] * 5 + [1] * 2
    mean = np.mean([normalized_mutual_info_score(order, clusters) for order in set(permutations(classes))])
    halves = (entropy(6 / 7, 1 / 7) + entropy(5 / 7, 2 / 7)) / 2
    assert expected_information(np.array([6, 1]), np.array([5, 2])) == pytest.approx(mean * halves, rel=1e-12)


def test_expected_information_is_symmetric() -> None:
    first, second = np.array([10, 3, 3, 4]), np.array([1, 1, 6, 12])
    assert expected_information(first, second) == pytest.approx(expected_information(second, first), rel=1e-12)


def test_names_of_labels_change_nothing() -> None:
    classes, clusters = np.array([0, 0, 1, 1, 2, 2, 2]), np.array([1, 1, 1, 0, 0, 2, 2])
    renamed = agreement(7 - classes, clusters * 10 - 3)
    assert renamed.nmi == pytest.approx(agreement(classes, clusters).nmi, rel=1e-14)


def test_one_cluster_tells_nothing() -> None:
    found = agreement([0, 0, 1, 2], [0, 0, 0, 0])
    assert (found.nmi, found.nmi_geometric, found.ami, found.chance) == (0, 0, 0, 0)


def test_the_same_partition_agrees_wholly() -> None:
    found = agreement([0, 0, 1, 2], [7, 7, 5, 6])
    assert (found.nmi, found.nmi_geometric, found.ami) == (1, 1, 1)
    assert 0 < found.chance < 1


def test_partitions_that_have_no_alternative() -> None:
    for labels in ([0, 0, 0], [0, 1, 2]):
        found = agreement(labels, labels)
        assert (found.nmi, found.ami, found.chance) == pytest.approx((1, 1, 1), abs=1e-12)


def test_two_separate_classes_are_found() -> None:
    # Wherever two centroids start, they end in one class each.
    features, labels = clustered(90, 8, 2, 0.01)
    values = ClusterAgreement(restarts=5)(retrieval(features, labels))
    assert set(values) == NAMES
    assert (values["NMI"], values["NMI-geometric"], values["AMI"]) == pytest.approx((1, 1, 1))
    assert (values["NMI-sd"], values["AMI-sd"]) == (0, 0)


def test_means_and_deviations_are_those_of_sklearns_clusters_of_unit_rows() -> None:
    features, labels = clustered(300, 8, 10, 1.0)
    features *= np.random.default_rng(1).uniform(0.1, 10, (300, 1))
    values = ClusterAgreement(restarts=3)(retrieval(features, labels))
    unit = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    starts = [unit[initial_rows(unit, 10, seed)] for seed in range(3)]
    peers = [KMeans(10, init=start, n_init=1, tol=0).fit_predict(unit) for start in starts]
    nmi = [normalized_mutual_info_score(labels, peer) for peer in peers]
    ami = [adjusted_mutual_info_score(labels, peer) for peer in peers]
    geometric = [normalized_mutual_info_score(labels, peer, average_method="geometric") for peer in peers]
    assert values["NMI"] == pytest.approx(np.mean(nmi), rel=1e-9)
    assert values["NMI-sd"] == pytest.approx(np.std(nmi, ddof=1), rel=1e-6)
    assert values["NMI-geometric"] == pytest.approx(np.mean(geometric), rel=1e-9)
    assert values["AMI"] == pytest.approx(np.mean(ami), rel=1e-9)
    assert values["AMI-sd"] == pytest.approx(np.std(ami, ddof=1), rel=1e-6)


def test_chance_is_what_features_without_classes_reach() -> None:
    rng = np.random.default_rng(0)
    values = ClusterAgreement()(retrieval(rng.standard_normal((400, 6)), np.arange(400) % 40))
    assert values["NMI-chance"] > 0.3
    assert values["NMI"] == pytest.approx(values["NMI-chance"], abs=0.02)
    assert values["AMI"] == pytest.approx(0, abs=0.04)


def test_a_gallery_is_not_clustered() -> None:
    features, labels = clustered(60, 4, 6, 0.5)
    alone = ClusterAgreement(restarts=2)(retrieval(features, labels))
    gallery = retrieval(features, labels, gallery=features[::-1] * 9, gallery_labels=labels[::-1])
    assert ClusterAgreement(restarts=2)(gallery) == alone


def test_a_single_restart_has_no_deviation() -> None:
    features, labels = clustered(60, 4, 6, 0.5)
    assert set(ClusterAgreement(restarts=1)(retrieval(features, labels))) == NAMES - {"NMI-sd", "AMI-sd"}


def test_collapsed_features_tell_nothing() -> None:
    values = ClusterAgreement()(retrieval(np.full((20, 3), 0.1, np.float32), np.arange(20) % 4))
    assert values == dict.fromkeys(NAMES, 0.0)


def test_zero_vectors_are_a_point_of_their_own() -> None:
    # Lengths go, so that 1 and 5 on either axis and the zeros are three points for three classes.
    features = np.array([[0.0, 0], [0, 0], [1, 0], [5, 0], [0, 1], [0, 5]])
    values = ClusterAgreement(restarts=2)(retrieval(features, [0, 0, 1, 1, 2, 2]))
    assert (values["NMI"], values["AMI"], values["NMI-sd"]) == pytest.approx((1, 1, 0))


def test_packed_bits_are_clustered_as_bits() -> None:
    # One bit lies between 127 and 255, eight between 127 and 128. Normalised bytes would all be 1.
    features = np.array([[127], [255], [128]], np.uint8)
    values = ClusterAgreement()(retrieval(features, [0, 0, 1], similarity="hamming"))
    assert values["NMI"] == pytest.approx(1)


def test_tensors_and_arrays_agree() -> None:
    features, labels = clustered(60, 4, 6, 0.5)
    first = ClusterAgreement(restarts=2)(retrieval(features, labels))
    assert ClusterAgreement(restarts=2)(retrieval(torch.from_numpy(features), torch.from_numpy(labels))) == first


def test_rows_that_are_not_finite_are_counted() -> None:
    features, labels = clustered(60, 4, 6, 0.5)
    features[[3, 9], 0] = np.nan, np.inf
    with pytest.raises(NumericError, match="2 of 60 feature rows hold NaN or Inf"):
        ClusterAgreement()(retrieval(features, labels))


def test_one_class_has_no_value() -> None:
    with pytest.raises(DataError, match="NMI needs two classes, there is one"):
        ClusterAgreement()(retrieval(np.eye(4), [3, 3, 3, 3]))


def test_classes_of_one_have_no_value() -> None:
    with pytest.raises(DataError, match="NMI needs a class of two items, all have one"):
        ClusterAgreement()(retrieval(np.eye(4), [0, 1, 2, 3]))


def test_the_best_is_the_restart_of_least_inertia() -> None:
    features, labels = clustered(300, 8, 10, 1.2)
    unit = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    starts = [unit[initial_rows(unit, 10, seed)] for seed in range(5)]
    peers = [KMeans(10, init=start, n_init=1, tol=0).fit(unit) for start in starts]
    nmi = [normalized_mutual_info_score(labels, peer.labels_) for peer in peers]
    least = int(np.argmin([peer.inertia_ for peer in peers]))
    assert nmi[least] < max(nmi)  # the best is not chosen by the classes
    values = ClusterAgreement(restarts=5, report="best")(retrieval(features, labels))
    assert values["NMI"] == pytest.approx(nmi[least], rel=1e-9)
    assert values["AMI"] == pytest.approx(adjusted_mutual_info_score(labels, peers[least].labels_), rel=1e-9)
    assert values["NMI-sd"] == pytest.approx(np.std(nmi, ddof=1), rel=1e-6)


@pytest.mark.parametrize(("similarity", "nmi"), [("cosine", 0), ("euclidean", 1), ("dot", 1)])
def test_rows_are_clustered_as_they_are_compared(similarity: Any, nmi: float) -> None:
    # Classes by length, on two rays: k-means of unit rows finds the rays, of raw rows the lengths.
    features = np.array([[1.0, 0], [1, 0.3], [100, 0], [100, 30]])
    values = ClusterAgreement()(retrieval(features, [0, 0, 1, 1], similarity=similarity))
    assert values["NMI"] == pytest.approx(nmi, abs=1e-12)


def test_another_report_is_refused() -> None:
    with pytest.raises(ValueError, match="report = 'median': must be one of mean, best"):
        ClusterAgreement(report="median")  # type: ignore[arg-type] # the fault


def test_no_restarts() -> None:
    with pytest.raises(ValueError, match="restarts = 0: must be at least 1"):
        ClusterAgreement(restarts=0)
