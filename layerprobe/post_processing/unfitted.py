"""Post-processing that fit nothing: l2, layernorm, first:D and binary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerprobe.post_processing.post_processing import FitInputs, PostProcessing, dimensions, max_loss

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.post_processing.post_processing import FittedStep


class L2(PostProcessing):
    """Divides each feature by its Euclidean length; a zero vector stays zero."""

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - nothing is learnt
        """The normalisation; no batch is read."""
        return unit


def unit(features: Tensor) -> Tensor:
    """(B, D) -> (B, D) of length 1; a zero vector stays zero."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    return features / lengths.masked_fill(lengths == 0, 1)


EPS = 1e-5  # torch.nn.LayerNorm's default, which the released code of Zhai & Wu keeps


class LayerNorm(PostProcessing):
    """Subtracts from each feature the mean of its numbers, and divides by sqrt(their variance + 1e-5).

    Layer normalisation (Ba et al., 2016) without learnt scale and offset, as Zhai & Wu, 2019, section 4.2, put it after
    the pooling: values are centred at 0, where `layernorm+binary` cuts them. The variance is divided by D. A feature
    whose numbers are all equal becomes 0.
    """

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - nothing is learnt
        """The normalisation; no batch is read."""
        return normalise_rows


def normalise_rows(features: Tensor) -> Tensor:
    """(B, D) -> (B, D), each row less its mean, divided by sqrt(its variance + 1e-5)."""
    from torch.nn.functional import layer_norm

    return layer_norm(features, features.shape[1:], eps=EPS)


class First(PostProcessing):
    """Keeps the first D numbers of each feature.

    Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022, section 3, train networks whose embeddings z have
    prefixes z_1:m that are embeddings themselves. Of other networks a prefix is an arbitrary choice of numbers. The
    prefix is not normalised: `first:64+l2` has length 1.

    Args:
        argument: D, at least 1.

    Raises:
        RecipeError: it is no number of dimensions.
    """

    def __init__(self, argument: str) -> None:
        self._name = f"first:{argument}"
        self._count = dimensions(self._name, argument, like="first:64")

    def dim(self, dim: int) -> int:
        """D.

        Raises:
            NotApplicableError: features have fewer.
        """
        return max_loss(self._name, self._count, dim)

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - nothing is learnt
        """The prefix; no batch is read.

        Raises:
            NotApplicableError: the features have fewer dimensions than D.
        """
        return Prefix(self.dim(dim))


@dataclass(frozen=True)
class Prefix:
    """(B, D) -> (B, D'), the first D' numbers."""

    dim: int

    def __call__(self, features: Tensor) -> Tensor:
        """The prefix."""
        return features[:, : self.dim]


class Binary(PostProcessing):
    """Cuts every number at zero, and packs the bits; they are searched by Hamming distance.

    Zhai & Wu, 2019, sections 4.2 and 6.6. A bit is 1 for a number above 0, as in their released code; 0 itself, which
    the paper leaves open, gives 0. Features that are never below 0, as after a ReLU, need `layernorm` or `pca` before.

    The result is uint8, 8 bits a byte as `numpy.packbits` orders them, the first number in the highest bit. What is
    left of the last byte is 0 in every feature, and adds nothing to a distance.
    """

    similarity = "hamming"
    number = "bit"

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - nothing is learnt
        """The packing, (B, D) -> (B, ceil(D / 8)) uint8; no batch is read."""
        return pack_signs


def pack_signs(features: Tensor) -> Tensor:
    """(B, D) -> (B, ceil(D / 8)) uint8, whose bits say which numbers are above 0."""
    import torch
    from torch.nn.functional import pad

    bits = pad(features > 0, (0, -features.shape[1] % 8)).unflatten(1, (-1, 8))
    # In int32, as ONNX Runtime has no sum of uint8.
    places = 2 ** torch.arange(7, -1, -1, dtype=torch.int32, device=features.device)
    codes: Tensor = (bits * places).sum(2, dtype=torch.int32).to(torch.uint8)
    return codes
