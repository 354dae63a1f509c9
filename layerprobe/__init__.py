"""layerprobe: which layer of an embedding network generalises?"""

from __future__ import annotations

TYPE_CHECKING = False  # not imported from typing: until the command has begun, Ctrl-C would print a traceback

if TYPE_CHECKING:
    from layerprobe.ranking import nearest_neighbours, nearest_positive_ranks, recall_at_k

__version__ = "0.1.0"
__all__ = ["__version__", "nearest_neighbours", "nearest_positive_ranks", "recall_at_k"]


def __getattr__(name: str) -> object:
    # On first use, so that `import layerprobe` (and its --help) imports no torch.
    if name in ("nearest_neighbours", "nearest_positive_ranks", "recall_at_k"):
        from layerprobe import ranking

        return getattr(ranking, name)
    raise AttributeError(f"module 'layerprobe' has no attribute {name!r}")
