"""Features -> what each kind of index of them costs: recall, size and time, beside the exact search."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from layerprobe.measure.analysis import Features, rank
from layerprobe.metrics.metric import means_of
from layerprobe.ranking import nearest_neighbours
from layerprobe.ranking.faiss_search import import_faiss
from layerprobe.ranking.index import Index, build_index, vectors_of
from layerprobe.ranking.items import find_self_indices
from layerprobe.ranking.relevance import Relevance, relevance_of
from layerprobe.ranking.vectors import comparable
from layerprobe.system.errors import LayerprobeError
from layerprobe.values.costs import EXACT, IndexCost, IndexCosts, IndexKind
from layerprobe.values.retrieval import SearchRules, Similarity
from layerprobe.values.scores import Recall

_ALONE = 200  # queries that are timed one by one


@dataclass(frozen=True, eq=False)
class Searched:
    """Queries, what they are searched in, and what an index is trained on.

    Args:
        gallery: None for the queries themselves, without the query.
        training: (M, D) of other images; None if there are none.
        rules: which items are taken out of a query's results besides itself; no lists of right items.
    """

    queries: Features
    gallery: Features | None
    similarity: Similarity
    training: Any = None
    rules: SearchRules | None = None

    @property
    def items(self) -> Features:
        """What is in the index."""
        return self.queries if self.gallery is None else self.gallery

    @property
    def relevance(self) -> Relevance:
        """What is taken out of each query's results."""
        queries, gallery = self.queries, self.gallery
        if gallery is None:
            return relevance_of(
                queries.labels, None, find_self_indices(len(queries.labels), None, None, None), self.rules
            )
        self_indices = find_self_indices(len(queries.labels), queries.ids, len(gallery.labels), gallery.ids)
        return relevance_of(queries.labels, gallery.labels, self_indices, self.rules)


def index_costs(searched: Searched, kinds: Sequence[IndexKind], *, layer: str, k: int = 1) -> IndexCosts:
    """Build each kind of index, and search all queries in it.

    Recall@K is that of the K first results that are not taken out, such as the query itself: each query asks for so
    many more. A tie counts as faiss orders it; in the exact search, by its expected value under a random order.

    Args:
        layer: its name.
        k: K.

    Returns:
        The exact search first. A kind that cannot be built is a note.

    Raises:
        EnvironmentFault: faiss cannot be imported.
        NumericError: a row holds NaN or Inf.
    """
    queries, items, rules = searched.queries, searched.items, searched.rules
    relevance = searched.relevance
    neighbours = min(k + int(relevance.excluded_counts().max()), len(items.labels))
    hits = rank(queries, searched.gallery, searched.similarity, ks=[k], rules=rules).hits(k)
    exact = means_of({"": hits})[""]
    exact_nearest = _Nearest.of(searched)
    vectors = vectors_of(cast("Any", queries.values), searched.similarity)
    rows: list[IndexCost] = []
    notes = []
    for kind in dict.fromkeys(("flat", *kinds)):
        try:
            start = time.thread_time()
            index = build_index(
                cast("Any", items.values), kind, similarity=searched.similarity, training=searched.training
            )
            seconds = time.thread_time() - start
        except LayerprobeError as error:
            notes.append(f"left out: {error.message}")
            continue
        alone, batch, results = _time_searches(index, vectors, neighbours)
        leading = _leading_results(results, relevance, k)
        recall = _recall(leading, relevance)
        cost = IndexCost(
            kind, index.parameters, recall, recall - exact, exact_nearest.share(leading[:, 0]),
            _bytes(index) / len(index), alone, batch, seconds,
        )  # fmt: skip
        if not rows:
            rows.append(IndexCost(EXACT, {}, exact, 0.0, 1.0, cost.bytes_per_image, alone, batch, seconds))
        if kind in kinds:
            rows.append(cost)
    return IndexCosts(
        layer,
        str(Recall(k)),
        len(queries.labels),
        len(items.labels),
        neighbours,
        None if searched.training is None or "ivfpq" not in kinds else len(searched.training),
        _cpu(),
        tuple(rows),
        notes=tuple(notes),
    )


