"""Similarities of queries with the items of their own class, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.relevance import Relevance
    from layerprobe.ranking.vectors import Form

# Small classes are multiplied together until they have so many rows: smaller products are mostly overhead.
_ROWS = 64
# Similarities held at once: 16 MiB.
_CELLS = 2**21


@dataclass(frozen=True, eq=False)
class Chosen:
    """Rows of queries or of a gallery, sorted by class.

    Args:
        vectors: gives the float64 vectors (B, D) of a slice or of an index.
        labels: (N,) int64, ascending.
        index: (N,) index of each row in its set.
    """

    vectors: Callable[[Any], Tensor]
    labels: NDArray[np.int64]
    index: NDArray[np.intp]

    def some(self, places: NDArray[np.intp]) -> Chosen:
        """The rows at some places, ascending."""
        vectors = self.vectors
        return Chosen(lambda part: vectors(places[part]), self.labels[places], self.index[places])


def positive_similarities(
    queries: Chosen, gallery: Chosen, relevance: Relevance, form: Form, share: slice
) -> Iterator[tuple[slice, Tensor]]:
    """Each query with the items of its class, in blocks.

    Args:
        queries: the same object as `gallery` where the rows are the same.
        gallery: the searched items.
        relevance: of the queries, by their index, in the gallery's set; without listed positives.
        form: of the vectors.
        share: which of the groups of classes to take.

    Yields:
        Queries and their similarities (B, C); items of other classes and those taken out at -inf. Every query whose
        class is in the gallery comes once, with all items of its class.
    """
    import torch

    for rows, columns in _groups(queries.labels, gallery.labels)[share]:
        searched = gallery.vectors(columns)
        found = searched if queries is gallery else queries.vectors(rows)
        device = searched.device
        classes = torch.from_numpy(gallery.labels[columns]).to(device)
        places = torch.from_numpy(gallery.index[columns]).to(device)
        step = max(1, _CELLS // len(searched))
        for start in range(0, len(found), step):
            block = slice(rows.start + start, min(rows.start + start + step, rows.stop))
            similarities = form.similarities(found[start : start + step], searched)
            others = torch.from_numpy(queries.labels[block]).to(device)[:, None] != classes
            index = queries.index[block]
            itself = torch.from_numpy(relevance.own[index]).to(device)[:, None] == places
            similarities.masked_fill_(others | itself, -torch.inf)
            _take_out(similarities, relevance, index, gallery.index[columns])
            yield block, similarities


def _take_out(similarities: Tensor, relevance: Relevance, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> None:
    """Put items of the query's group and ignored ones at -inf; others of its class are already.

    Args:
        similarities: (B, C).
        relevance: says which.
        rows: (B,) which queries they are.
        columns: (C,) which items.
    """
    import torch

    device = similarities.device
    if relevance.groups is not None and relevance.gallery_groups is not None:
        groups = torch.from_numpy(relevance.groups[rows]).to(device)
        similarities.masked_fill_(
            groups[:, None] == torch.from_numpy(relevance.gallery_groups[columns]).to(device), -torch.inf
        )
    if len(relevance.ignored):
        pairs, order = relevance.ignored.among(rows), np.argsort(columns)
        places = order[np.searchsorted(columns, pairs.items, sorter=order).clip(max=len(columns) - 1)]
        found = columns[places] == pairs.items
        index = np.stack([pairs.queries[found], places[found]])
        similarities[tuple(torch.from_numpy(index).to(device))] = -torch.inf


def _groups(queries: NDArray[np.int64], gallery: NDArray[np.int64]) -> list[tuple[slice, slice]]:
    """Groups of whole classes: slices of the queries and of the gallery, both sorted by class.

    A group starts and ends with a class that both have, and may hold other classes between.
    """
    classes = np.intersect1d(queries, gallery)
    bounds = [np.searchsorted(labels, classes, side) for labels in (queries, gallery) for side in ("left", "right")]
    groups: list[tuple[slice, slice]] = []
    rows = columns = slice(0, 0)
    for first, last, left, right in zip(*(bound.tolist() for bound in bounds), strict=True):
        if rows.stop and max(last - rows.start, right - columns.start) > _ROWS:
            groups.append((rows, columns))
            rows = columns = slice(0, 0)
        rows = slice(rows.start if rows.stop else first, last)
        columns = slice(columns.start if columns.stop else left, right)
    return [*groups, (rows, columns)] if rows.stop else groups
