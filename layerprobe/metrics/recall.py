"""Recall@K: its name, its chance level, and its value in a gallery thinned by image.

Vo & Hays 2019, section 4, for K = 1: the percentage of test images whose first nearest neighbour is of the same class.
Here it is a fraction, for any K, with the query itself excluded.

In a thinned gallery, of the M negatives of a query with P positives N - P are drawn without replacement, where N is how
many items it then searches. The closer ones among those drawn are hypergeometric, so that the ranks in the whole
gallery give Recall@K at every smaller N exactly. Nothing is searched again.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.ranking.items import find_self_indices
from layerprobe.ranking.relevance import relevance_of
from layerprobe.system.errors import RecipeError
from layerprobe.values.retrieval import Ranks, SearchRules


def chance_recall(  # noqa: PLR0913 - what is searched, and by which rules
    labels: ArrayLike,
    k: int,
    gallery_labels: ArrayLike | None = None,
    *,
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    rules: SearchRules | None = None,
) -> float:
    """Recall@K that a random order of the gallery is expected to reach, exactly.

    A query with p right ones among the T items that it may find misses with probability C(T - p, K) / C(T, K); a lone
    query (p = 0) always.

    Args:
        labels: (Q,) class of each query.
        k: at least 1 and below the gallery's size (Q without a gallery).
        gallery_labels: (G,) classes of the searched items; None for the other queries.
        ids: Q names, used with `gallery_ids` only.
        gallery_ids: G different names; a query does not find the item of its name. None: no query is among them.
        rules: which items are right, or taken out, where the class does not say; None: the classes alone.

    Returns:
        A fraction in [0, 1].

    Raises:
        ValueError: k out of range, labels that are not a vector, or rules that do not fit them.
    """
    positives, negatives = positives_and_negatives(
        labels, gallery_labels, ids=ids, gallery_ids=gallery_ids, rules=rules
    )
    size = np.size(labels if gallery_labels is None else gallery_labels)
    if not 1 <= k < size:
        raise ValueError(f"K = {k}: must be at least 1 and below the gallery's size, {size}")
    none = np.zeros(len(positives), np.int32)
    # In a random order everything is tied.
    return Ranks(none, none, negatives.astype(np.int32), positives.astype(np.int32)).recall(k)


def positives_and_negatives(
    labels: ArrayLike,
    gallery_labels: ArrayLike | None = None,
    *,
    ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
    rules: SearchRules | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many items each query may find that are right, and how many that are wrong.

    Args:
        labels: (Q,) class of each query.
        gallery_labels: (G,) classes of the searched items; None for the other queries.
        ids: see `chance_recall`, like the others.
        gallery_ids: G different names.
        rules: which items are right, or taken out.

    Returns:
        (Q,) and (Q,); neither counts the query itself, nor excluded items.

    Raises:
        ValueError: labels that are not a vector, or rules that do not fit them.
    """
    queries = np.asarray(labels)
    gallery = None if gallery_labels is None else np.asarray(gallery_labels)
    for vector in (queries, gallery):
        if vector is not None and vector.ndim != 1:
            raise ValueError(f"labels: expected vectors, got {vector.shape}")
    if gallery is None:
        self_indices = find_self_indices(len(queries), None, None, None)
    else:
        self_indices = find_self_indices(len(queries), ids, len(gallery), gallery_ids)
    return relevance_of(queries, gallery, self_indices, rules).counts()


Counts = NDArray[np.int64]

THINNED_NOTE = "thinned by image"  # what every score in a smaller gallery says

# A sum of at most this is dropped.
_NOTHING = 1e-15
_FIRST_TERMS = 64
_NUMBERS_AT_ONCE = 2**20


def require_gallery_size(size: int, ks: Collection[int], positives: Counts, negatives: Counts) -> None:
    """Check that every query can search so many items.

    Args:
        size: how many, the query itself not counted.
        ks: K of Recall@K.
        positives: (Q,) right items of each query.
        negatives: (Q,) wrong ones.

    Raises:
        RecipeError: a query has not so many, or its positives leave no room for K negatives; with the first such query
            and the sizes that all queries allow.
    """
    if fault := _misfit(size, max(ks), positives, negatives):
        low, high = int(positives.max()) + max(ks), int((positives + negatives).min())
        fix = f"Choose a size from {low} to {high}" if low <= high else "No size is right for all queries: leave it out"
        raise RecipeError(f"a gallery of {size}: {fault}", fix=fix)


def thinned_hits(ranks: Ranks, k: int, size: int, positives: Counts, negatives: Counts) -> NDArray[np.float64]:
    """Each query's probability that one of its `k` nearest items is a positive, in a gallery thinned to a size.

    Each query keeps its positives; which negatives it keeps is drawn for it alone. It is the expectation of
    `Ranks.hits` over the draw. With the tied in a random order, j tied negatives come before the first tied positive
    with a probability p_j that the draw does not change; the query then hits where at most `k` - 1 of these and of the
    closer ones are drawn: sum over j of p_j P(Hypergeometric(M, closer + j, N - P) <= k - 1). Exact to 1e-12.

    Args:
        ranks: of the whole gallery, every count exact.
        k: at least 1.
        size: N, how many items a query searches, itself not counted: from P + k to P + M for every query.
        positives: (Q,) P, how many right items each query has.
        negatives: (Q,) M, how many wrong ones.

    Returns:
        (Q,) in [0, 1]; 0 for lone queries.

    Raises:
        ValueError: k below 1, another size, counts that are open, or numbers of items that are not those of the ranks.
    """
    if k < 1:
        raise ValueError(f"K = {k}: must be at least 1")
    if ranks.open().any():
        raise ValueError(f"the counts of {int(ranks.open().sum())} queries are open; resolve them")
    if positives.shape != ranks.closer.shape or negatives.shape != ranks.closer.shape:
        raise ValueError(f"expected the items of {len(ranks)} queries, got {positives.shape} and {negatives.shape}")
    if ((positives < ranks.tied_positives) | (negatives < ranks.closer + ranks.tied_negatives)).any():
        raise ValueError("a query has fewer items than its ranks count")
    if fault := _misfit(size, k, positives, negatives):
        raise ValueError(fault)
    hits = np.zeros(len(ranks))
    paired = ranks.tied_positives > 0
    counts = (ranks.closer, ranks.tied_negatives, ranks.tied_positives)
    facts: Counts = np.stack(
        [*(query_counts.astype(np.int64) for query_counts in counts), negatives, size - positives], axis=1
    )
    # Queries of equal counts have equal chances: a collapsed layer has one for each size of class.
    different, row_of_query = _different(facts[paired])
    hits[paired] = _chances(different, k)[row_of_query]
    return hits


