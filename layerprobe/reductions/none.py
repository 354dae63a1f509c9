"""No reduction: features are searched as the layer gives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.reductions.reduction import Reduce


class Unreduced:
    """Leaves features as they are."""

    def fit(self, batches: Iterable[tuple[Tensor, Tensor]], *, seed: int) -> Reduce:  # noqa: ARG002 - nothing is learnt
        """The identity; no batch is read."""
        return lambda features: features
