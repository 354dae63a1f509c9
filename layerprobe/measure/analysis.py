"""Stored features -> ranks -> Score rows."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.metric import Metric, QueryMetric, means_of
from layerprobe.metrics.precision import precision_and_ranks
from layerprobe.metrics.recall import THINNED_NOTE, positives_and_negatives, thinned_hits
from layerprobe.ranking import nearest_positive_ranks, retrieval
from layerprobe.ranking.items import Items
from layerprobe.system.errors import DataError, NumericError
from layerprobe.system.wording import as_size
from layerprobe.values.layers import LayerKey
from layerprobe.values.retrieval import Precision, Ranks, Retrieval, SearchRules
from layerprobe.values.scores import Recall, Score, Subject, is_recall, recall_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from layerprobe.ranking.items import Table

_SLICE = 4096  # rows of a table on disk that are read at once
ItemCounts = tuple[NDArray[np.int64], NDArray[np.int64]]  # right and wrong items of each query


@dataclass(frozen=True, eq=False)
class Features:
    """One layer's features of a split.

    Args:
        values: (N, D) float32, in memory or left on disk.
        labels: (N,) class indices.
    """

    values: NDArray[np.float32] | Tensor | Table
    labels: NDArray[np.int64]
    ids: Sequence[str]

    def of_rows(self, rows: NDArray[np.int64]) -> Features:
        """Some of them, in memory; `rows` ascend where the values are on disk."""
        items = Items(self.values, self.labels)
        if items.on_disk:  # only slices are read of it
            starts = range(0, len(items), _SLICE)
            ends = np.searchsorted(rows, [*starts, len(items)])
            parts = [
                np.asarray(self.values[start : start + _SLICE])[rows[first:last] - start]
                for start, first, last in zip(starts, ends[:-1], ends[1:], strict=True)
                if last > first
            ]
            values: NDArray[np.float32] | Tensor = np.concatenate(parts)
        else:
            values = items.take(rows)
        return Features(values, self.labels[rows], [self.ids[row] for row in rows.tolist()])


class Labelled(Protocol):
    """Items with a class and a name each."""

    @property
    def labels(self) -> NDArray[np.integer]:
        """(N,) class indices."""

    @property
    def ids(self) -> Sequence[str]:
        """N names."""


def search_sha256(queries: Labelled, gallery: Labelled | None, rules: SearchRules | None = None) -> str:
    """Hash of what decides which items each query may find: rows, classes, rules, and the rule for lone queries.

    Args:
        queries: searched for in `gallery`, or among themselves without the query where that is None.
        rules: which items are right, or taken out, where the class does not say. Lists are hashed in whatever order;
            without any rule the hash is that of None.
    """
    digest = hashlib.sha256(b"lone queries count as misses")
    for items in (queries, gallery):
        digest.update(b"\0\0")
        if items is not None:
            digest.update(np.ascontiguousarray(items.labels, np.int64).data)
            digest.update("\0".join(items.ids).encode(errors="surrogateescape"))
    for rule in fields(rules) if rules else ():
        values = getattr(rules, rule.name)
        if values is not None:
            digest.update(f"\0\0{rule.name}\0".encode())
            ordered = values if values.ndim == 1 else values[np.lexsort(values.T[::-1])]
            digest.update(np.ascontiguousarray(ordered, np.int64).data)
    return digest.hexdigest()


def rank(  # noqa: PLR0913 - the items, the exactness and the memory
    queries: Features,
    gallery: Features | None,
    similarity: str = "cosine",
    *,
    ks: Collection[int] | None = None,
    previous_ranks: Ranks | None = None,
    memory: int | None = None,
    rules: SearchRules | None = None,
    group: ProcessGroup | None = None,
) -> Ranks:
    """Rank of each query's nearest same-class item, among the other queries or in a gallery of its own.

    Args:
        queries: searched for in `gallery`, or among themselves without the query where that is None.
        ks: K of Recall@K for which the counts must be exact; None for all counts.
        memory: bytes that the search may take.
        rules: which items are right, or taken out, where the class does not say; None: the classes alone.
        group: processes that share the work; each calls this with the same arguments.
    """
    return nearest_positive_ranks(
        queries.values,
        queries.labels,
        **_search(queries, gallery, similarity, rules),
        resolve="all" if ks is None else ks,
        previous_ranks=previous_ranks,
        memory=memory,
        group=group,
    )


def rank_with_precision(  # noqa: PLR0913 - as rank
    queries: Features,
    gallery: Features | None,
    similarity: str,
    *,
    memory: int | None = None,
    rules: SearchRules | None = None,
    group: ProcessGroup | None = None,
) -> tuple[Ranks, Precision]:
    """Exact ranks as of `rank`, and what MAP@R, R-precision and mAP are made of, by one search."""
    search = retrieval(queries.values, queries.labels, **_search(queries, gallery, similarity, rules))
    precision, ranks = precision_and_ranks(replace(search, memory=memory), group)
    return ranks, precision


def _search(queries: Features, gallery: Features | None, similarity: str, rules: SearchRules | None) -> dict[str, Any]:
    """The arguments of ranking besides the queries."""
    if gallery is None:
        return {"similarity": similarity, "rules": rules}
    return {
        "gallery": gallery.values,
        "gallery_labels": gallery.labels,
        "ids": queries.ids,
        "gallery_ids": gallery.ids,
        "similarity": similarity,
        "rules": rules,
    }


@dataclass(frozen=True)
class InapplicablePostProcessing:
    """Post-processing that a layer cannot take.

    Args:
        fix: what can be done about it; empty where nothing can.
    """

    layer: LayerKey
    post_processing: str
    reason: str
    fix: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.post_processing} skipped for {self.layer}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of a layer, and what those of them that are means over the queries are the means of.

    Args:
        values: metric -> (Q,) what each query adds to it; NaN where the metric leaves the query out.
        inapplicable: why there are no scores, where the layer cannot take the post-processing; else None.
    """

    scores: Sequence[Score] = ()
    values: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    inapplicable: InapplicablePostProcessing | None = None

    def __add__(self, other: Scored) -> Scored:
        return Scored([*self.scores, *other.scores], {**self.values, **other.values})


