"""Stored features -> ranks -> Score rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, NumericError
from layerprobe.metrics.recall import recall_name
from layerprobe.ranking import nearest_positive_ranks, retrieval
from layerprobe.retrieval import Ranks, Retrieval
from layerprobe.scores import Score

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.items import Table

SIMILARITY = "cosine"
Metric = Callable[[Retrieval], Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Features:
    """One layer's features of a split.

    Args:
        values: (N, D) float32, in memory or left on disk.
        labels: (N,) class indices.
        ids: N image names.
    """

    values: NDArray[np.float32] | Tensor | Table
    labels: NDArray[np.int64]
    ids: Sequence[str]


def rank(
    queries: Features,
    gallery: Features | None,
    *,
    ks: Collection[int] | None = None,
    known: Ranks | None = None,
    memory: int | None = None,
) -> Ranks:
    """Rank of each query's nearest same-class item by cosine, among the other queries or in a gallery of its own.

    Args:
        queries: searched for in `gallery`, or among themselves without the query where that is None.
        gallery: what is searched, for data sets that have one.
        ks: K of Recall@K for which the counts must be exact; None for all counts.
        known: ranks of the same features that may be exact for fewer.
        memory: bytes that the search may take.

    Raises:
        NumericError: a feature is not finite.
    """
    return nearest_positive_ranks(
        queries.values,
        queries.labels,
        **_gallery(queries, gallery),
        resolve="all" if ks is None else ks,
        known=known,
        memory=memory,
    )


def _gallery(queries: Features, gallery: Features | None) -> dict[str, Any]:
    if gallery is None:
        return {"similarity": SIMILARITY}
    return {
        "gallery": gallery.values,
        "gallery_labels": gallery.labels,
        "ids": queries.ids,
        "gallery_ids": gallery.ids,
        "similarity": SIMILARITY,
    }


def score_recall(ranks: Ranks, row: Score, ks: Sequence[int]) -> list[Score]:
    """Recall@K of one layer, a row for each K.

    Args:
        ranks: exact for these K.
        row: what the rows share; similarity, metric, value, n and note are filled in.
        ks: each below the number of items searched.

    Returns:
        Values with lone queries as misses and the expected value under random order of ties.
    """
    row = replace(row, similarity=SIMILARITY, n=len(ranks), note=_joined(_note(ranks), row.note))
    return [replace(row, metric=recall_name(k), value=ranks.recall(k)) for k in ks]


def without_value(metrics: Sequence[str], row: Score, n: int, reason: str) -> list[Score]:
    """A row for each metric that has no valid number, with the reason as its note."""
    note = _joined(reason, row.note)
    return [replace(row, similarity=SIMILARITY, n=n, metric=name, value=None, note=note) for name in metrics]


def searched(queries: Features, gallery: Features | None, ranks: Ranks) -> Retrieval:
    """What a metric takes.

    Args:
        queries: in memory.
        gallery: in memory; None for the queries themselves.
        ranks: of the same, perhaps not exact for every K: completed when a metric asks for them.
    """
    made = retrieval(queries.values, queries.labels, **_gallery(queries, gallery))  # type: ignore[arg-type] # in memory
    return replace(made, count=partial(rank, queries, gallery, known=ranks))


def score_metric(metric: Metric, names: Sequence[str], given: Retrieval, row: Score) -> list[Score]:
    """What one metric gives of a layer, a row for each of its numbers that was asked for.

    Args:
        metric: gives a number for each of its names.
        names: those asked for; `NMI` brings `NMI-sd` and whatever else begins with `NMI-`.
        given: the layer.
        row: as for `score_recall`.

    Returns:
        No value, and the reason as the note, where the metric is not defined on these features.
    """
    try:
        values = metric(given)
    except (DataError, NumericError) as error:
        return without_value(names, row, len(given.labels), error.message)
    wanted = [name for name in values if any(name == asked or name.startswith(f"{asked}-") for asked in names)]
    row = replace(row, similarity=SIMILARITY, n=len(given.labels))
    return [replace(row, metric=name, value=values[name]) for name in wanted]


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _note(ranks: Ranks) -> str:
    notes = []
    if ranks.collapsed:
        notes.append(f"collapsed: {ranks.tied_share:.0%} tied")
    if ranks.lone:
        notes.append(f"{ranks.lone} lone queries count as misses")
    if ranks.zeros:
        notes.append(f"{ranks.zeros} zero vectors")
    return "; ".join(notes)
