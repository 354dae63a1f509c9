"""float16 and int8: numbers of fewer bits, which are stored and searched as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from layerprobe.post_processing.post_processing import FitInputs, InTurn, PostProcessing, steps_of
from layerprobe.post_processing.unfitted import pack_signs

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.post_processing.post_processing import FittedStep


class Float16(PostProcessing):
    """Rounds each number to the nearest float16 (IEEE 754 binary16), of two equally near ones to the even one.

    A layer with a number from 65,520 on, which would become infinite, is refused where it is post-processed:
    `l2+float16` has none.
    """

    number = "float16"

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - nothing is learnt
        """The rounding, (B, D) -> (B, D) float16; no batch is read."""
        return round_to_float16


def round_to_float16(features: Tensor) -> Tensor:
    """(B, D) float64 -> (B, D) float16, the nearest; infinite beyond its range."""
    import torch

    # torch rounds to float32 first, which can end at the further neighbour.
    nearest = features.half()
    error = features - nearest.double()
    other = (features + error).half()
    return torch.where((features - other.double()).abs() < error.abs(), other, nearest)


class Int8(PostProcessing):
    """Divides each feature by its largest absolute number, and rounds 127 times that to integers, half to even.

    Symmetric scalar quantisation with a scale for each feature, which is not stored: the cosine, the only similarity by
    which codes are searched, does not depend on it. Codes are -127 to 127; a zero vector stays zero.

    Unlike here, faiss (`QT_8bit`) and sentence-transformers divide the range that each dimension has in other features
    into 255 steps, and usearch multiplies unit vectors by 127 and truncates, so that the codes of many dimensions are
    small.
    """

    similarity = "cosine"
    number = "int8"

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - nothing is learnt
        """The quantisation, (B, D) -> (B, D) int8; no batch is read."""
        return round_to_int8


def round_to_int8(features: Tensor) -> Tensor:
    """(B, D) float64 -> (B, D) int8, each row scaled so that its largest absolute number is 127."""
    import torch

    largest = features.abs().amax(1, keepdim=True)
    return (features / largest.masked_fill(largest == 0, 1) * 127).round().to(torch.int8)


def before_rounding(post_process: FittedStep) -> FittedStep | None:
    """The map up to the numbers that become float16, int8 or bits; None if it ends in none of these."""
    *steps, last = (*steps_of(post_process),) or (None,)
    return InTurn(tuple(steps)) if last in (pack_signs, round_to_float16, round_to_int8) else None
