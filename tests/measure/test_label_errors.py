"""Labels that look wrong, against plain loops, hand-worked cases and labels that are changed on purpose."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.measure.label_errors import (
    DividedClass,
    LayerNeighbours,
    Suspect,
    divided_classes,
    duplicates_of,
    estimate_wrong,
    neighbours_out_of_fold,
    suspects_of,
)
from layerprobe.reductions.applying import Blocks, Marked
from layerprobe.reductions.chain import parse_chain
from layerprobe.system.errors import NumericError

CPU = torch.device("cpu")
Labels = NDArray[np.int64]


def clusters(classes: int, images: int, *, dim: int = 12, spread: float = 0.3) -> tuple[NDArray[np.float32], Labels]:
    """Features around random centres, and their labels."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), images)
    values = rng.normal(size=(classes, dim))[labels] + spread * rng.normal(size=(len(labels), dim))
    return values.astype(np.float32), labels


def brute_force(features: NDArray[np.float64]) -> tuple[Labels, NDArray[np.float64]]:
    """The five nearest items of each row, of length 1, by plain loops."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    rows, distances = [], []
    for i in range(len(unit)):
        others = sorted((float(np.linalg.norm(unit[i] - unit[j])), j) for j in range(len(unit)) if j != i)[:5]
        rows.append([j for _, j in others])
        distances.append([distance for distance, _ in others])
    return np.array(rows), np.array(distances)


def layer_of(rows: NDArray[np.int64], distances: NDArray[np.float64] | None = None) -> LayerNeighbours:
    return LayerNeighbours(rows, np.ones(rows.shape) if distances is None else distances, True)


def test_few_classes_are_compared_by_their_features_alone() -> None:
    features, labels = clusters(15, 3)
    layer = neighbours_out_of_fold(features, labels, np.arange(45) % 5, CPU)
    rows, distances = brute_force(features.astype(np.float64))
    assert not layer.is_fitted
    assert np.array_equal(layer.rows, rows)
    assert layer.distances == pytest.approx(distances, abs=1e-6)


def test_each_fold_is_compared_by_whitening_that_is_fitted_on_the_others() -> None:
    features, labels = clusters(20, 4)
    folds = np.random.default_rng(1).permutation(80) % 5
    layer = neighbours_out_of_fold(features, labels, folds, CPU)
    assert layer.is_fitted
    for fold in range(5):
        others = folds != fold
        reduce = parse_chain("l2+lwhiten:12:lw+l2").fit(
            Marked(Blocks(torch.from_numpy(features), CPU), others), 12, seed=0, labels=labels[others]
        )
        rows, distances = brute_force(reduce(torch.from_numpy(features).double()).numpy())
        assert np.array_equal(layer.rows[~others], rows[~others])
        assert layer.distances[~others] == pytest.approx(distances[~others], abs=1e-6)


def test_an_image_is_not_compared_by_its_label() -> None:
    features, labels = clusters(20, 4)
    folds = np.arange(80) % 5
    changed = np.where(folds == 2, (labels + 7) % 20, labels)
    a, b = (neighbours_out_of_fold(features, x, folds, CPU) for x in (labels, changed))
    assert np.array_equal(a.rows[folds == 2], b.rows[folds == 2])
    assert not np.array_equal(a.distances, b.distances)


def test_features_that_are_not_finite_are_refused() -> None:
    features, labels = clusters(15, 3)
    features[3, 1] = np.nan
    with pytest.raises(NumericError):
        neighbours_out_of_fold(features, labels, np.arange(45) % 5, CPU)


def suspects_by_loops(labels: Labels, layers: list[LayerNeighbours]) -> set[tuple[int, int, int, int]]:
    suspects = set()
    for row in range(len(labels)):
        lists = [[int(labels[j]) for j in layer.rows[row]] for layer in layers]
        if any(int(labels[row]) in of_layer for of_layer in lists) or (labels == labels[row]).sum() < 2:
            continue
        for label in sorted({label for of_layer in lists for label in of_layer}):
            agreeing = sum(of_layer.count(label) >= 3 for of_layer in lists)
            if 3 * agreeing >= 2 * len(layers):  # two labels cannot have two thirds of the layers each
                suspects.add((row, label, agreeing, sum(of_layer.count(label) for of_layer in lists)))
    return suspects


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_suspects_equal_plain_loops(count: int) -> None:
    rng = np.random.default_rng(count)
    labels = np.append(rng.integers(0, 4, 199), 9)
    labels[:4] = range(4)
    # the neighbours of most images have one label; now and then it is not theirs
    layers = []
    likely = np.where(rng.random(200) < 0.5, labels, rng.integers(0, 4, 200))
    for _ in range(count):
        rows = np.stack([rng.choice(np.flatnonzero(labels == label), 5) for label in likely])
        is_any = rng.random(rows.shape) < 0.2
        layers.append(layer_of(np.where(is_any, rng.integers(0, 200, rows.shape), rows)))
    suspects = suspects_of(labels, layers)
    assert {(x.row, x.suggested, x.layers, x.votes) for x in suspects} == suspects_by_loops(labels, layers)
    assert len(suspects) > 5
    assert [x.votes for x in suspects] == sorted((x.votes for x in suspects), reverse=True)


def test_one_neighbour_of_its_label_clears_an_image() -> None:
    labels = np.array([0, 0, 1, 1, 1, 1, 1])
    rows = np.array(
        [[2, 3, 4, 5, 6], [2, 3, 4, 5, 6], *[[i for i in range(2, 7) if i != j] + [0] for j in range(2, 7)]]
    )
    assert suspects_of(labels, [layer_of(rows)]) == [Suspect(0, 1, 1, 5), Suspect(1, 1, 1, 5)]
    rows[1, 4] = 0
    assert suspects_of(labels, [layer_of(rows)]) == [Suspect(0, 1, 1, 5)]


def test_a_class_of_one_image_is_no_suspect() -> None:
    labels = np.array([0, *[1] * 6])
    rows = np.array([[j for j in range(7) if j != i][-5:] for i in range(7)])
    assert suspects_of(labels, [layer_of(rows)]) == []


def test_a_collapsed_layer_accuses_nobody() -> None:
    features, labels = np.ones((40, 8), np.float32), np.repeat(np.arange(4), 10)
    layer = neighbours_out_of_fold(features, labels, np.arange(40) % 5, CPU)
    assert suspects_of(labels, [layer]) == []
    assert duplicates_of(labels, [layer]) == []


def test_changed_labels_are_listed_and_counted() -> None:
    features, labels = clusters(30, 8)
    rng = np.random.default_rng(2)
    changed = labels.copy()
    rows = rng.choice(len(labels), 24, replace=False)
    changed[rows] = (labels[rows] + rng.integers(1, 30, 24)) % 30
    layer = neighbours_out_of_fold(features, changed, rng.permutation(240) % 5, CPU)
    suspects = suspects_of(changed, [layer])
    # an image with a new label is listed unless a neighbour was given the same one
    assert {x.row for x in suspects} <= set(rows.tolist())
    assert len(suspects) >= 22
    assert all(x.suggested == labels[x.row] for x in suspects)
    wrong = estimate_wrong(suspects, changed, features)
    assert wrong is not None
    assert abs(wrong - len(suspects)) <= 6


def test_the_estimate_equals_plain_loops_over_the_means_of_classes() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(11), 5)
    features = rng.normal(size=(55, 6)).astype(np.float32)
    features[7] = 0
    suspects = [Suspect(row, int((labels[row] + 1 + row % 10) % 11), 1, 5) for row in range(0, 55, 2)]
    unit = [x / (np.linalg.norm(x) or 1) for x in features.astype(np.float64)]
    centred = [x - np.mean(unit, axis=0) for x in unit]
    farther = 0
    for x in suspects:
        mean = np.mean([centred[i] for i in range(55) if labels[i] == labels[x.row] and i != x.row], axis=0)
        cosines = {}
        for label in set(range(11)) - {int(labels[x.row])}:
            other = np.mean([centred[i] for i in range(55) if labels[i] == label], axis=0)
            cosines[label] = mean @ other / np.linalg.norm(mean) / np.linalg.norm(other)
        nearer = sum(value > cosines[x.suggested] for value in cosines.values())
        farther += nearer >= 2  # a fifth of the ten other classes
    assert 10 < farther < 28
    assert estimate_wrong(suspects, labels, features) == min(28, farther / 0.8)


def test_right_labels_of_similar_classes_are_not_counted() -> None:
    # class 2 i + 1 lies beside class 2 i, and each suspect's neighbours are of the class beside its own
    rng = np.random.default_rng(4)
    centres = np.repeat(rng.normal(size=(10, 16)), 2, axis=0) + 0.2 * rng.normal(size=(20, 16))
    labels = np.repeat(np.arange(20), 6)
    features = (centres[labels] + 0.1 * rng.normal(size=(120, 16))).astype(np.float32)
    suspects = [Suspect(row, int(labels[row]) ^ 1, 1, 5) for row in range(120)]
    assert estimate_wrong(suspects, labels, features) == 0
    assert estimate_wrong([], labels, features) == 0


def test_nine_classes_are_too_few_for_an_estimate() -> None:
    features, labels = clusters(9, 3)
    assert estimate_wrong([Suspect(0, 1, 1, 5)], labels, features) is None


def test_duplicates_are_close_by_every_layer_and_have_other_labels() -> None:
    labels = np.array([0, 1, 0, 1, 2, 2])
    rows = np.array(
        [[1, 2, 3, 4, 5], [0, 2, 3, 4, 5], [3, 0, 1, 4, 5], [2, 0, 1, 4, 5], [5, 0, 1, 2, 3], [4, 0, 1, 2, 3]]
    )
    one = np.tile([1.0, 4, 4, 4, 4], (6, 1))
    one[[0, 1], 0], one[[2, 3], 0] = 0.0, 0.2  # 0 and 1, 2 and 3
    two = one.copy()
    two[[2, 3], 0] = 0.25
    two[[4, 5], 0] = 0.0  # of one label
    two[[0, 1], 0] = [0.0004, 0.0005]
    pairs = duplicates_of(labels, [layer_of(rows, one), layer_of(rows, two)])
    # medians of the nearest: of 0, 0, 0.2, 0.2, 1, 1 it is 0.2; of 0.0004, 0.0005, 0.25, 0.25, 0, 0 it is 0.00045
    assert pairs == []
    one[[4, 5], 0], two[[4, 5], 0], two[[2, 3], 0] = 9.0, 9.0, 9.0
    one[[2, 3], 0] = 1.0
    (pair,) = duplicates_of(labels, [layer_of(rows, one), layer_of(rows, two)])
    # now the medians are 1 and 9
    assert (pair.rows, pair.is_same) == ((0, 1), True)
    assert pair.distance == pytest.approx(0.0005 / 9)
    one[[0, 1], 0] = 0.24
    (pair,) = duplicates_of(labels, [layer_of(rows, one), layer_of(rows, two)])
    assert pair.distance == pytest.approx(0.24)
    assert not pair.is_same
    one[[0, 1], 0] = 0.26
    assert duplicates_of(labels, [layer_of(rows, one), layer_of(rows, two)]) == []


def test_two_merged_classes_are_divided_into_them() -> None:
    features, labels = clusters(20, 8)
    merged = np.where(labels == 5, 11, labels)
    layer = neighbours_out_of_fold(features, merged, np.random.default_rng(5).permutation(160) % 5, CPU)
    five, eleven = (tuple(np.flatnonzero(labels == x).tolist()) for x in (5, 11))
    assert divided_classes(merged, [layer]) == [DividedClass(11, 16, (five, eleven))]
    assert divided_classes(labels, [layer]) == []


def test_pieces_of_a_scattered_class_are_no_groups() -> None:
    # of label 0 twice three images that find one another, and six, or two, that find images of label 1
    labels = np.array([0] * 12 + [1] * 12)
    rows = np.array([[j for j in range(3 * (i // 3), 3 * (i // 3) + 3) if j != i] + [12, 13, 14] for i in range(12)])
    rows[6:] = [12, 13, 14, 15, 16]
    rows = np.vstack([rows, [[j for j in range(12, 18) if j != i][:5] for i in range(12, 24)]])
    assert divided_classes(labels, [layer_of(rows)]) == []
    fewer = np.delete(rows, range(8, 12), axis=0)
    places = np.where(fewer >= 12, fewer - 4, fewer)
    (divided,) = divided_classes(np.delete(labels, range(8, 12)), [layer_of(places)])
    assert (divided.label, divided.images, divided.groups) == (0, 8, ((0, 1, 2), (3, 4, 5)))


def divided_by_loops(labels: Labels, layers: list[LayerNeighbours]) -> dict[int, list[set[int]]]:
    edges = Counter[tuple[int, int]]()
    for layer in layers:
        edges.update({(min(i, j), max(i, j)) for i, row in enumerate(layer.rows.tolist()) for j in row})
    divided = {}
    for label in set(labels.tolist()):
        left, groups = set(np.flatnonzero(labels == label).tolist()), []
        size = len(left)
        while left:
            group, grown = set[int](), {left.pop()}
            while grown:
                group |= grown
                grown = {j for i in grown for j in left if 2 * edges[min(i, j), max(i, j)] >= len(layers)}
                left -= grown
            groups.append(group)
        groups = [group for group in sorted(groups, key=len, reverse=True) if len(group) >= 3]
        if len(groups) > 1 and len(groups[1]) >= 0.2 * size and sum(map(len, groups)) >= 0.7 * size:
            divided[label] = groups
    return divided


def test_divided_classes_equal_plain_loops() -> None:
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 5, 120)
    places = rng.normal(size=(120, 2))
    layers = []
    for _ in range(4):
        distances = np.linalg.norm((places + 0.3 * rng.normal(size=places.shape))[:, None] - places, axis=2)
        np.fill_diagonal(distances, np.inf)
        layers.append(layer_of(distances.argsort(1)[:, :5]))
    divided = {x.label: [set(group) for group in x.groups] for x in divided_classes(labels, layers)}
    expected = divided_by_loops(labels, layers)
    assert {label: sorted(map(sorted, groups)) for label, groups in divided.items()} == {
        label: sorted(map(sorted, groups)) for label, groups in expected.items()
    }
    assert 1 < len(divided) < 6