def score_recall(ranks: Ranks, subject: Subject, ks: Sequence[int]) -> Scored:
    """Recall@K of one layer, a score for each K.

    Returns:
        Values with lone queries as misses and the expected value under random order of ties.
    """
    notes = recall_notes(ranks)
    values = {str(Recall(k)): ranks.hits(k) for k in ks}
    return Scored([subject.score(name, value, len(ranks), notes) for name, value in means_of(values).items()], values)


def score_thinned(ranks: Ranks, subject: Subject, ks: Sequence[int], size: int, items: ItemCounts) -> Scored:
    """Recall@K of one layer in a smaller gallery, a score for each K."""
    values = {str(Recall(k, size)): thinned_hits(ranks, k, size, *items) for k in ks}
    notes = [THINNED_NOTE, *recall_notes(ranks)]
    return Scored([subject.score(name, value, len(ranks), notes) for name, value in means_of(values).items()], values)


def item_counts(queries: Labelled, gallery: Labelled | None, rules: SearchRules | None = None) -> ItemCounts:
    """(Q,) how many items each query may find that are right, and (Q,) how many that are wrong.

    Args:
        queries: searched for in `gallery`, or among themselves where that is None.
    """
    if gallery is None:
        return positives_and_negatives(queries.labels, rules=rules)
    names = {"ids": queries.ids, "gallery_ids": gallery.ids}
    return positives_and_negatives(queries.labels, gallery.labels, rules=rules, **names)


def query_values(ranks: Ranks, values: Mapping[str, NDArray[np.float64]], metric: str) -> NDArray[np.float64]:
    """(Q,) what each query adds to a metric that is their mean; NaN where the metric leaves a query out."""
    recall = recall_of(metric)
    if recall is None or not is_recall(metric):
        if metric not in values:
            raise DataError(f"no {metric} of each query is stored", fix=f"Run layerprobe probe --metrics {metric}")
        return values[metric]
    k = recall.k
    if ranks.open([k]).any():
        raise DataError(f"the stored ranks are not exact for K = {k}", fix=f"Run layerprobe probe --k {k}")
    return ranks.hits(k)


def without_value(metrics: Sequence[str], subject: Subject, n: int, reason: str) -> list[Score]:
    """A score for each metric that has no valid number, with the reason as its note."""
    return [subject.score(name, None, n, [reason]) for name in metrics]


def prepare_retrieval(  # noqa: PLR0913 - as rank
    queries: Features,
    gallery: Features | None,
    similarity: str,
    ranks: Ranks,
    rules: SearchRules | None = None,
    *,
    memory: int | None = None,
) -> Retrieval:
    """What a metric takes.

    Args:
        gallery: None for the queries themselves.
        memory: bytes that a search may take.
    """
    search = retrieval(queries.values, queries.labels, **_search(queries, gallery, similarity, rules))
    count = partial(rank, queries, gallery, similarity, previous_ranks=ranks, memory=memory, rules=rules)
    return replace(search, count=count, memory=memory)


def score_metric(
    metric: Metric, names: Sequence[str], retrieval: Retrieval, subject: Subject, notes: Sequence[str] = ()
) -> Scored:
    """The scores of a layer by one metric, one for each of its requested numbers.

    Returns:
        No value, and the reason as the note, where the metric is not defined on these features, or would hold more than
        a search may take.
    """
    dim = retrieval.features.shape[1] * (8 if retrieval.similarity == "hamming" else 1)
    counts = len(retrieval.labels), 0 if retrieval.gallery_labels is None else len(retrieval.gallery_labels)
    held = dim * sum(size * count for size, count in zip(metric.held, counts, strict=True))
    if retrieval.memory is not None and held > retrieval.memory:
        reason = f"it holds all features, {as_size(held)}, and --memory is {as_size(retrieval.memory)}"
        return Scored(without_value(names, subject, len(retrieval.labels), reason))
    try:
        values = metric.of_queries(retrieval) if isinstance(metric, QueryMetric) else {}
        numbers = means_of(values) if isinstance(metric, QueryMetric) else metric(retrieval)
    except (DataError, NumericError) as error:
        return Scored(without_value(names, subject, len(retrieval.labels), error.message))
    reported = [
        name for name in numbers if any(name == name_asked or name.startswith(f"{name_asked}-") for name_asked in names)
    ]
    notes = (*notes, *metric.notes, *metric.notes_on(retrieval))
    scores = [subject.score(name, numbers[name], len(retrieval.labels), notes) for name in reported]
    return Scored(scores, {name: values[name] for name in reported if name in values})


def recall_notes(ranks: Ranks) -> list[str]:
    """What is to be said of Recall@K in a whole gallery."""
    lone = [f"{ranks.lone} lone queries count as misses"] if ranks.lone else []
    return [*layer_notes(ranks), *lone]


def layer_notes(ranks: Ranks) -> list[str]:
    """What is to be said of a layer, whatever is measured: that it has collapsed, and its zero vectors."""
    notes = []
    if ranks.collapsed:
        notes.append(f"collapsed: {ranks.tied_share:.0%} tied")
    if ranks.zeros:
        notes.append(f"{ranks.zeros} zero vectors")
    return notes
