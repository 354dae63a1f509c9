"""layernorm: the numbers of every feature at mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.reductions.reduction import Reduce

EPS = 1e-5  # torch.nn.LayerNorm's default, which the released code of Zhai & Wu keeps


class LayerNorm:
    """Subtracts from each feature the mean of its numbers, and divides by sqrt(their variance + 1e-5).

    Layer normalisation (Ba et al., 2016) without learnt scale and offset, as Zhai & Wu, 2019, section 4.2, put it after
    the pooling: values are centred at 0, where `layernorm+binary` cuts them. The variance is divided by D. A feature
    whose numbers are all equal becomes 0.
    """

    fits = draws = needs_classifier = False
    similarity = None
    members = ()

    def dim(self, dim: int) -> int:
        """As before."""
        return dim

    def fit(self, batches: Iterable[Tensor], dim: int, *, seed: int, classifier_weight: Tensor | None) -> Reduce:  # noqa: ARG002 - nothing is learnt
        """The normalisation; no batch is read."""
        return normalise_rows


def normalise_rows(features: Tensor) -> Tensor:
    """(B, D) -> (B, D), each row less its mean, divided by sqrt(its variance + 1e-5)."""
    from torch.nn.functional import layer_norm

    return layer_norm(features, features.shape[1:], eps=EPS)
