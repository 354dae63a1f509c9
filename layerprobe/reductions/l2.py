"""l2: every feature at length 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.reductions.reduction import Reduce


class L2:
    """Divides each feature by its Euclidean length; a zero vector stays zero."""

    fits = draws = needs_classifier = False
    similarity = None
    members = ()

    def dim(self, dim: int) -> int:
        """As before."""
        return dim

    def fit(self, batches: Iterable[Tensor], dim: int, *, seed: int, classifier_weight: Tensor | None) -> Reduce:  # noqa: ARG002 - nothing is learnt
        """The normalisation; no batch is read."""
        return unit


def unit(features: Tensor) -> Tensor:
    """(B, D) -> (B, D) of length 1; a zero vector stays zero."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    return features / lengths.masked_fill(lengths == 0, 1)
