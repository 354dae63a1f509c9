"""The names of metrics: Recall@K with its K, gallery and terms; fractions and other numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from layerprobe.registry import PLAIN_METRICS

_RECALL = re.compile(r"R@([1-9][0-9]*)(?:\(G=([0-9]+)\)|\(([0-9]+)x([0-9]+)\))?", re.ASCII)


@dataclass(frozen=True)
class Terms:
    """Number of classes, and of images of each, drawn from every split; at least 2 each."""

    classes: int
    images: int

    def name(self, k: int = 1) -> str:
        """`R@1(14x20)`, in tables and files."""
        return str(Recall(k, terms=self))


@dataclass(frozen=True)
class Recall:
    """Recall@K: `R@1`, `R@1(G=1000)` in a smaller gallery, `R@1(14x20)` on equal terms.

    Args:
        gallery: number of searched items; None for the whole gallery.
        terms: None for all classes and images.
    """

    k: int
    gallery: int | None = None
    terms: Terms | None = None

    def __str__(self) -> str:
        more = "" if self.gallery is None else f"(G={self.gallery})"
        return f"R@{self.k}{more}" + (f"({self.terms.classes}x{self.terms.images})" if self.terms else "")


@cache
def recall_of(metric: str) -> Recall | None:
    """The Recall@K of a name; None for another metric."""
    found = _RECALL.fullmatch(metric)
    if found is None:
        return None
    gallery, classes, images = (None if text is None else int(text) for text in found.groups()[1:])
    terms = None if classes is None or images is None else Terms(classes, images)
    return Recall(int(found[1]), gallery, terms)


def is_recall(metric: str) -> bool:
    """Whether a metric is R@K of a whole gallery, which is invalid only for features that are not finite."""
    found = recall_of(metric)
    return found is not None and found.gallery is None and found.terms is None


def is_fraction(metric: str) -> bool:
    """Whether a metric is shown in percent; `NAME-sd` and the like follow NAME, an unknown one is a share."""
    return not any(metric == name or metric.startswith(f"{name}-") for name in PLAIN_METRICS)
