"""What fitted reductions compute, as values: they can be applied, exported and stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce as folded
from typing import TYPE_CHECKING

from layerprobe.reductions.reduction import Reduce

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Projection:
    """(B, D) features -> (B, D'): (features - mean) @ matrix.

    Args:
        matrix: (D, D') float64.
        mean: (D,) float64; None: 0.
    """

    matrix: Tensor
    mean: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        """The projection, on the device of the features."""
        centred = features if self.mean is None else features - self.mean
        return centred @ self.matrix.to(features.device)


@dataclass(frozen=True, eq=False)
class InTurn:
    """Maps that are applied one after the other; the identity without any."""

    steps: tuple[Reduce, ...]

    def __call__(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, D')."""
        return folded(lambda before, step: step(before), self.steps, features)


def steps_of(reduce: Reduce) -> Iterator[Reduce]:
    """The maps of which one consists, in the order in which they are applied."""
    if isinstance(reduce, InTurn):
        for step in reduce.steps:
            yield from steps_of(step)
    else:
        yield reduce
