"""Stored features -> a layer's metrics without each unit, for intervals over new classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.metric import Metric, QueryMetric
from layerprobe.metrics.precision import ReciprocalRank, reciprocal_ranks
from layerprobe.ranking import retrieval
from layerprobe.ranking.left_out import left_out_means, left_out_recall
from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import FloatArray, IntArray, Retrieval, SearchRules
from layerprobe.values.scores import Recall

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.items import Table


# With more units, this many random groups of them are left out: an interval nearly as good, and tables of 2 MB.
MOST_UNITS = 500
# Metrics that are computed again without each unit: so many groups at most.
MOST_COMPUTED = 50


class LayerFeatures(Protocol):
    """One layer's features of a split, such as `analysis.Features`."""

    @property
    def values(self) -> Any:
        """(N, D) array, tensor, or table on disk."""

    @property
    def labels(self) -> IntArray:
        """(N,) class indices."""

    @property
    def ids(self) -> Sequence[str]:
        """N names."""


def left_out_values(  # noqa: PLR0913 - the items, the rules and the measures
    queries: LayerFeatures,
    gallery: LayerFeatures | None,
    units: IntArray,
    gallery_units: IntArray | None = None,
    *,
    ks: Sequence[int] = (),
    metrics: Sequence[tuple[Metric, Sequence[str]]] = (),
    similarity: str = "cosine",
    rules: SearchRules | None = None,
    memory: int | None = None,
) -> dict[str, FloatArray]:
    """Metrics of a layer without each unit, its items left out of queries and gallery together.

    R@K and MRR are counted in one pass over all pairs each. Other metrics that are means over queries are computed
    again without each unit, or without each of 50 random groups of units where there are more; R@K and MRR without
    each of 500 groups likewise. The groups depend on units alone: layers that are compared have the same.

    Args:
        queries: searched for in `gallery`, or among themselves where that is None.
        units: (Q,) whole classes or clusters of them.
        gallery_units: (G,) likewise; units that only the gallery has stay in it.
        rules: which items are taken out, where the class does not say; None: none but the query itself.
        memory: bytes that a search of other metrics may take.

    Returns:
        Metric -> (U, U) for `statistics.jackknife`: [u, i] is what the queries of unit i add to the metric without unit
        u; the sum over i is that metric, NaN where no query is left. No table of a metric that is not defined without
        a unit.
    """
    if rules is not None and rules.positives is not None:
        raise ValueError("lists of right items name items of units that are left out")
    search: dict[str, Any] = {"similarity": similarity, "rules": rules}
    if gallery is not None:
        ids = {"ids": queries.ids, "gallery_ids": gallery.ids}
        search |= {"gallery": gallery.values, "gallery_labels": gallery.labels, **ids}
    most = groups_of(units, gallery_units, MOST_UNITS, seed=0)
    counted = {**search, "gallery_units": most[1]}
    parts_by_name: dict[str, FloatArray] = {}
    if ks:
        recalls = left_out_recall(queries.values, queries.labels, most[0], ks=ks, **counted)
        parts_by_name |= {str(Recall(k)): table for k, table in zip(ks, recalls, strict=True)}
    for metric, names in metrics:
        if isinstance(metric, ReciprocalRank):
            tables = left_out_means(
                queries.values,
                queries.labels,
                most[0],
                values=lambda ranks: reciprocal_ranks(ranks)[None],
                lone=metric.lone,
                **counted,
            )
            parts_by_name["MRR"] = tables[0]
        elif isinstance(metric, QueryMetric):
            fewer = groups_of(units, gallery_units, MOST_COMPUTED, seed=0)
            computed = _recompute(metric, queries, fewer, search, memory)
            parts_by_name |= {name: table for name, table in computed.items() if name in names}
    return parts_by_name


def groups_of(
    units: IntArray, gallery_units: IntArray | None, most: int, seed: int
) -> tuple[IntArray, IntArray | None]:
    """Number the units of queries, or where there are too many, random groups of units of about one size.

    Args:
        units: (Q,).
        gallery_units: (G,); those without a query become -1. None without a gallery.
    """
    names, places = np.unique(units, return_inverse=True)
    numbers = np.arange(len(names))
    if len(names) > most:
        order = np.random.default_rng(seed).permutation(len(names))
        numbers[order] = np.arange(len(names)) * most // len(names)
    if gallery_units is None:
        return numbers[places], None
    indices = np.searchsorted(names, gallery_units).clip(max=len(names) - 1)
    return numbers[places], np.where(names[indices] == gallery_units, numbers[indices], -1)


def _recompute(
    metric: QueryMetric,
    queries: LayerFeatures,
    groups: tuple[IntArray, IntArray | None],
    search: Mapping[str, Any],
    memory: int | None,
) -> dict[str, FloatArray]:
    """(U, U) parts of each mean over queries that a metric gives, computed without each group.

    Nothing of a metric that is not defined without one of the groups: kNN@200 of 201 items, for example.
    """
    size = int(groups[0].max()) + 1
    tables: dict[str, FloatArray] = {}
    for group, (search_without, places) in enumerate(_without_each(queries, groups, search)):
        try:
            of_queries = metric.of_queries(replace(search_without, memory=memory))
        except DataError:  # too few items or classes are left
            return {}
        for name, values in of_queries.items():
            there = ~np.isnan(values)
            table = tables.setdefault(name, np.full((size, size), np.nan))
            table[group] = np.bincount(places[there], values[there], size) / there.sum()
    return tables


def _without_each(
    queries: LayerFeatures, groups: tuple[IntArray, IntArray | None], search: Mapping[str, Any]
) -> Iterator[tuple[Retrieval, IntArray]]:
    """What is left of a search without each group, and the groups of the queries that are left."""
    places, searched_places = groups
    for group in range(int(places.max()) + 1):
        queries_without = np.flatnonzero(places != group)
        items = queries_without if searched_places is None else np.flatnonzero(searched_places != group)
        rules: SearchRules | None = search["rules"]
        if rules is not None:
            rules = rules.of_rows(queries_without, items)
            rules = replace(rules, gallery_groups=None) if searched_places is None else rules
        search_without = {**search, "rules": rules}
        if searched_places is not None:
            search_without |= {
                "gallery": _rows(search["gallery"], items),
                "gallery_labels": search["gallery_labels"][items],
                "ids": [search["ids"][row] for row in queries_without],
                "gallery_ids": [search["gallery_ids"][row] for row in items],
            }
        yield (
            retrieval(_rows(queries.values, queries_without), queries.labels[queries_without], **search_without),
            places[queries_without],
        )


@dataclass(frozen=True, eq=False)
class _RowsOnDisk:
    """Some rows (N,), ascending, of a table that is read in slices; a table likewise."""

    table: Table
    rows: IntArray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), *self.table.shape[1:]

    @property
    def dtype(self) -> Any:
        return self.table.dtype

    def __getitem__(self, rows: slice) -> Any:
        some = self.rows[rows]
        return self.table[int(some[0]) : int(some[-1]) + 1][some - some[0]]


def _rows(values: Any, rows: IntArray) -> NDArray[Any] | Tensor | Table:
    if hasattr(values, "detach"):  # a tensor
        chosen: Tensor = values[rows.tolist()]
        return chosen
    return values[rows] if isinstance(values, np.ndarray) else _RowsOnDisk(values, rows)