@dataclass(frozen=True, eq=False)
class _Nearest:
    """The exact nearest neighbour of each query.

    Args:
        queries: (Q, D') float64.
        items: (G, D') float64.
        least: (Q,) the similarity of what is nearest or tied with it, at least; NaN where nothing is left.
    """

    queries: torch.Tensor
    items: torch.Tensor
    least: torch.Tensor

    @classmethod
    def of(cls, searched: Searched) -> _Nearest:
        queries, items = searched.queries, searched.gallery
        values, gallery = cast("Any", queries.values), None if items is None else cast("Any", items.values)
        nearest = nearest_neighbours(
            values,
            1,
            gallery,
            similarity=searched.similarity,
            ids=None if items is None else queries.ids,
            gallery_ids=None if items is None else items.ids,
            rules=searched.rules,
            labels=queries.labels,
            gallery_labels=None if items is None else items.labels,
        ).indices[:, 0]
        both = comparable(values, gallery, searched.similarity)
        there = torch.from_numpy(nearest >= 0).to(both.queries.device)
        least = _similarities(both.queries, both.gallery, nearest) - both.windows
        return cls(both.queries, both.gallery, least.where(there, torch.nan))

    def share(self, rows: NDArray[np.int64]) -> float:
        """The share of the queries whose item (Q,) is nearest, or tied with it; -1 for none."""
        similar = _similarities(self.queries, self.items, rows)
        there = torch.from_numpy(rows >= 0).to(similar.device)
        has_nearest = ~self.least.isnan()
        return float((there & (similar >= self.least))[has_nearest].double().mean())


def _similarities(queries: torch.Tensor, items: torch.Tensor, rows: NDArray[np.int64]) -> torch.Tensor:
    """(Q,) of each query with an item."""
    return (queries * items[torch.from_numpy(rows).to(items.device)]).sum(1)


def _time_searches(index: Index, vectors: NDArray[Any], neighbours: int) -> tuple[float, float, NDArray[np.int64]]:
    """Milliseconds of a query that is searched alone, and among all; and the rows that are found (Q, neighbours)."""
    alone = []
    with threadpool_limits(1):
        index.faiss.search(vectors[:_ALONE], neighbours)  # the first search is slower
        for row in np.linspace(0, len(vectors) - 1, min(_ALONE, len(vectors))).astype(int).tolist():
            start = time.thread_time()
            index.faiss.search(vectors[row : row + 1], neighbours)
            alone.append(time.thread_time() - start)
        start = time.thread_time()
        _, rows = index.faiss.search(vectors, neighbours)
        batch = time.thread_time() - start
    return 1e3 * float(np.median(alone)), 1e3 * batch / len(vectors), rows


def _leading_results(rows: NDArray[np.int64], relevance: Relevance, k: int) -> NDArray[np.int64]:
    """(Q, K) the first results that are not taken out; -1 where there are fewer."""
    out = relevance.is_excluded(torch.from_numpy(rows)).numpy() | (rows < 0)
    order = np.argsort(out, axis=1, kind="stable")[:, :k]
    leading = np.where(np.take_along_axis(out, order, 1), -1, np.take_along_axis(rows, order, 1))
    return cast("NDArray[np.int64]", leading)


def _recall(leading: NDArray[np.int64], relevance: Relevance) -> float:
    """The share of the queries with an item of their class among the first (Q, K)."""
    queries = np.repeat(np.arange(len(leading)), leading.shape[1])
    right = relevance.pairs_of_one_class(queries, leading.ravel()).reshape(leading.shape) & (leading >= 0)
    return float(right.any(1).mean())


def _bytes(index: Index) -> int:
    faiss = import_faiss()
    serialize = faiss.serialize_index_binary if index.similarity == "hamming" else faiss.serialize_index
    return int(serialize(index.faiss).nbytes)


def _cpu() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()
