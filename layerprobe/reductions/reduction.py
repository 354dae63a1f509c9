"""Reduction: a map of features, the argument in its name, and the steps that a fit gives."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce as folded
from typing import TYPE_CHECKING

from layerprobe.system.errors import RecipeError

if TYPE_CHECKING:
    from torch import Tensor

Reduce = Callable[["Tensor"], "Tensor"]  # (B, D) float64 features, of any split -> (B, D')


class NotApplicableError(RecipeError):
    """A reduction that cannot be applied to a layer, where it may be to others: too few dimensions, no classifier."""


class Reduction(ABC):
    """A way to turn features into other features, row by row; a chain of them is `Chain`.

    Attributes:
        fits: whether it learns from features.
        draws: whether it draws at random.
        needs_classifier: whether it takes the weights of the loss's classifier.
        similarity: the only one that its result can be searched by; None for any.
        members: the names of the draws whose mean it stands for; empty for a reduction that is applied itself.
    """

    fits: bool = False
    draws: bool = False
    needs_classifier: bool = False
    similarity: str | None = None
    members: tuple[str, ...] = ()

    def dim(self, dim: int) -> int:
        """The number of dimensions that features of `dim` dimensions have afterwards; by default as many.

        Raises:
            NotApplicableError: they have too few.
        """
        return dim

    @abstractmethod
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


def dimensions(name: str, text: str, *, like: str) -> int:
    """A number of dimensions.

    Args:
        name: the whole reduction, for the error.
        text: the number.
        like: a name that is right, for the error.

    Returns:
        At least 1.

    Raises:
        RecipeError: it is no whole number of at least 1, written without leading zeros.
    """
    if not re.fullmatch("[1-9][0-9]*", text, re.ASCII):
        raise RecipeError(f"{name}: {text!r} is no number of dimensions", fix=f"Give a whole number, as in {like}")
    return int(text)


def at_most(name: str, count: int, dim: int) -> int:
    """How many dimensions are wanted.

    Raises:
        NotApplicableError: the features have fewer.
    """
    if count > dim:
        raise NotApplicableError(f"{name}: the features have {dim} dimensions", fix=f"Use at most {dim}")
    return count


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
