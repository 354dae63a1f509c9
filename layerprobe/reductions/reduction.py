"""Reduction: what is done to a layer's features before they are searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Reduce = Callable[["Tensor"], "Tensor"]  # (N, D) features, of any split -> (N, D')


class Reduction(Protocol):
    """A way to turn features into other features, fitted on the training split."""

    def fit(self, batches: Iterable[tuple[Tensor, Tensor]], *, seed: int) -> Reduce:
        """Learn what the reduction needs.

        Args:
            batches: (B, D) float32 features of the training split and their (B,) labels; they are read from disk only
                where they are asked for.
            seed: of the run, for a reduction that draws at random.
        """
