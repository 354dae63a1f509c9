"""Ranked list loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss, at_least_zero
from layerprobe.losses.vectors import euclidean, pairs_of, unit


class RankedList(Loss):
    """Mean over the images of L_P + lambda L_N: positives within alpha - margin, negatives beyond alpha.

    Fehervari et al. 2019, equations 6 to 9 (from Wang et al., CVPR 2019), d the Euclidean distance of embeddings of
    length 1. L_P is the mean of d - (alpha - margin) over the image's positives that are farther than that; L_N that of
    alpha - d over its negatives closer than alpha, weighted by w = exp(T (alpha - d)) / their sum, which the paper does
    not define and the original's code has. It has no gradient, which would pull those negatives nearer that are less
    close than others. `informative` counts these pairs.

    Args:
        embedding_dim, num_classes: not used.
        alpha: distance that negatives are pushed to, in (0, 2).
        margin: between the two boundaries, at least 0 and at most alpha.
        temperature: T, at least 0; with 0 all weights are equal.
        weight: lambda, of the negatives, at least 0.
    """

    sampler = "classes"
    needs_positives = True
    images_per_class = 3

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        alpha: float = 1.2,
        margin: float = 0.4,
        temperature: float = 10.0,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        if not 0 < alpha < 2:
            raise ValueError(f"alpha is {alpha}; it is a distance of unit vectors, above 0 and below 2")
        self.alpha = float(alpha)
        if not 0 <= margin <= alpha:
            raise ValueError(f"margin is {margin}; it is a distance, at least 0 and at most alpha = {alpha}")
        self.margin = margin
        self.temperature = at_least_zero("temperature", temperature, "what distances are multiplied by")
        self.weight = at_least_zero("weight", weight, "the weight of the negatives")

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar.

        Raises:
            ValueError: one class only, or no class twice.
        """
        positives, negatives = pairs_of(labels)
        distances = euclidean(unit(embeddings))
        too_far = positives & (distances.detach() > self.alpha - self.margin)
        too_near = negatives & (distances.detach() < self.alpha)
        self.informative = too_far.sum() + too_near.sum()
        pulled = F.relu(distances - (self.alpha - self.margin)) * too_far
        near = self.alpha - distances
        # A row without negatives to push gets weights of 0, not 0 / 0.
        exponents = (self.temperature * near.detach()).masked_fill(~too_near, torch.finfo(near.dtype).min)
        weights = exponents.softmax(1) * too_near
        return (pulled.sum(1) / too_far.sum(1).clamp(min=1) + self.weight * (weights * near).sum(1)).mean()
