"""Rank of the nearest same-class item for every query: exact, all K at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.ranking.ranks import nearest_positive_ranks
    from layerprobe.ranking.recall import recall_at_k

__all__ = ["nearest_positive_ranks", "recall_at_k"]


def __getattr__(name: str) -> Any:
    # On first use, so that a list of names needs no numpy.
    if name == "nearest_positive_ranks":
        from layerprobe.ranking.ranks import nearest_positive_ranks

        return nearest_positive_ranks
    if name == "recall_at_k":
        from layerprobe.ranking.recall import recall_at_k

        return recall_at_k
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
