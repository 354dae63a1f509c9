"""Retrieval: the exact rank of every query's nearest same-class item, which gives all K at once, and neighbours.

Vectors and items prepared in float64, rounding bounds, leading directions and what they leave out, products that are
timed, the cheapest way to count, tiles, windows and sweeps of matrix products, negatives between positives, a kernel
that counts a tile on a GPU, all pairs, ties, the exact rank of each query's nearest positive, nearest neighbours,
recall in draws of the items, faiss indexes and their files, right and excluded items, gallery labels and ids, processes
that share a ranking.

Types and words: `Product`, `Form`, `Items`, `Relevance`, `Targets`, `Thresholds`, `Pairs`, `Tile`, `AllPairs`,
`Rounded`, `Leading`, `Way`, `Levels`, `Sample`, `Team`, `Index`; queries (Q, D), gallery (G, D), Hamming, bfloat16,
float16, Triton.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.ranking.index import load_index, write_index
    from layerprobe.ranking.neighbours import nearest_neighbours
    from layerprobe.ranking.ranks import nearest_positive_ranks, recall_at_k, retrieval

__all__ = ["load_index", "nearest_neighbours", "nearest_positive_ranks", "recall_at_k", "retrieval", "write_index"]

_MODULES = {
    "load_index": "index",
    "nearest_neighbours": "neighbours",
    "nearest_positive_ranks": "ranks",
    "recall_at_k": "ranks",
    "retrieval": "ranks",
    "write_index": "index",
}


def __getattr__(name: str) -> Any:
    # On first use, so that a list of names needs no numpy.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
