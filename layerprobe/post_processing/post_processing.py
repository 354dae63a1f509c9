"""A post-processing method: a map of features, the argument in its name, and the steps that a fit gives."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce as folded
from typing import TYPE_CHECKING, Literal

from layerprobe.system.errors import RecipeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Number = Literal["float32", "float16", "int8", "bit"]
BITS: Mapping[Number, int] = {"float32": 32, "float16": 16, "int8": 8, "bit": 1}  # of a number
FittedStep = Callable[["Tensor"], "Tensor"]  # (B, D) float64 features, of any split -> (B, D')


@dataclass(frozen=True, eq=False)
class FitInputs:
    """What post-processing may be fitted with beside features.

    Args:
        seed: of the run, for post-processing that draws.
        classifier_weight: (C, D) of the classifier that was trained on this layer, on the device of the features; None
            if there is none.
        labels: (N,) the class of each feature, in the order of the batches; None where it is unknown.
    """

    seed: int = 0
    classifier_weight: Tensor | None = None
    labels: NDArray[np.int64] | None = None


class NotApplicableError(RecipeError):
    """Post-processing that cannot be applied to one layer, but perhaps to others: too few dimensions, no classifier."""


class PostProcessing(ABC):
    """A way to turn features into other features, row by row; a chain of them is `Chain`.

    Attributes:
        fits: whether it learns from features.
        draws: whether it draws at random.
        needs_classifier: whether it takes the weights of the loss's classifier.
        needs_labels: whether it learns from the classes of features, and not from these alone.
        similarity: the only one that its result can be searched by; None for any.
        number: the type of the numbers of its result; nothing can follow another one than float32.
        members: the names of the draws whose mean it stands for; empty for post-processing that is applied itself.
    """

    fits: bool = False
    draws: bool = False
    needs_classifier: bool = False
    needs_labels: bool = False
    similarity: str | None = None
    number: Number = "float32"
    members: tuple[str, ...] = ()

    def dim(self, dim: int) -> int:
        """The number of dimensions that features of `dim` dimensions have afterwards; by default as many.

        Raises:
            NotApplicableError: they have too few.
        """
        return dim

    @abstractmethod
    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:
        """Fit the post-processing.

        Args:
            batches: (B, D) float64 features to fit on, which may be gone through several times; nothing is read from
                disk until they are used. Every batch is on the device on which features will be post-processed.
            dim: D.

        Raises:
            NotApplicableError: it cannot be fitted on these, such as for a rank below the requested dimensions.
        """


def dimensions(name: str, text: str, *, like: str) -> int:
    """A number of dimensions.

    Args:
        name: the whole post-processing, for the error.
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


def share(text: str) -> float | None:
    """A number from 0 to 1 without a sign or an exponent; None for any other text."""
    is_number = re.fullmatch(r"\d*\.?\d+", text, re.ASCII) is not None
    return float(text) if is_number and float(text) <= 1 else None


def max_loss(name: str, count: int, dim: int) -> int:
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

    def onto(self, count: int) -> Projection:
        """The projection onto the first columns alone."""
        return Projection(self.matrix[:, :count].contiguous(), self.mean)


@dataclass(frozen=True, eq=False)
class InTurn:
    """Maps that are applied one after the other; the identity without any."""

    steps: tuple[FittedStep, ...]

    def __call__(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, D')."""
        return folded(lambda before, step: step(before), self.steps, features)


def steps_of(post_process: FittedStep) -> Iterator[FittedStep]:
    """The maps of which one consists, in the order in which they are applied."""
    if isinstance(post_process, InTurn):
        for step in post_process.steps:
            yield from steps_of(step)
    else:
        yield post_process
