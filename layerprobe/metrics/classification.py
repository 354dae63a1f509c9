"""Accuracy of classifiers: the trained one, votes of nearest items, prototypes of a few images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from layerprobe.metrics.metric import Metric, QueryMetric
from layerprobe.ranking.vectors import TIE_WINDOW, comparable, tensor_of
from layerprobe.system.errors import DataError, NumericError
from layerprobe.values.retrieval import FloatArray, IntArray, Retrieval, Similarity

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 4096


class Accuracy(Metric):
    """Share of the images whose class has the largest logit.

    Of training images (Zhang et al. 2018, table 7), and of test images where their classes were trained (table 4 there:
    the official splits of fine-grained classification). Where several classes have the largest logit, it is the
    expected value of choosing one of them at random: 1 / C where all logits are equal. Nothing is searched: the
    rules of a search (`SearchRules`) change nothing.
    """

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """`accuracy`, in [0, 1]; nothing for a layer without a classifier and for classes that were not trained.

        Raises:
            NumericError: a logit is not finite.
        """
        classifier = retrieval.classifier
        if classifier is None:
            return {}
        columns = np.searchsorted(classifier.classes, retrieval.labels)
        is_trained = classifier.classes[np.minimum(columns, len(classifier.classes) - 1)] == retrieval.labels
        if not is_trained.all():
            return {}
        import torch  # slow to import, and the names of metrics are checked without it

        hits = 0.0
        for block, targets in enumerate(torch.from_numpy(columns).split(_ROWS)):
            rows = retrieval.features[block * _ROWS : (block + 1) * _ROWS]  # of a table on disk, too
            logits = classifier.logits(torch.as_tensor(rows))
            if not bool(torch.isfinite(logits).all()):
                raise NumericError("a logit is not finite")
            largest = logits == logits.amax(1, keepdim=True)
            hit = largest.gather(1, targets.to(logits.device)[:, None])[:, 0]
            hits += float((hit / largest.sum(1)).double().sum())
        return {"accuracy": hits / len(columns)}


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

    held = (8, 8)

    def __init__(self, k: int) -> None:
        self.k = k

    def of_queries(self, retrieval: Retrieval) -> Mapping[str, FloatArray]:
        """What it is the mean of: (Q,) in [0, 1].

        Raises:
            DataError: k is not below the number of items, queries included; or the search has lists of right
                items or sets of labels.
            NumericError: a row holds NaN or Inf.
        """
        from layerprobe.ranking.neighbours import nearest_neighbours  # which imports torch

        searched, gallery = retrieval.searched_labels, retrieval.gallery
        if self.k >= len(searched):
            raise DataError(f"K = {self.k} is not below the {len(searched)} images searched", fix="Choose a smaller K")
        _require_classes(retrieval)
        names = None if gallery is None else list(map(str, range(len(gallery))))
        neighbours = nearest_neighbours(
            tensor_of(retrieval.features),
            self.k,
            None if gallery is None else tensor_of(gallery),
            similarity=_cosine_or_bits(retrieval),
            ids=None if names is None else list(map(str, retrieval.own)),  # "-1" is no item's name
            gallery_ids=names,
            rules=retrieval.rules,
            labels=retrieval.labels,
            gallery_labels=retrieval.gallery_labels,
        )
        cosines = neighbours.similarities  # -inf where the rules leave no item
        if neighbours.similarity == "hamming":  # of packed bits as vectors of -1 and 1
            cosines = 1 + 2 * cosines / (8 * retrieval.features.shape[1])
        weights = np.exp((cosines - 1) / TEMPERATURE)
        return {f"kNN@{self.k}": _vote_hits(neighbours.indices, weights, searched, retrieval.labels)}


KNN10, KNN20, KNN100, KNN200 = (partial(WeightedVotes, k) for k in (10, 20, 100, 200))


def _require_classes(retrieval: Retrieval) -> None:
    """Refuse a search whose right items are not those of the query's class."""
    rules = retrieval.rules
    if rules is not None and not (rules.positives is None and rules.label_sets is None):
        raise DataError("classes do not say which items are right here", fix="Measure R@K or mAP")


def _cosine_or_bits(retrieval: Retrieval) -> Similarity:
    """The cosine, whatever the features are searched by; of packed bits it follows from those that differ."""
    return "hamming" if retrieval.similarity == "hamming" else "cosine"


def _vote_hits(indices: IntArray, weights: FloatArray, searched: IntArray, labels: IntArray) -> FloatArray:
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


# How often the images of every class are drawn.
DRAWS = 10
# Similarities to prototypes held at once: 8 MiB in float64.
_BLOCK = 2**20


