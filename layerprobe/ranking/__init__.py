"""Rank of the nearest same-class item for every query: exact, all K at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.ranking.ranks import nearest_positive_ranks, retrieval
    from layerprobe.ranking.recall import recall_at_k

__all__ = ["nearest_positive_ranks", "recall_at_k", "retrieval"]


def __getattr__(name: str) -> Any:
    # On first use, so that a list of names needs no numpy.
    if name in ("nearest_positive_ranks", "retrieval"):
        from layerprobe.ranking import ranks

        return getattr(ranks, name)
    if name == "recall_at_k":
        from layerprobe.ranking.recall import recall_at_k

        return recall_at_k
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
