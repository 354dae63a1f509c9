"""Reduction: a map of a layer's features, applied before they are searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from layerprobe.system.errors import RecipeError

if TYPE_CHECKING:
    from torch import Tensor

Reduce = Callable[["Tensor"], "Tensor"]  # (B, D) float64 features, of any split -> (B, D')


class NotApplicableError(RecipeError):
    """A reduction that cannot be applied to a layer, where it may be to others: too few dimensions, no classifier."""


class Reduction(Protocol):
    """A way to turn features into other features, row by row; a chain of them is `Chain`."""

    fits: bool  # whether it learns from features
    draws: bool  # whether it draws at random
    needs_classifier: bool  # whether it takes the weights of the loss's classifier
    similarity: str | None  # the only one that its result can be searched by; None for any
    members: tuple[
        str, ...
    ]  # the names of the draws whose mean it stands for; empty for a reduction that is applied itself

    def dim(self, dim: int) -> int:
        """The number of dimensions that features of `dim` dimensions have afterwards.

        Raises:
            NotApplicableError: they have too few.
        """

    def fit(self, batches: Iterable[Tensor], dim: int, *, seed: int, classifier_weight: Tensor | None) -> Reduce:
        """Fit the reduction.

        Args:
            batches: (B, D) float64 features to fit on, which may be gone through several times; nothing is read from
                disk until they are used. Every batch is on the device on which features will be reduced.
            dim: D.
            seed: of the run, for a reduction that draws.
            classifier_weight: (C, D) of the classifier that was trained on this layer, on the same device; None if
                there is none.

        Raises:
            NotApplicableError: it cannot be fitted on these, such as for a rank below the requested dimensions.
        """