class Prototypes(QueryMetric):
    """`few-shot@N`: share of the queries whose nearest prototype is that of their class.

    A prototype is the mean of N images of a class (Snell, Swersky & Zemel, Prototypical Networks for Few-shot Learning,
    NeurIPS 2017). Unlike there, nothing is trained and every class of the split takes part at once, not a few of each
    episode; features are of length 1, and the nearest prototype is the one of the largest cosine, not of the least
    Euclidean distance. Whatever the features are searched by, the cosine decides; packed bits are taken as -1 and 1.

    The N images of each class are drawn 10 times, from the gallery where there is one. A query counts in the draws in
    which it is none of them, and its value is the mean over these; the score is the mean over queries. The draws
    depend on the class and its number of images alone, so that all layers, epochs and runs have the same. Among
    prototypes whose cosines tie (within 1e-12) one is drawn, and the value is its expectation: 1 / C for a collapsed
    layer of C classes. A class takes part if it has N images and, where it is searched in itself, one more. Groups and
    ignored items of a search (`SearchRules`) change nothing.

    Args:
        n: images a class, at least 1.
    """

    held = (8, 8)
    notes: Sequence[str] = (f"mean of {DRAWS} draws",)

    def __init__(self, n: int) -> None:
        self.n = n

    def of_queries(self, retrieval: Retrieval) -> Mapping[str, FloatArray]:
        """(Q,) contributions in [0, 1], whose mean it is; NaN for queries of skipped classes, or in all draws.

        Raises:
            DataError: fewer than two classes have enough images, no query is left; or the search has lists of right
                items or sets of labels.
            NumericError: a row holds NaN or Inf.
        """
        import torch

        _require_classes(retrieval)
        items = comparable(retrieval.features, retrieval.gallery, _cosine_or_bits(retrieval))
        classes, rows = self._classes(retrieval)
        if len(classes) < 2:
            shortage = f"two classes need {self._least(retrieval)} images, {len(classes)} have them"
            raise DataError(shortage, fix="Measure larger classes")
        targets = np.searchsorted(classes, retrieval.labels).clip(max=len(classes) - 1)
        takes_part = classes[targets] == retrieval.labels
        hits, often = np.zeros(len(targets)), np.zeros(len(targets))
        for support in _draws(classes, rows, self.n):
            prototypes = _unit(items.gallery[torch.from_numpy(support)].mean(1))
            counted = takes_part & ~(support[targets] == retrieval.own[:, None]).any(1)
            hits[counted] += _prototype_hits(items.queries, prototypes, targets)[counted]
            often += counted
        if not often.any():
            raise DataError("no query is left beside the prototypes' images", fix="Measure larger classes")
        hits[often == 0] = np.nan
        return {f"few-shot@{self.n}": hits / np.maximum(often, 1)}

    def notes_on(self, retrieval: Retrieval) -> Sequence[str]:
        """How many classes are skipped for too few images; empty if none is."""
        out = len(np.union1d(retrieval.searched_labels, retrieval.labels)) - len(self._classes(retrieval)[0])
        return [f"{out} classes of fewer than {self._least(retrieval)} images left out"] if out else []

    def _least(self, retrieval: Retrieval) -> int:
        return self.n + (retrieval.gallery is None)

    def _classes(self, retrieval: Retrieval) -> tuple[IntArray, list[IntArray]]:
        """The classes that take part, ascending, and the rows of each."""
        searched = retrieval.searched_labels
        classes, counts = np.unique(searched, return_counts=True)
        rows = np.split(np.argsort(searched, kind="stable"), np.cumsum(counts)[:-1])
        enough = counts >= self._least(retrieval)
        return classes[enough], [of_class for of_class, fits in zip(rows, enough, strict=True) if fits]


FEW_SHOT_1, FEW_SHOT_5 = (partial(Prototypes, n) for n in (1, 5))


def _draws(classes: IntArray, rows: Sequence[IntArray], n: int) -> Iterator[IntArray]:
    """(C, n) rows of each draw."""
    # A generator for each class: what is drawn of it does not depend on which others there are.
    orders = [
        np.random.default_rng(int(label) % 2**32).permuted(np.tile(class_rows, (DRAWS, 1)), axis=1)[:, :n]
        for label, class_rows in zip(classes, rows, strict=True)
    ]
    for draw in range(DRAWS):
        yield np.stack([order[draw] for order in orders])


def _unit(vectors: Tensor) -> Tensor:
    """Of length 1; what cancels out to rounding becomes 0."""
    lengths = vectors.norm(dim=1, keepdim=True)
    units: Tensor = (vectors / lengths).masked_fill_(lengths <= TIE_WINDOW, 0)
    return units


def _prototype_hits(queries: Tensor, prototypes: Tensor, targets: IntArray) -> FloatArray:
    """(Q,) each query's probability that its class is drawn among the nearest prototypes."""
    import torch

    target_index = torch.from_numpy(targets).to(queries.device)
    size = max(1, _BLOCK // len(prototypes))
    chances = []
    for rows, block_targets in zip(queries.split(size), target_index.split(size), strict=True):
        similarities = _unit(rows) @ prototypes.T
        nearest = similarities >= similarities.amax(1, keepdim=True) - TIE_WINDOW
        chances.append(nearest.gather(1, block_targets[:, None])[:, 0].double() / nearest.sum(1))
    values: FloatArray = torch.cat(chances).cpu().numpy()
    return values