def _different(rows: Counts) -> tuple[Counts, NDArray[np.intp]]:
    """As `np.unique` of rows with their inverse, several times as fast."""
    order = np.lexsort(rows.T)
    ordered = rows[order]
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    row_of_query = np.empty(len(rows), np.intp)
    row_of_query[order] = np.cumsum(is_new) - 1
    return ordered[is_new], row_of_query


def _misfit(size: int, k: int, positives: Counts, negatives: Counts) -> str:
    """What is wrong with a size, of the first query that it does not suit; empty where it suits all."""
    for query in np.flatnonzero(positives + k > size)[:1]:
        least = positives[query] + k
        return f"query {query} keeps its {positives[query]} positives, so that R@{k} needs at least {least} items"
    for query in np.flatnonzero(positives + negatives < size)[:1]:
        return f"query {query} has {positives[query]} positives and {negatives[query]} negatives, fewer than {size}"
    return ""


def _chances(facts: Counts, k: int) -> NDArray[np.float64]:
    """(U,) the sums of `thinned_hits`.

    Args:
        facts: (U, 5) negatives closer than the nearest positive and tied with it, positives tied with it, negatives,
            and how many of them are drawn.
        k: of Recall@K.
    """
    chances = np.zeros(len(facts))
    # All queries of classes of one size share a table: there are far fewer of these than queries.
    pools, pool = np.unique(facts[:, 3:], axis=0, return_inverse=True)
    for number, (negatives, drawn) in enumerate(pools.tolist()):
        rows = np.flatnonzero(pool.reshape(-1) == number)
        closer, tied, right = facts[rows, :3].T
        table = _cdf_table(k, negatives, drawn, int((closer + tied).max()))
        chances[rows] = _over_ties(table, closer, tied, right)
    return np.clip(chances, 0.0, 1.0)


def _cdf_table(k: int, negatives: int, drawn: int, most: int) -> NDArray[np.float64]:
    """P(at most k - 1 of `a` negatives are drawn) for a = 0, 1 ... `most`; cut where it is nothing, with a 0 behind."""
    parts: list[NDArray[np.float64]] = []
    start = 0
    while start <= most and not (parts and parts[-1][-1] <= _NOTHING):
        end = min(negatives + 1, max(_FIRST_TERMS, 2 * start))
        parts.append(_few_kept_of(k, negatives, drawn, start, end))
        start = end
    return np.concatenate([*parts, [0.0]])


@functools.lru_cache(maxsize=1024)  # every layer of a split asks for the same
def _few_kept_of(k: int, negatives: int, drawn: int, start: int, end: int) -> NDArray[np.float64]:
    from scipy.stats import hypergeom  # a second to import, which only this waits for

    chances: NDArray[np.float64] = hypergeom.cdf(k - 1, negatives, np.arange(start, end), drawn)
    return chances


def _over_ties(table: NDArray[np.float64], closer: Counts, tied: Counts, right: Counts) -> NDArray[np.float64]:
    """(U,) the sum over how many tied negatives come before the first tied positive.

    Args:
        table: as from `_cdf_table`.
        closer: (U,) negatives that are closer.
        tied: (U,) negatives that are tied.
        right: (U,) positives that are tied, at least 1.
    """
    sums = np.zeros(len(closer))
    next_share = right / (tied + right)  # p_0: the first of the tied is a positive
    active, start, terms = np.arange(len(closer)), 0, 1
    while len(active):
        unfinished = []
        for rows in np.array_split(active, -(-len(active) * terms // _NUMBERS_AT_ONCE)):
            j = start + np.arange(terms)
            wrong, all_tied = tied[rows, None], (tied + right)[rows, None]
            # p_(j+1) = p_j (t_n - j) / (t_n + t_p - j - 1)
            ratios = np.maximum(wrong - j, 0) / np.maximum(all_tied - j - 1, 1)
            shares = next_share[rows, None] * np.cumprod(np.hstack([np.ones((len(rows), 1)), ratios]), axis=1)
            hit = table[np.minimum(closer[rows, None] + np.minimum(j, wrong), len(table) - 1)]
            sums[rows] += (shares[:, :-1] * hit).sum(1)
            next_share[rows] = shares[:, -1]
            # The chance of a hit only falls with j.
            unfinished.append(rows[(tied[rows] >= start + terms) & (hit[:, -1] > _NOTHING)])
        active, start, terms = np.concatenate(unfinished), start + terms, max(_FIRST_TERMS, 2 * terms)
    return sums
