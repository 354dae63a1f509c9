"""Layers searched within each fold of classes, with post-processing that is fitted on the other folds.

Post-processing knows the features that it was fitted on: classes among them are mistaken for a query's less often than
others. So a fold's queries are searched among the fold's own classes alone, none of which the fit has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features, prepare_retrieval, rank
from layerprobe.metrics.metric import QueryMetric
from layerprobe.metrics.recall import chance_recall
from layerprobe.post_processing.applying import Blocks, Marked, process_blocks
from layerprobe.post_processing.chain import Chain
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.registry import METRICS, load
from layerprobe.values.retrieval import FloatArray, SearchRules
from layerprobe.values.scores import recall_of

Options = Mapping[str, Mapping[str, Any]]  # metric -> its options


class Searchable(Protocol):
    """One layer's features of a split, such as `analysis.Features`, in memory or on disk."""

    @property
    def values(self) -> Any:
        """(N, D) array, tensor or table that is read in slices."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,) class indices."""

    @property
    def ids(self) -> Sequence[str]:
        """N names."""


@dataclass(frozen=True, eq=False)
class QueryValues:
    """A layer's values of Q queries.

    Args:
        values: (Q,) contribution to the metric; NaN for excluded queries.
        above_chance: (Q,) Recall@1 minus that of a random ranking.
        among_half: (Q,) Recall@K in a gallery with half of the negatives; None for another metric.
    """

    values: FloatArray
    above_chance: FloatArray
    among_half: FloatArray | None = None


def query_values_of(  # noqa: PLR0913 - the items, the rules and the metric
    queries: Features,
    gallery: Features | None,
    similarity: str,
    *,
    metric: str = "R@1",
    rules: SearchRules | None = None,
    options: Options | None = None,
    memory: int | None = None,
) -> QueryValues:
    """The values of queries, searched in a gallery or among themselves.

    Args:
        gallery: None for the other queries.
        metric: R@K, or another mean over queries.
        rules: which items are right, or taken out, where the class does not say.
        options: of metrics other than R@K.
        memory: bytes that a search may take.
    """
    recall = recall_of(metric)
    ranks = rank(queries, gallery, similarity, ks=[1, recall.k if recall else 1], memory=memory, rules=rules)
    names = {} if gallery is None else {"ids": queries.ids, "gallery_ids": gallery.ids}
    labels = None if gallery is None else gallery.labels
    above = ranks.hits(1) - chance_recall(queries.labels, 1, labels, rules=rules, **names)
    if recall:
        return QueryValues(ranks.hits(recall.k), above, ranks.hits_among_half(recall.k))
    query_metric: QueryMetric = load("metric", METRICS, metric)(**(options or {}).get(metric, {}))
    retrieval = prepare_retrieval(queries, gallery, similarity, ranks, rules, memory=memory)
    return QueryValues(query_metric.of_queries(retrieval)[metric], above)


@dataclass(frozen=True, eq=False)
class FoldSearch:
    """One layer's queries, divided into folds of classes, each of which is searched in itself.

    Args:
        queries: (Q, D) searched for in `gallery`, or among themselves without the query where that is None.
        folds: (Q,) the fold of each query; a class is in one fold.
        rules: which items are right, or taken out, where the class does not say; None: the classes alone.
        fit_labels: (Q,) the classes that post-processing is fitted with; None: those of the queries.
    """

    queries: Searchable
    gallery: Searchable | None
    folds: NDArray[np.int64]
    similarity: str
    device: torch.device
    metric: str = "R@1"
    rules: SearchRules | None = None
    options: Options | None = None
    fit_labels: NDArray[np.int64] | None = None

    def fit_without(self, chain: Chain, fold: int, seed: int) -> FittedStep | None:
        """A chain of post-processing steps, fitted on the queries of the other folds; None for no post-processing."""
        if not chain.parts:
            return None
        others, labels = self.folds != fold, self.queries.labels if self.fit_labels is None else self.fit_labels
        blocks = Marked(Blocks(self.queries.values, self.device), others)
        return chain.fit(blocks, int(self.queries.values.shape[1]), seed=seed, labels=labels[others])

    def of_fold(self, fold: int, post_process: FittedStep | None) -> tuple[NDArray[np.intp], QueryValues]:
        """The rows of a fold's queries, and their values among the fold's classes."""
        rows, queries = self.features_of(fold, post_process)
        items, gallery = None, None
        if self.gallery is not None:
            items = np.flatnonzero(np.isin(self.gallery.labels, self._classes_sharing_labels(queries.labels)))
            gallery = self._features(self.gallery, items, post_process)
        rules = None if self.rules is None else self.rules.of_rows(rows, rows if items is None else items)
        if rules is not None and gallery is None:
            rules = replace(rules, gallery_groups=None)
        return rows, query_values_of(
            queries, gallery, self.similarity, metric=self.metric, rules=rules, options=self.options
        )

    def features_of(self, fold: int, post_process: FittedStep | None) -> tuple[NDArray[np.intp], Features]:
        """The rows of a fold's queries, and their features."""
        rows = np.flatnonzero(self.folds == fold)
        return rows, self._features(self.queries, rows, post_process)

    def _classes_sharing_labels(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """The classes that are right for some classes: these, and those that share a label with one of them."""
        if self.rules is None or self.rules.label_sets is None:
            return labels
        classes, held = self.rules.label_sets.T
        related: NDArray[np.int64] = classes[np.isin(held, held[np.isin(classes, labels)])]
        return related

    def values(self, map_of_fold: Callable[[int], FittedStep | None]) -> QueryValues:
        """(Q,) the values of all queries.

        Args:
            map_of_fold: fold -> the post-processing that was fitted without it.
        """
        count, among_half = len(self.folds), np.full(len(self.folds), np.nan)
        joint = QueryValues(np.zeros(count), np.zeros(count), among_half)
        for fold in np.unique(self.folds).tolist():
            rows, fold_values = self.of_fold(fold, map_of_fold(fold))
            joint.values[rows], joint.above_chance[rows] = fold_values.values, fold_values.above_chance
            if fold_values.among_half is not None:
                among_half[rows] = fold_values.among_half
        return joint if np.isfinite(among_half).all() else QueryValues(joint.values, joint.above_chance)

    def _features(self, items: Searchable, rows: NDArray[np.intp], post_process: FittedStep | None) -> Features:
        values = items.values[:][rows]
        if post_process is not None:
            values = process_blocks(Blocks(values, self.device), post_process, len(rows))
        return Features(values, items.labels[rows], [items.ids[row] for row in rows.tolist()])
