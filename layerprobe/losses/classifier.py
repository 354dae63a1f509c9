"""The linear classifier of a softmax loss, as it multiplies the features."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """logits = scale * x . w_c + bias_c, with x the features, or these at length 1.

    Args:
        features: (N, D) before they get length 1.
        weight: (C, D).
        bias: (C,), which the scale does not multiply.
        unit: whether x has length 1.
    """

    features: Tensor
    weight: Tensor
    bias: Tensor
    scale: float
    unit: bool
