"""Retrieval: the exact rank of every query's nearest same-class item, which gives all K at once, and neighbours."""

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
