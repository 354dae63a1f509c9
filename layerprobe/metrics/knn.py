"""Weighted k-NN classification: the class that the nearest items vote for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from layerprobe.metrics.metric import QueryMetric
from layerprobe.ranking.neighbours import nearest_neighbours
from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import FloatArray, IntArray, Neighbours, Retrieval

# The temperature of DINOv2's evaluation.
TEMPERATURE = 0.07
# Classes whose votes differ by no more, relative to the larger sum, are tied: the rounding of equal similarities.
_TIED = 1e-9


class WeightedVotes(QueryMetric):
    """`kNN@K`: share of the queries whose class gets most votes of their K nearest items.

    A neighbour of cosine s votes for its class with the weight exp(s / 0.07). As DINOv2's evaluation does (Oquab et
    al., DINOv2, 2023; eval/knn.py of the authors' code, k = 10, 20, 100, 200): that normalises the weights of all 200
    neighbours before it takes the first k, which changes no order of classes. Unlike there, queries may be searched
    among themselves, each without itself, and ties are settled as follows. Neighbours that tie come in the order of
    their rows, as in `nearest_neighbours`; among classes with equally many votes one is drawn, and the value is its
    expectation. So a collapsed layer scores the share of one class.

    The cosine decides whatever the features are searched by, and for packed bits it is 1 - 2 bits / D for `bits` of D
    that differ. Groups and ignored items of a search (`SearchRules`) do not vote. A query whose class no other item has
    counts as wrong.

    Args:
        k: neighbours that vote, at least 1.
    """

    def __init__(self, k: int) -> None:
        self.k = k

    def of_queries(self, retrieval: Retrieval) -> Mapping[str, FloatArray]:
        """What it is the mean of: (Q,) in [0, 1].

        Raises:
            DataError: k is not below the number of items, queries included; or the search has lists of right
                items or sets of labels.
            NumericError: a row holds NaN or Inf.
        """
        searched = retrieval.labels if retrieval.gallery_labels is None else retrieval.gallery_labels
        if self.k >= len(searched):
            raise DataError(f"K = {self.k} is not below the {len(searched)} images searched", fix="Choose a smaller K")
        rules = retrieval.rules
        if rules is not None and not (rules.positives is None and rules.label_sets is None):
            raise DataError("classes do not say which items are right here", fix="Measure R@K or mAP")
        neighbours = _neighbours(retrieval, self.k)
        weights = np.exp((_cosines(neighbours, retrieval) - 1) / TEMPERATURE)
        return {f"kNN@{self.k}": _hits(neighbours.indices, weights, searched, retrieval.labels)}


KNN10, KNN20, KNN100, KNN200 = (partial(WeightedVotes, k) for k in (10, 20, 100, 200))


def _neighbours(retrieval: Retrieval, k: int) -> Neighbours:
    """The k nearest items of each query by the cosine, or by bits."""
    gallery = retrieval.gallery
    names = None if gallery is None else list(map(str, range(len(gallery))))
    return nearest_neighbours(
        retrieval.features,
        k,
        gallery,
        similarity="hamming" if retrieval.similarity == "hamming" else "cosine",
        ids=None if names is None else list(map(str, retrieval.own)),  # "-1" is no item's name
        gallery_ids=names,
        rules=retrieval.rules,
        labels=retrieval.labels,
        gallery_labels=retrieval.gallery_labels,
    )


def _cosines(neighbours: Neighbours, retrieval: Retrieval) -> FloatArray:
    """(Q, k); of packed bits as vectors of -1 and 1; -inf where the rules leave no item."""
    if neighbours.similarity == "hamming":
        return 1 + 2 * neighbours.similarities / (8 * retrieval.features.shape[1])
    return neighbours.similarities


def _hits(indices: IntArray, weights: FloatArray, searched: IntArray, labels: IntArray) -> FloatArray:
    """Each query's probability that its class is drawn among those with most votes.

    Args:
        indices: (Q, k) rows of the searched items, -1 where there is none.
        weights: (Q, k), 0 there.
        searched: (G,) classes of the searched items.
        labels: (Q,) classes of the queries.
    """
    classes, of_item = np.unique(searched, return_inverse=True)
    query = np.repeat(np.arange(len(labels)), indices.shape[1])
    there = indices.ravel() >= 0
    # Query and class as one number.
    pairs = query[there] * len(classes) + of_item[indices.ravel()[there]]
    voted, pair_index = np.unique(pairs, return_inverse=True)
    votes = np.bincount(pair_index, weights.ravel()[there])
    voter, choice = np.divmod(voted, len(classes))
    most = np.zeros(len(labels))
    np.maximum.at(most, voter, votes)
    is_leading = votes >= most[voter] * (1 - _TIED)
    tied = np.bincount(voter[is_leading], minlength=len(labels))
    right = np.bincount(voter[is_leading & (classes[choice] == labels[voter])], minlength=len(labels))
    shares: FloatArray = right / np.maximum(tied, 1)
    return shares
