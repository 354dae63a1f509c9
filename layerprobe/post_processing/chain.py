"""Chain: post-processing by name, as in `l2+whiten:128:0.5+l2`, and those to equal dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce as folded
from itertools import product
from typing import TYPE_CHECKING

from layerprobe.post_processing.applying import MappedBatches
from layerprobe.post_processing.post_processing import (
    BITS,
    FitInputs,
    FittedStep,
    InTurn,
    NotApplicableError,
    Number,
    PostProcessing,
)
from layerprobe.registry import POST_PROCESSING, load
from layerprobe.system.errors import RecipeError
from layerprobe.values.layers import NO_POST_PROCESSING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

ON_GALLERY = "@gallery"  # ends the name of a chain that is fitted on the searched items


@dataclass(frozen=True, eq=False)
class Chain:
    """Post-processing in the order in which they are applied, each to the output of the one before.

    Args:
        text: its name; `none` for no post-processing.
        parts: the post-processing.
        on_gallery: whether it is fitted, without labels, on the searched items; else on the training split.
    """

    text: str
    parts: tuple[PostProcessing, ...]
    on_gallery: bool = False

    @property
    def fits(self) -> bool:
        """Whether it learns from features."""
        return any(post_processing.fits for post_processing in self.parts)

    @property
    def fits_on_train(self) -> bool:
        """Whether it learns from features of the training split."""
        return self.fits and not self.on_gallery

    @property
    def draws(self) -> bool:
        """Whether it draws at random."""
        return any(post_processing.draws for post_processing in self.parts)

    @property
    def needs_classifier(self) -> bool:
        """Whether it takes the weights of the loss's classifier."""
        return any(post_processing.needs_classifier for post_processing in self.parts)

    @property
    def needs_labels(self) -> bool:
        """Whether it learns from the classes of features."""
        return any(post_processing.needs_labels for post_processing in self.parts)

    @property
    def similarity(self) -> str | None:
        """The only similarity that its result can be searched by; None for any."""
        return self.parts[-1].similarity if self.parts else None

    @property
    def number(self) -> Number:
        """The type of the numbers of its result, as which they are stored and searched."""
        return self.parts[-1].number if self.parts else "float32"

    def bytes_per_image(self, dim: int) -> int:
        """The size of an image's vector in bytes: of `dim` numbers, or bits, that are stored without anything else."""
        return -(-BITS[self.number] * dim // 8)

    def members(self) -> tuple[str, ...]:
        """The names of the chains that it is the mean of, as for `random:64x5`; else its own."""
        if not any(post_processing.members for post_processing in self.parts):
            return (self.text,)
        end = ON_GALLERY if self.on_gallery else ""
        names = zip(self.text.removesuffix(ON_GALLERY).split("+"), self.parts, strict=True)
        return tuple(
            "+".join(names_of_member) + end
            for names_of_member in product(*(post_processing.members or (name,) for name, post_processing in names))
        )

    def dim(self, dim: int) -> int:
        """The number of dimensions that features of `dim` dimensions have afterwards.

        Raises:
            NotApplicableError: they have too few for a part.
        """
        return folded(lambda before, part: part.dim(before), self.parts, dim)

    def fit(
        self,
        batches: Iterable[Tensor],
        dim: int,
        *,
        seed: int,
        classifier_weight: Tensor | None = None,
        labels: NDArray[np.int64] | None = None,
    ) -> FittedStep:
        """Fit each part on the output of the parts before it.

        Args:
            batches: see `PostProcessing.fit`.
            dim: as there.
            seed: see `FitInputs`.
            classifier_weight: as there.
            labels: as there.

        Raises:
            NotApplicableError: as there.
        """
        steps: tuple[FittedStep, ...] = ()
        inputs = FitInputs(seed, classifier_weight, labels)
        for post_processing in self.parts:
            steps = (*steps, post_processing.fit(MappedBatches(batches, InTurn(steps)), dim, inputs))
            dim = post_processing.dim(dim)
        return InTurn(steps)


def parse_chain(text: str) -> Chain:
    """The chain of a name.

    Args:
        text: `none`, or names of post-processing with `+` between, such as `pca:64+l2`; with `@gallery` at its end it
            is fitted on the searched items.

    Raises:
        UnknownNameError: no such post-processing; with the near miss.
        RecipeError: a bad argument, something after `binary`, `float16` or `int8`, or `@gallery` where nothing
            is fitted.
    """
    names = text.removesuffix(ON_GALLERY)
    parts = (
        ()
        if names == NO_POST_PROCESSING
        else tuple(load("post-processing", POST_PROCESSING, name)() for name in names.split("+"))
    )
    chain = Chain(text, parts, text.endswith(ON_GALLERY))
    for name, post_processing in zip(names.split("+"), parts[:-1], strict=False):
        if post_processing.number != "float32":
            raise RecipeError(f"{text}: nothing can follow {name}", fix=f"Put {name} at the end")
    if chain.on_gallery and not chain.fits:
        raise RecipeError(f"{text}: nothing is fitted", fix=f"Leave {ON_GALLERY} out")
    if chain.on_gallery and chain.needs_labels:
        message = f"{text}: it is fitted with classes, and those of the searched images are asked for"
        raise RecipeError(message, fix=f"Leave {ON_GALLERY} out, or take post-processing without classes")
    return chain


DRAWS = 5  # of random projections, whose mean is taken: one draw may be lucky
_MANY = 2**30, 2**31  # dimensions that no layer has


def equal_dimension(dim: int) -> tuple[str, ...]:
    """The chains that `probe --equal-dim` adds, as equal dimension is not one comparison.

    PCA keeps what varies most, partial whitening evens it out, and a random projection favours no direction: layers may
    stand in another order after each. All three search unit vectors.

    Args:
        dim: numbers that each layer has afterwards.
    """
    return f"l2+pca:{dim}+l2", f"l2+whiten:{dim}:0.5+l2", f"random:{dim}x{DRAWS}+l2"


def equal_dim_of(chain: str) -> int | None:
    """The number of dimensions that a chain gives, whatever layer it is applied to; None where that is the layer's.

    Raises:
        RecipeError: see `parse_chain`.
    """
    parsed = parse_chain(chain)
    try:
        dim_of_small, dim_of_large = (parsed.dim(dim) for dim in _MANY)
    except NotApplicableError:  # it takes features of one size
        return None
    return dim_of_small if dim_of_small == dim_of_large else None
