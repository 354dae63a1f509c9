"""Labels that look wrong, against plain loops, hand-worked cases and labels that are changed on purpose."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.measure.label_errors import (
    DividedClass,
    DuplicatePair,
    LayerNeighbours,
    Suspect,
    divided_classes,
    duplicates_of,
    estimate_wrong,
    neighbours_out_of_fold,
    recall_of,
    suspects_of,
)
from layerprobe.post_processing.applying import Blocks, Marked
from layerprobe.post_processing.chain import parse_chain
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
        post_process = parse_chain("l2+lwhiten:12:lw+l2").fit(
            Marked(Blocks(torch.from_numpy(features), CPU), others), 12, seed=0, labels=labels[others]
        )
        rows, distances = brute_force(post_process(torch.from_numpy(features).double()).numpy())
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
        lists = []
        for layer in layers:
            near = zip(layer.rows[row].tolist(), layer.relative_distances[row].tolist(), strict=True)
            lists.append([int(labels[j]) for j, distance in near if distance > 0.001])
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
        distances = np.where(rng.random(rows.shape) < 0.05, 0.0, 1.0)  # copies
        layers.append(layer_of(np.where(is_any, rng.integers(0, 200, rows.shape), rows), distances))
    suspects = suspects_of(labels, layers)
    assert {(x.row, x.suggested, x.layers, x.votes) for x in suspects} == suspects_by_loops(labels, layers)
    assert len(suspects) > 5
    assert [x.votes for x in suspects] == sorted((x.votes for x in suspects), reverse=True)


def test_the_suggested_label_is_that_of_most_layers_then_of_most_neighbours() -> None:
    # labels 1 and 2 have three of five neighbours by four layers and by two; 2 has more neighbours in all: 18 to 12
    labels = np.array([0, 0, *[1] * 5, *[2] * 5])
    ones, twos = [2, 3, 4, 7, 8], [7, 8, 9, 10, 11]
    rest = [[0, 7, 8, 9, 10]] + [[7, 8, 9, 10, 11]] * 10
    layers = [layer_of(np.array([of_image, *rest])) for of_image in [ones] * 4 + [twos] * 2]
    assert [x for x in suspects_of(labels, layers) if x.row == 0] == [Suspect(0, 1, 4, 12)]
    equal = [layer_of(np.array([[2, 3, 4, 7, 8], *rest])), layer_of(np.array([[7, 8, 9, 10, 2], *rest]))]
    assert [x for x in suspects_of(labels, equal) if x.row == 0] == []  # one layer for either label


def test_a_copy_with_the_same_wrong_label_clears_nobody() -> None:
    labels = np.array([0, 0, 0, *[1] * 6])
    rows = np.array([[1, 3, 4, 5, 6]] + [[0, 2, 3, 4, 5]] * 8)
    distances = np.ones((9, 5))
    assert [x.row for x in suspects_of(labels, [layer_of(rows, distances)]) if x.row == 0] == []
    distances[0, 0] = 0.0009
    assert [x for x in suspects_of(labels, [layer_of(rows, distances)]) if x.row == 0] == [Suspect(0, 1, 1, 4)]
    distances[0, 0] = 0.0011
    assert [x for x in suspects_of(labels, [layer_of(rows, distances)]) if x.row == 0] == []


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
    assert layer.is_collapsed
    assert suspects_of(labels, [layer]) == []


def test_copies_are_found_where_most_images_have_one() -> None:
    features, labels = clusters(20, 3)
    features, labels = np.repeat(features, 2, axis=0), np.repeat(labels, 2)
    labels[7] = 9  # of the pair 6 and 7
    layer = neighbours_out_of_fold(features, labels, np.arange(120) % 5, CPU)
    assert not layer.is_collapsed
    pairs = [pair for pair in duplicates_of(labels, [layer]) if pair.is_same]
    assert [pair.rows for pair in pairs] == [(6, 7)]
    # distances 0 and 2 of the nearest: the median of those above 0 is 2
    nearest = layer_of(np.zeros((4, 1), np.int64), np.array([[0.0], [0.0], [0.0], [2.0]]))
    assert nearest.relative_distances.ravel().tolist() == [0, 0, 0, 1]


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
    wrong = estimate_wrong(suspects, changed, [layer], features)
    assert wrong is not None
    assert abs(wrong - len(suspects)) <= 6


def estimate_by_loops(
    suspects: list[Suspect], labels: Labels, layers: list[LayerNeighbours], features: NDArray[np.float32]
) -> tuple[int, float, float]:
    """How many suspects are far, the share of the other images that are, and the estimate."""
    names = sorted(set(labels.tolist()))
    unit = [x / (np.linalg.norm(x) or 1) for x in features.astype(np.float64)]
    centred = [x - np.mean(unit, axis=0) for x in unit]
    limit = 0.2 * (len(names) - 1)

    def is_far(row: int, suggested: int) -> bool:
        mean = np.mean([centred[i] for i in range(len(labels)) if labels[i] == labels[row] and i != row], axis=0)
        cosines = {}
        for label in set(names) - {int(labels[row])}:
            other = np.mean([centred[i] for i in range(len(labels)) if labels[i] == label], axis=0)
            cosines[label] = mean @ other / np.linalg.norm(mean) / np.linalg.norm(other)
        return bool(sum(value > cosines[suggested] for value in cosines.values()) >= limit)

    mixed, listed = [], {x.row for x in suspects}
    for row in set(range(len(labels))) - listed:
        votes = Counter(int(labels[j]) for layer in layers for j in layer.rows[row].tolist() if j not in listed)
        if votes.pop(int(labels[row]), 0) and votes:
            most = min(label for label in votes if votes[label] == max(votes.values()))
            mixed.append(is_far(row, most))
    far, q = sum(is_far(x.row, x.suggested) for x in suspects), sum(mixed) / max(len(mixed), len(labels) / 2)
    return far, q, (far - len(suspects) * q) / (0.8 - q)


@pytest.mark.parametrize("seed", range(3))
def test_the_estimate_equals_plain_loops_over_the_means_of_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(11), 6)  # a fifth of ten other classes is two
    places = np.sort(rng.normal(size=11))[:, None] + 0.3 * rng.normal(size=(11, 6))  # neighbours are alike
    features = (places[labels] + 0.3 * rng.normal(size=(66, 6))).astype(np.float32)
    features[7] = 0
    layers = [neighbours_out_of_fold(features, labels, np.arange(66) % 5, CPU)]
    means = np.stack([features[labels == label].mean(0) for label in range(11)]) - features.mean(0)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    alike = np.argsort(-(means @ means.T), axis=1)  # a class itself, then the others; about those of the estimate
    suspects = [Suspect(row, int(alike[labels[row], (1, 2, 8)[row % 3]]), 1, 5) for row in range(0, 66, 4)]
    far, q, wrong = estimate_by_loops(suspects, labels, layers, features)
    assert 0 < q < 0.4
    assert far > 0
    assert 0 < wrong < len(suspects)
    assert estimate_wrong(suspects, labels, layers, features) == pytest.approx(wrong, abs=1e-9)


def test_right_labels_of_similar_classes_are_not_counted() -> None:
    # class 2 i + 1 lies beside class 2 i, and each suspect's neighbours are of the class beside its own
    rng = np.random.default_rng(4)
    centres = np.repeat(rng.normal(size=(10, 16)), 2, axis=0) + 0.2 * rng.normal(size=(20, 16))
    labels = np.repeat(np.arange(20), 6)
    features = (centres[labels] + 0.1 * rng.normal(size=(120, 16))).astype(np.float32)
    layers = [neighbours_out_of_fold(features, labels, np.arange(120) % 5, CPU)]
    suspects = [Suspect(row, int(labels[row]) ^ 1, 1, 5) for row in range(0, 120, 3)]
    assert estimate_wrong(suspects, labels, layers, features) == 0
    assert estimate_wrong([], labels, layers, features) == 0


@pytest.mark.parametrize(("dim", "spread", "count"), [(8, 0.7, 1), (16, 1.0, 3)])
def test_few_right_labels_of_layers_that_mix_classes_up_are_called_wrong(dim: int, spread: float, count: int) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(60), 20)
    places = rng.normal(size=(60, dim))[labels] + spread * rng.normal(size=(1200, dim))
    features = [(places + 0.1 * spread * rng.normal(size=places.shape)).astype(np.float32) for _ in range(count)]
    layers = [neighbours_out_of_fold(x, labels, np.arange(1200) % 5, CPU) for x in features]
    suspects = suspects_of(labels, layers)
    wrong = estimate_wrong(suspects, labels, layers, features[0])
    assert len(suspects) > 30
    assert wrong is not None
    assert wrong < 0.3 * len(suspects)


def test_there_is_no_estimate_by_layers_that_rarely_find_the_label() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(60), 20)
    centres, noise = rng.normal(size=(60, 8))[labels], rng.normal(size=(1200, 8))
    weak, fair = ((centres + spread * noise).astype(np.float32) for spread in (1.1, 0.7))
    by_weak, by_fair = (neighbours_out_of_fold(x, labels, np.arange(1200) % 5, CPU) for x in (weak, fair))
    recalls = [(labels[layer.rows[:, 0]] == labels).sum() / 1200 for layer in (by_weak, by_fair)]
    assert recalls[0] < 0.35 < recalls[1]
    assert recall_of(labels, [by_weak, by_fair]) == recalls[1]
    assert estimate_wrong(suspects_of(labels, [by_weak]), labels, [by_weak], weak) is None
    assert estimate_wrong(suspects_of(labels, [by_fair]), labels, [by_fair], fair) is not None


def test_nine_classes_are_too_few_for_an_estimate() -> None:
    features, labels = clusters(9, 3)
    assert estimate_wrong([Suspect(0, 1, 1, 5)], labels, [layer_of(np.zeros((27, 5), np.int64))], features) is None


def test_duplicates_are_close_by_every_layer_and_have_other_labels() -> None:
    labels = np.array([0, 1, 0, 1, 2, 2])
    rows = np.array([[j for j in (i ^ 1, 0, 1, 2, 3, 4, 5) if j != i][:1] + [0] * 4 for i in range(6)])
    far = np.tile([2.0] * 5, (6, 1))

    def layer(pair: float, back: float | None = None) -> LayerNeighbours:
        """0 and 1 at a distance, 2 and 3 at twice the median of 2, 4 and 5, of one label, at 0.02."""
        distances = far.copy()
        distances[[0, 1], 0] = pair, pair if back is None else back
        distances[[2, 3], 0], distances[[4, 5], 0] = 4.0, 0.02
        return layer_of(rows, distances)

    # the nearest of six: pair, pair, 4, 4, 0.02, 0.02; their median is that of the pair where this is from 0.02 to 4
    def near(*layers: LayerNeighbours) -> list[DuplicatePair]:
        return [pair for pair in duplicates_of(labels, list(layers)) if pair.rows == (0, 1)]

    assert near(layer(1.0)) == []  # the median itself
    # nearest 0.01, 0.01, 4, 4, 0.02, 0.02: the median is 0.02, and 0.01 is half of it
    (pair,) = near(layer(0.01))
    assert pair.distance == pytest.approx(0.5)
    assert not pair.is_same
    assert near(layer(0.0101)) == []
    # the larger distance of both layers, and of both images, counts: 0.00002 is a thousandth
    (pair,) = near(layer(0.00002), layer(0.000002))
    assert pair.distance == pytest.approx(0.001)
    assert pair.is_same
    for distances in ((0.00001, 0.000021), (0.000021, 0.00001)):
        (pair,) = near(layer(*distances))
        assert pair.distance == pytest.approx(0.00105)
        assert not pair.is_same
    assert near(layer(0.00002), layer(1.0)) == []
    assert {(4, 5)} & {pair.rows for pair in duplicates_of(labels, [layer(0.01)])} == set()


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
