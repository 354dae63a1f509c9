"""Few-shot classification: the class of the nearest prototype, the mean of a few images of a class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from layerprobe.metrics.metric import QueryMetric
from layerprobe.ranking.vectors import TIE_WINDOW, comparable
from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import FloatArray, IntArray, Retrieval

if TYPE_CHECKING:
    from torch import Tensor


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

        rules = retrieval.rules
        if rules is not None and not (rules.positives is None and rules.label_sets is None):
            raise DataError("classes do not say which items are right here", fix="Measure R@K or mAP")
        items = comparable(
            retrieval.features, retrieval.gallery, "hamming" if retrieval.similarity == "hamming" else "cosine"
        )
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
            hits[counted] += _hits(items.queries, prototypes, targets)[counted]
            often += counted
        if not often.any():
            raise DataError("no query is left beside the prototypes' images", fix="Measure larger classes")
        hits[often == 0] = np.nan
        return {f"few-shot@{self.n}": hits / np.maximum(often, 1)}

    def notes_on(self, retrieval: Retrieval) -> Sequence[str]:
        """How many classes are skipped for too few images; empty if none is."""
        searched = retrieval.labels if retrieval.gallery_labels is None else retrieval.gallery_labels
        out = len(np.union1d(searched, retrieval.labels)) - len(self._classes(retrieval)[0])
        return [f"{out} classes of fewer than {self._least(retrieval)} images left out"] if out else []

    def _least(self, retrieval: Retrieval) -> int:
        return self.n + (retrieval.gallery is None)

    def _classes(self, retrieval: Retrieval) -> tuple[IntArray, list[IntArray]]:
        """The classes that take part, ascending, and the rows of each."""
        searched = retrieval.labels if retrieval.gallery_labels is None else retrieval.gallery_labels
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


def _hits(queries: Tensor, prototypes: Tensor, targets: IntArray) -> FloatArray:
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
