"""Stored features -> Score rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.recall import recall_name
from layerprobe.ranking import nearest_positive_ranks
from layerprobe.retrieval import Ranks
from layerprobe.scores import Score


@dataclass(frozen=True, eq=False)
class Features:
    """One layer's features of a split.

    Args:
        values: (N, D) float32.
        labels: (N,) class indices.
        ids: N image names.
    """

    values: NDArray[np.float32]
    labels: NDArray[np.int64]
    ids: Sequence[str]

    def bad_rows(self) -> int:
        """How many rows hold NaN or Inf."""
        return int((~np.isfinite(self.values)).any(1).sum())


def rank(queries: Features, gallery: Features | None) -> Ranks:
    """Rank of each query's nearest same-class item by cosine, among the other queries or in a gallery of its own.

    Raises:
        NumericError: a feature is not finite.
    """
    if gallery is None:
        return nearest_positive_ranks(queries.values, queries.labels)
    return nearest_positive_ranks(
        queries.values,
        queries.labels,
        gallery=gallery.values,
        gallery_labels=gallery.labels,
        ids=queries.ids,
        gallery_ids=gallery.ids,
    )


def score_recall(queries: Features, gallery: Features | None, row: Score, ks: Sequence[int]) -> list[Score]:
    """Recall@K of one layer, a row for each K.

    Args:
        queries: searched for in `gallery`, or among themselves without the query where that is None.
        gallery: what is searched, for data sets that have one.
        row: what the rows share; similarity, metric, value, n and note are filled in.
        ks: each below the number of items searched.

    Returns:
        Values with lone queries as misses and the expected value under random order of ties; no value, and a note,
        where a feature is not finite.
    """
    row = replace(row, similarity="cosine", n=len(queries.labels))
    bad = queries.bad_rows() + (gallery.bad_rows() if gallery is not None else 0)
    if bad:
        note = f"NaN ({bad} rows)"
        return [replace(row, metric=recall_name(k), value=None, note=note) for k in ks]
    ranks = rank(queries, gallery)
    row = replace(row, note=_note(ranks))
    return [replace(row, metric=recall_name(k), value=ranks.recall(k)) for k in ks]


def _note(ranks: Ranks) -> str:
    notes = []
    if ranks.collapsed:
        notes.append(f"collapsed: {ranks.tied_share:.0%} tied")
    if ranks.lone:
        notes.append(f"{ranks.lone} lone queries count as misses")
    if ranks.zeros:
        notes.append(f"{ranks.zeros} zero vectors")
    return "; ".join(notes)
