"""Contrastive loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss, at_least_zero, positive
from layerprobe.losses.vectors import pairs_of, squared_euclidean, unit

_SCALE = 3.0


class Contrastive(Loss):
    """Half of the mean of d over positive pairs plus the mean of margin - d over the negatives closer than the margin.

    As in the released code of Vo & Hays 2019: d is the squared Euclidean distance of embeddings of length `scale`, and
    the mean over negatives takes only those closer than the margin. `informative` counts these and the positives whose
    distance is not 0. A collapsed batch costs half the margin. With `normalise` False, d is that of the embeddings as
    they are, which Horiguchi et al. 2019 draw in two dimensions (figure 1 (a)).

    Args:
        embedding_dim, num_classes: not used.
        margin: a squared distance, at least 0; 0.2 in that code.
        scale: length that the embeddings get, above 0; 3 in that code. Without `normalise` there is none.
        normalise: give the embeddings this length.
    """

    sampler = "classes"
    needs_positives = True
    images_per_class = 2

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        margin: float = 0.2,
        scale: float = _SCALE,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        self.margin = at_least_zero("margin", margin, "a squared distance")
        self.length = positive("scale", scale, "the embeddings' length")
        if not normalise and scale != _SCALE:
            raise ValueError(f"scale is {scale} and normalise is false, which keeps the embeddings' lengths; keep one")
        self.normalise = normalise

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar.

        Raises:
            ValueError: one class only, or no class twice.
        """
        positives, negatives = pairs_of(labels)
        distances = squared_euclidean(self.length * unit(embeddings) if self.normalise else embeddings)
        near = F.relu(self.margin - distances[negatives])
        violating = (near.detach() > 0).sum()
        self.informative = violating + (distances.detach()[positives] > 0).sum()
        return 0.5 * (distances[positives].mean() + near.sum() / violating.clamp(min=1))
