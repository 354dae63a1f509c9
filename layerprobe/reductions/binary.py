"""binary: a bit for each number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.reductions.reduction import Reduce


class Binary:
    """Cuts every number at zero, and packs the bits; they are searched by Hamming distance.

    Zhai & Wu, 2019, sections 4.2 and 6.6. A bit is 1 for a number above 0, as in their released code; 0 itself, which
    the paper leaves open, gives 0. Features that are never below 0, as after a ReLU, need `layernorm` or `pca` before.

    The result is uint8, 8 bits a byte as `numpy.packbits` orders them, the first number in the highest bit. What is
    left of the last byte is 0 in every feature, and adds nothing to a distance.
    """

    fits = draws = needs_classifier = False
    similarity = "hamming"
    members = ()

    def dim(self, dim: int) -> int:
        """As before: the number of bits; a feature takes a byte for each 8."""
        return dim

    def fit(self, batches: Iterable[Tensor], dim: int, *, seed: int, classifier_weight: Tensor | None) -> Reduce:  # noqa: ARG002 - nothing is learnt
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
