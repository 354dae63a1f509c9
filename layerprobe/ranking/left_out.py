"""Rankings without each unit, whose items are removed from queries and gallery together, exactly.

A unit is a class, or several whole classes. Leaving one out takes negatives away from the queries of all others, and
their positives stay. So one pass over all pairs, which counts each query's closer and tied negatives by unit, gives the
ranks of every query without every unit; nothing is ranked again. The means are given in parts, by the unit of the
queries, because an interval needs to know whose hits leaving a unit out changes (`statistics/jackknife.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.ranking.items import find_self_indices, items_of, label_array
from layerprobe.ranking.ranks import integer_k, prepare_search
from layerprobe.ranking.relevance import relevance_of
from layerprobe.ranking.vectors import queries_at_once
from layerprobe.system.computing import full_precision
from layerprobe.values.retrieval import FloatArray, IntArray, Lone, Ranks, SearchRules, Similarity, counted_queries

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.items import Table
    from layerprobe.ranking.relevance import Relevance
    from layerprobe.ranking.search import Search


def left_out_recall(  # noqa: PLR0913 - the items, the rules, and the units left out
    features: ArrayLike | Tensor | Table,
    labels: ArrayLike | Tensor,
    units: ArrayLike,
    *,
    ks: Sequence[int] = (1,),
    gallery: ArrayLike | Tensor | Table | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    gallery_units: ArrayLike | None = None,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    lone: Lone = "miss",
    rules: SearchRules | None = None,
) -> FloatArray:
    """Recall@K without each unit.

    Args:
        features: see `left_out_means`, like all that is not named here.
        labels: (Q,).
        units: (Q,).
        ks: each at least 1.
        gallery: (G, D); None for the queries themselves.
        gallery_labels: (G,).
        gallery_units: (G,).
        similarity: cosine, dot, euclidean or hamming.
        ids: Q names.
        gallery_ids: G names.
        lone: queries without a positive are misses, excluded from the mean, or an error.
        rules: of the search.

    Returns:
        (K, U, U) as from `left_out_means`; summed over the last axis it is Recall@K of the queries outside a unit,
        searched in a gallery without it, ties at their expected value.

    Raises:
        NotFiniteError: see `left_out_means`, like the others.
        DataError: lone queries.
        ValueError: a K below 1, or arguments that do not fit together.
    """
    ks = [integer_k(k) for k in ks]
    for k in ks:
        if k < 1:
            raise ValueError(f"K = {k}: must be at least 1")
    return left_out_means(
        features,
        labels,
        units,
        values=lambda ranks: np.array([ranks.hits(k) for k in ks]).reshape(len(ks), len(ranks)),
        deepest=max(ks, default=0),
        gallery=gallery,
        gallery_labels=gallery_labels,
        gallery_units=gallery_units,
        similarity=similarity,
        ids=ids,
        gallery_ids=gallery_ids,
        lone=lone,
        rules=rules,
    )


def left_out_means(  # noqa: PLR0913 - as left_out_recall
    features: ArrayLike | Tensor | Table,
    labels: ArrayLike | Tensor,
    units: ArrayLike,
    *,
    values: Callable[[Ranks], FloatArray],
    deepest: int | None = None,
    gallery: ArrayLike | Tensor | Table | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    gallery_units: ArrayLike | None = None,
    similarity: Similarity = "cosine",
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    lone: Lone = "miss",
    rules: SearchRules | None = None,
) -> FloatArray:
    """Means over queries, of values that follow from a query's ranks, without each unit, and in parts.

    Classes and items that only the gallery has stay in it: they are distractors, and no draw of queries changes them.
    Where the tie window depends on the gallery (dot, euclidean), it is that of the whole gallery.

    Time: a product of all pairs in float64. Memory: some 200 MB and M U^2 numbers, and the gallery in float64 unless it
    is on disk, where it is read for every 8 million pairs.

    Args:
        features: (Q, D) of the queries, of any real type, also on disk; for hamming uint8 of packed bits. A tensor
            decides where it is computed.
        labels: (Q,) integers, the class of each.
        units: (Q,) integers; no class is divided between two units.
        values: of queries, in [0, 1]: (M, Q) from their ranks; each query's depend on its own counts alone.
        deepest: a query's values are the same for all counts of closer negatives from here on; None where they are not.
        gallery: (G, D) the searched items, likewise; None for the queries themselves.
        gallery_labels: (G,) integers; needed with a gallery.
        gallery_units: (G,) integers, likewise.
        similarity: cosine, dot, euclidean or hamming, with the ties of `nearest_positive_ranks`.
        ids: Q names, used with `gallery_ids` only.
        gallery_ids: G different names; an item with the query's name is no neighbour of it.
        lone: queries without a positive stay in the mean, are excluded from it, or are an error.
        rules: which items are taken out, where the class does not say; None: none but the query itself.

    Returns:
        (M, U, U), units in ascending order: [m, u, i] is the contribution of the queries of unit i to the mean over all
        queries outside unit u, 0 for i = u; so the sum over i is that mean. NaN where no query is left.

    Raises:
        NotFiniteError: a row holds NaN or Inf; with the number of rows.
        DataError: lone queries where they are an error, or no other queries where they are excluded.
        ValueError: a class in two units, lists of right items or sets of labels, or arguments that do not fit together.
    """
    if rules is not None and rules.positives is not None:
        raise ValueError("lists of right items name items of units that are left out")
    if rules is not None and rules.label_sets is not None:
        raise ValueError("a unit that is left out has items that share a label with others")
    queries = items_of(features, labels, "features", similarity)
    classes, members = queries.labels, label_array(units, len(queries), "units")
    searched, searched_units = queries, members
    if gallery is not None:
        searched = items_of(gallery, gallery_labels, "gallery", similarity)
        searched_units = label_array(gallery_units, len(searched), "units of the gallery")
    elif gallery_units is not None:
        raise ValueError("gallery_units need a gallery")
    self_indices = find_self_indices(len(queries), ids, None if gallery is None else len(searched), gallery_ids)
    relevance = relevance_of(classes, None if gallery is None else searched.labels, self_indices, rules)
    divided = find_divided_class(
        np.concatenate([classes, relevance.gallery_labels]), np.concatenate([members, searched_units])
    )
    if divided is not None:
        raise ValueError(f"class {divided} is in two units")
    counted = counted_queries(relevance.counts()[0] > 0, lone)
    names, places = np.unique(members, return_inverse=True)
    by_unit = np.argsort(searched_units, kind="stable")
    by_unit = by_unit[np.isin(searched_units[by_unit], names)]  # items of units with queries, unit by unit
    ends = np.searchsorted(searched_units[by_unit], names, "right")  # (U,) of each unit, which may have no item
    sums: list[FloatArray] = []
    changes: list[FloatArray] = []
    with full_precision(queries.device):
        search = replace(prepare_search(queries, searched, relevance, similarity), in_order=searched.on_disk)
        for block, similarities, windows in _blocks(search):
            counts = _counts(similarities, relevance[block], windows, by_unit, ends)
            for m, row in enumerate(values(counts.ranks) * counted[block]):
                if m == len(sums):
                    sums.append(np.zeros(len(names)))
                    changes.append(np.zeros((len(names), len(names))))
                sums[m] += np.bincount(places[block], row, len(names))
            cells, gains = _changes(counts, places[block], counted[block], values, deepest)
            for change, gain in zip(changes, gains, strict=True):
                np.add.at(change, cells, gain)
    return _parts(np.array(sums), np.array(changes), np.bincount(places[counted], minlength=len(names)))


def _blocks(search: Search) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Some queries (B,), their (B, G) float64 similarities, of which excluded ones are at -inf, and their windows."""
    from layerprobe.ranking.search import CELLS  # which imports torch

    step, count = queries_at_once(len(search.gallery)), len(search.queries)
    size = step * max(1, CELLS // (step * len(search.gallery)))
    for part, queries, similarities, _ in search.blocks_of_pairs(
        slice(start, min(start + size, count)) for start in range(0, count, size)
    ):
        for start in range(part.start, part.stop, step):
            block = slice(start, min(start + step, part.stop))
            rows = slice(start - part.start, block.stop - part.start)
            yield block, similarities[rows], search.form.windows(queries[rows])


def _parts(sums: FloatArray, changes: FloatArray, counts: IntArray) -> FloatArray:
    """(M, U, U) parts of means from each unit's sums (M, U), their changes without another, and queries (U,)."""
    size = len(counts)
    parts = sums[:, None, :] + changes
    parts[:, np.arange(size), np.arange(size)] = 0
    with np.errstate(invalid="ignore", divide="ignore"):
        parts /= (counts.sum() - counts)[:, None]
    return parts


def find_divided_class(labels: IntArray, units: IntArray) -> int | None:
    """The first class that lies in more than one unit; None if there is none.

    Args:
        labels: (N,) class of each item.
        units: (N,) unit of each.
    """
    pairs = np.unique(np.stack([labels, units], 1), axis=0)
    repeated = np.flatnonzero(np.diff(pairs[:, 0]) == 0)
    return int(pairs[repeated[0], 0]) if len(repeated) else None


@dataclass(frozen=True, eq=False)
class _UnitCounts:
    """Ranks of a block of B queries, and the negatives of each unit that stand before or beside the nearest positive.

    Args:
        ranks: of the queries with the whole gallery.
        rows: (E,) query of an entry, ascending.
        units: (E,) its unit.
        closer: (E,) how many of the unit's items are closer negatives.
        tied: (E,) how many are tied negatives; with `closer` at least 1.
    """

    ranks: Ranks
    rows: IntArray
    units: IntArray
    closer: IntArray
    tied: IntArray


def _counts(
    similarities: Tensor, relevance: Relevance, windows: Tensor, by_unit: NDArray[np.intp], ends: IntArray
) -> _UnitCounts:
    """Count the negatives of queries by unit.

    Args:
        similarities: (B, G), excluded items at -inf.
        relevance: of the queries.
        windows: (B,) tie windows.
        by_unit: (G',) items of units with queries, unit by unit.
        ends: (U,) where each unit ends among them.
    """
    import torch

    device = similarities.device
    right = relevance.right(device)
    nearest = similarities.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
    paired = nearest > -torch.inf
    low, high = nearest - windows[:, None], nearest + windows[:, None]
    positives = ((similarities >= low) & right & paired).sum(1)
    negatives = similarities.masked_fill_(right, -torch.inf)  # -inf is beyond every bound of a query with a positive
    closer, through = (negatives > high) & (negatives > -torch.inf), (negatives >= low) & paired
    order, unit_ends = torch.from_numpy(by_unit).to(device), torch.from_numpy(ends).to(device)
    counts_of_units = []  # (B, U) int64 of closer and of tied negatives
    for mask in (closer, through & ~closer):
        until = mask[:, order].cumsum(1, dtype=torch.int32)
        until = torch.cat([torch.zeros_like(until[:, :1]), until], 1)[:, unit_ends]
        counts_of_units.append(until.diff(dim=1, prepend=torch.zeros_like(until[:, :1])).long())
    # A lone query misses whichever unit is left out.
    rows, units = torch.nonzero((counts_of_units[0] + counts_of_units[1] > 0) & paired, as_tuple=True)
    sums = closer.sum(1), (through & ~closer).sum(1), positives
    before, beside, right_ones = (tensor.cpu().numpy().astype(np.int32) for tensor in sums)
    entries = (rows, units, *(counts[rows, units] for counts in counts_of_units))
    return _UnitCounts(Ranks(before, before, beside, right_ones), *(tensor.cpu().numpy() for tensor in entries))


def _changes(
    counts: _UnitCounts,
    places: IntArray,
    counted: NDArray[np.bool_],
    values: Callable[[Ranks], FloatArray],
    deepest: int | None,
) -> tuple[tuple[IntArray, IntArray], FloatArray]:
    """What leaving units out adds to the values of a block's queries.

    Args:
        counts: the block's counts.
        places: (B,) unit of each query.
        counted: (B,) whether it is in the mean.
        values: (M, B) of ranks.
        deepest: see `left_out_means`.

    Returns:
        (E,) units that are left out and (E,) units of the queries; (M, E) what their values gain.
    """
    remaining = counts.ranks.closer[counts.rows] - counts.closer
    contributing = counted[counts.rows] & (places[counts.rows] != counts.units)
    if deepest is not None:
        contributing &= remaining < deepest
    rows = counts.rows[contributing]
    before = values(counts.ranks)
    if not len(rows):
        return (rows, rows), before[:, :0]
    closer = remaining[contributing].astype(np.int32)
    tied = counts.ranks.tied_negatives[rows] - counts.tied[contributing]
    without = Ranks(closer, closer, tied.astype(np.int32), counts.ranks.tied_positives[rows])
    return (counts.units[contributing], places[rows]), values(without) - before[:, rows]
