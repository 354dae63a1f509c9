"""The names of metrics: Recall@K with its K and gallery; fractions and other numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from layerprobe.registry import PLAIN_METRICS

_RECALL = re.compile(r"R@([1-9][0-9]*)(?:\(G=([0-9]+)\))?", re.ASCII)


@dataclass(frozen=True)
class Recall:
    """Recall@K: `R@1`, `R@1(G=1000)` in a smaller gallery.

    Args:
        gallery: number of searched items; None for the whole gallery.
    """

    k: int
    gallery: int | None = None

    def __str__(self) -> str:
        return f"R@{self.k}" + ("" if self.gallery is None else f"(G={self.gallery})")


@cache
def recall_of(metric: str) -> Recall | None:
    """The Recall@K of a name; None for another metric."""
    match = _RECALL.fullmatch(metric)
    return match and Recall(int(match[1]), None if match[2] is None else int(match[2]))


def is_recall(metric: str) -> bool:
    """Whether a metric is R@K of a whole gallery, which is invalid only for features that are not finite."""
    recall = recall_of(metric)
    return recall is not None and recall.gallery is None


def is_fraction(metric: str) -> bool:
    """Whether a metric is shown in percent; `NAME-sd` and the like follow NAME, an unknown one is a share."""
    return not any(metric == name or metric.startswith(f"{name}-") for name in PLAIN_METRICS)
