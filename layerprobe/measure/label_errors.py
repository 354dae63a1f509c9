"""Labels that look wrong, from the nearest neighbours of each image by several layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.post_processing.applying import Blocks, Marked, process_blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import FittedStep, NotApplicableError
from layerprobe.post_processing.supervised import FEWEST_CLASSES, learned_whitened
from layerprobe.ranking.neighbours import nearest_neighbours
from layerprobe.values.retrieval import FloatArray, IntArray

NEIGHBOURS = 5
MAJORITY = 3  # of the neighbours by a layer
_DIMENSIONS = 64
_SAME, NEAR = 1e-3, 0.5  # distances of duplicates, as shares of the median distance of a nearest neighbour
_FEWEST_IMAGES = 3  # of a group of a class
_SMALLEST_GROUP = 0.2  # of the class
_IN_GROUPS = 0.7  # of the class: of one that a layer scatters, the largest pieces are no groups
_NEARER = 0.2  # of the classes: none of these is counted in the estimate
_FEWEST_RANKED = 10  # classes, so that the estimate does not rest on two or three of them
_LEAST_RECALL = 0.35  # of the best layer, for an estimate
_MIXED = 2_000  # images by which the ranks of classes are judged
_BLOCK = 256  # images that are compared with all classes at once


@dataclass(frozen=True, eq=False)
class LayerNeighbours:
    """The nearest neighbours of each of N images by a layer, the closest first.

    Args:
        rows: (N, K) of the neighbours.
        distances: (N, K) Euclidean, between features of length 1.
        is_fitted: whether by learned whitening.
    """

    rows: IntArray
    distances: FloatArray
    is_fitted: bool

    @property
    def relative_distances(self) -> FloatArray:
        """(N, K) as shares of the median distance of a nearest neighbour that is no exact copy."""
        nearest = self.distances[:, 0]
        median = float(np.median(nearest[nearest > 0])) if nearest.any() else 1.0
        return self.distances / median

    @property
    def is_collapsed(self) -> bool:
        """Whether all neighbours are exact copies, so that the layer tells no images apart."""
        return not self.distances.any()


@dataclass(frozen=True)
class Suspect:
    """An image whose label looks wrong.

    Args:
        row: of the image.
        suggested: the label that its neighbours have.
        layers: by how many of the layers most of its neighbours have that label.
        votes: how many of its neighbours, by all layers.
    """

    row: int
    suggested: int
    layers: int
    votes: int


@dataclass(frozen=True)
class DuplicatePair:
    """Two images of different labels that are nearly the same by every layer; `is_same`: as far as features tell."""

    rows: tuple[int, int]
    distance: float
    is_same: bool


@dataclass(frozen=True)
class DividedClass:
    """A class whose images fall into groups that are not among each other's neighbours.

    Args:
        groups: rows of the images of each group with three images or more, the largest first.
    """

    label: int
    images: int
    groups: tuple[tuple[int, ...], ...]


def neighbours_out_of_fold(
    features: NDArray[np.float32], labels: IntArray, folds: IntArray, device: torch.device
) -> LayerNeighbours:
    """The nearest neighbours of each image among all, by learned whitening that is fitted on the other folds' images.

    An image's own label has no part in the map that it is compared by. Where there are fewer than 16 classes of two
    images, or the features do not suit the map, they are only brought to length 1.

    Args:
        features: (N, D), N above 5.
        labels: (N,)
        folds: (N,) the fold of each image.

    Raises:
        NotFiniteError: a row holds NaN or Inf.
    """
    blocks, count = Blocks(torch.from_numpy(features), device), len(labels)
    neighbours = np.empty((count, NEIGHBOURS), np.int64), np.empty((count, NEIGHBOURS))
    names, is_fitted = [str(row) for row in range(count)], True
    for fold in np.unique(folds).tolist():
        post_process = _learned_without(blocks, labels, folds == fold)
        is_fitted = is_fitted and post_process is not None
        mapped = process_blocks(blocks, post_process or parse_chain("l2").fit((), features.shape[1], seed=0), count)
        queries = np.flatnonzero(folds == fold)
        nearest = nearest_neighbours(
            mapped[torch.from_numpy(queries).to(mapped.device)],
            NEIGHBOURS,
            mapped,
            similarity="euclidean",
            ids=[names[row] for row in queries.tolist()],
            gallery_ids=names,
        )
        neighbours[0][queries], neighbours[1][queries] = nearest.indices, -nearest.similarities
    return LayerNeighbours(*neighbours, is_fitted)


def _learned_without(blocks: Blocks, labels: IntArray, held_out: NDArray[np.bool_]) -> FittedStep | None:
    """Learned whitening, fitted without some images; None where it does not suit them."""
    if int((np.unique(labels[~held_out], return_counts=True)[1] >= 2).sum()) < FEWEST_CLASSES:
        return None
    dim = int(blocks.rows.shape[1])
    chain = parse_chain(learned_whitened(min(_DIMENSIONS, dim)))
    try:
        return chain.fit(Marked(blocks, ~held_out), dim, seed=0, labels=labels[~held_out])
    except NotApplicableError:
        return None


def needed_layers(count: int) -> int:
    """How many of some layers must agree: two thirds."""
    return math.ceil(2 * count / 3)


def suspects_of(labels: IntArray, layers: Sequence[LayerNeighbours]) -> list[Suspect]:
    """The images whose labels look wrong, those with most evidence first.

    No neighbour of theirs by any layer has their label, and by two thirds of the layers at least 3 of the 5 neighbours
    have one other label, the same by these layers. Copies, at a distance of a thousandth of the median or less, are no
    evidence: they have the image's label, right or wrong. Classes of one image are left out: such an image has no
    neighbour of its label.

    Args:
        labels: (N,)
    """
    no_label = int(labels.min()) - 1
    neighbours = np.stack(
        [np.where(layer.relative_distances <= _SAME, no_label, labels[layer.rows]) for layer in layers], axis=1
    )
    sizes = np.bincount(labels - labels.min())[labels - labels.min()]
    is_alone = ~(neighbours == labels[:, None, None]).any((1, 2)) & (sizes > 1)
    suspects = []
    for row in np.flatnonzero(is_alone).tolist():
        counts = [Counter(by_layer) for by_layer in neighbours[row].tolist()]
        votes = sum(counts, Counter[int]())
        if not votes.keys() - {no_label}:
            continue
        del votes[no_label]
        agreeing = {label: sum(count[label] >= MAJORITY for count in counts) for label in votes}
        suggested = min(votes, key=lambda label: (-agreeing[label], -votes[label], label))
        if agreeing[suggested] >= needed_layers(len(layers)):
            suspects.append(Suspect(row, suggested, agreeing[suggested], votes[suggested]))
    return sorted(suspects, key=lambda x: (-x.votes, -x.layers, x.row))


def recall_of(labels: IntArray, layers: Sequence[LayerNeighbours]) -> float:
    """The share of images whose nearest neighbour has their label, by the layer where it is highest.

    Args:
        labels: (N,)
    """
    return max(float((labels[layer.rows[:, 0]] == labels).mean()) for layer in layers)


def estimate_wrong(
    suspects: Sequence[Suspect], labels: IntArray, layers: Sequence[LayerNeighbours], features: NDArray[np.float32]
) -> float | None:
    """How many of the suspects have a wrong label, if a wrong label is any other one with the same chance.

    Classes are ranked by how alike they are to the class of an image's label: by the cosine of the means of their
    features, of length 1 and less the mean of all, the image's own left out. The suggested class of a wrong label has
    any rank; that of a right one is taken to be as near as the classes that other images are mixed up with. So of the S
    suspects those are counted whose suggested class is not among the nearest fifth. They are p W of W wrong ones, p =
    4/5, and q (S - W) of the others: W = (count - q S) / (p - q). q is the share of mixed-up images, those that have
    neighbours of their label and of others, whose most frequent other label is not among the nearest fifth; neighbours
    that are suspects are left out, and where less than half of the images are mixed up it is that share of half of
    them. With q = 0 this is the estimate of Storey (Journal of the Royal Statistical Society B 64, 2002, equation 3) of
    the number of true null hypotheses.

    Args:
        labels: (N,)
        features: (N, D) of a layer.

    Returns:
        From 0 to the number of suspects; None of fewer than 10 classes, where `recall_of` is below 0.35, and where q is
        above p / 2: then the ranks of classes tell little.
    """
    classes = np.unique(labels)
    if len(classes) < _FEWEST_RANKED or recall_of(labels, layers) < _LEAST_RECALL:
        return None
    others = len(classes) - 1
    nearer = math.ceil(_NEARER * others)
    p = (others - nearer) / others
    drawn = np.random.default_rng(0).permutation(len(labels))[:_MIXED].tolist()
    mixed = _mixed_up(drawn, labels, layers, {x.row for x in suspects})
    pairs = [*((x.row, x.suggested) for x in suspects), *mixed]
    is_far = _class_ranks(labels, features, pairs) >= nearer
    q = float(is_far[len(suspects) :].sum()) / max(len(mixed), len(drawn) / 2)
    if q > p / 2:
        return None
    wrong = (float(is_far[: len(suspects)].sum()) - len(suspects) * q) / (p - q)
    return min(max(wrong, 0.0), float(len(suspects)))


def _mixed_up(
    rows: Sequence[int], labels: IntArray, layers: Sequence[LayerNeighbours], suspects: Collection[int]
) -> list[tuple[int, int]]:
    """The images with neighbours of their label and of others, suspects left out, and the most frequent other label."""
    mixed = []
    for row in rows:
        neighbours = [j for layer in layers for j in layer.rows[row].tolist() if j not in suspects]
        votes = Counter(labels[neighbours].tolist())
        if row not in suspects and votes.pop(int(labels[row]), 0) and votes:
            mixed.append((row, min(votes, key=lambda label: (-votes[label], label))))
    return mixed


def _class_ranks(
    labels: IntArray, features: NDArray[np.float32], pairs: Sequence[tuple[int, int]]
) -> NDArray[np.int64]:
    """(R,) for pairs of a row and another label, how many classes are more alike to the class of the row."""
    rows, others = [row for row, _ in pairs], [other for _, other in pairs]
    classes, places = np.unique(labels, return_inverse=True)
    sums = np.zeros((len(classes), features.shape[1]))
    for start in range(0, len(labels), _BLOCK):
        np.add.at(sums, places[start : start + _BLOCK], _unit(features[start : start + _BLOCK]))
    mean = sums.sum(0) / len(labels)
    sums -= np.bincount(places)[:, None] * mean
    means, ranks = _unit(sums), np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _BLOCK):
        block = np.array(rows[start : start + _BLOCK])
        other = np.searchsorted(classes, others[start : start + _BLOCK])
        alike = _unit(sums[places[block]] - (_unit(features[block]) - mean)) @ means.T
        here = np.arange(len(block))
        alike[here, places[block]] = -np.inf
        ranks[start : start + _BLOCK] = (alike > alike[here, other][:, None]).sum(1)
    return ranks


def _unit(vectors: NDArray[np.floating]) -> FloatArray:
    """Of length 1, in float64; zero vectors stay."""
    values = vectors.astype(np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    unit: FloatArray = values / np.where(lengths > 0, lengths, 1)
    return unit


def duplicates_of(labels: IntArray, layers: Sequence[LayerNeighbours]) -> list[DuplicatePair]:
    """The pairs of images with different labels that are duplicates by every layer, the closest first.

    One is among the 5 nearest neighbours of the other, at a distance of at most half of the median distance of a
    nearest neighbour that is no exact copy; `is_same` where it is at most a thousandth.

    Args:
        labels: (N,)
    """
    by_layer: list[dict[tuple[int, int], float]] = []
    for layer in layers:
        distances = layer.relative_distances
        rows, places = np.nonzero((distances <= NEAR) & (labels[layer.rows] != labels[:, None]))
        pairs: dict[tuple[int, int], float] = {}
        for a, b, distance in zip(
            rows.tolist(), layer.rows[rows, places].tolist(), distances[rows, places].tolist(), strict=True
        ):
            pair = min(a, b), max(a, b)
            pairs[pair] = max(pairs.get(pair, 0.0), distance)
        by_layer.append(pairs)
    common = set.intersection(*map(set, by_layer))
    largest = sorted((max(pairs[pair] for pairs in by_layer), pair) for pair in common)
    return [DuplicatePair(pair, distance, distance <= _SAME) for distance, pair in largest]


def divided_classes(labels: IntArray, layers: Sequence[LayerNeighbours]) -> list[DividedClass]:
    """The classes whose images fall into two groups or more, those with the largest second group first.

    Two images of a class are connected where one is among the 5 nearest neighbours of the other by half of the layers.
    The class is divided if its second largest component has three images, and a fifth of the class, and its components
    of three images or more have seven tenths of it.

    Args:
        labels: (N,)
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, edges = len(labels), []
    for layer in layers:
        a, b = np.repeat(np.arange(count), layer.rows.shape[1]), layer.rows.ravel()
        a, b = a[labels[a] == labels[b]], b[labels[a] == labels[b]]
        edges.append(np.unique(np.minimum(a, b) * count + np.maximum(a, b)))
    pairs, by_layers = np.unique(np.concatenate(edges), return_counts=True)
    pairs = pairs[2 * by_layers >= len(layers)]
    graph = coo_array((np.ones(len(pairs)), (pairs // count, pairs % count)), shape=(count, count))
    components = connected_components(graph, directed=False)[1]
    order = np.lexsort((components, labels))
    starts = np.flatnonzero(np.diff(labels[order], prepend=labels.min() - 1))
    divided = []
    for rows in np.split(order, starts)[1:]:
        _, members, sizes = np.unique(components[rows], return_inverse=True, return_counts=True)
        groups = [tuple(rows[members == i].tolist()) for i in np.argsort(-sizes, kind="stable")]
        groups = [group for group in groups if len(group) >= _FEWEST_IMAGES]
        in_groups = sum(map(len, groups))
        if len(groups) > 1 and len(groups[1]) >= _SMALLEST_GROUP * len(rows) and in_groups >= _IN_GROUPS * len(rows):
            divided.append(DividedClass(int(labels[rows[0]]), len(rows), tuple(groups)))
    return sorted(divided, key=lambda x: (-len(x.groups[1]) / x.images, x.label))
