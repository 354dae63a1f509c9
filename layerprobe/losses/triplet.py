"""Triplet hinge loss with random or semi-hard negatives."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss, at_least_zero
from layerprobe.losses.vectors import pairs_of, squared_euclidean, unit

Mining = Literal["semi_hard", "random", "all"]


class Triplet(Loss):
    """Mean of [ d(a, p) - d(a, n) + margin ]_+ over the mined triplets whose loss is not 0.

    Fehervari et al. 2019, equation 1, with the squared Euclidean distance and the semi-hard mining of their section 2.1
    (Schroff et al., CVPR 2015). `informative` counts the triplets averaged over; without any the value and the gradient
    are 0. A collapsed batch costs the margin.

    Args:
        embedding_dim, num_classes: not used.
        margin: a squared distance, at least 0.
        mining: see `mine_triplets`.
        normalise: give the embeddings length 1, as Schroff et al.; the paper's table 1 takes them as they are.
    """

    sampler = "classes"
    needs_positives = True

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        margin: float = 0.2,
        mining: Mining = "semi_hard",
        normalise: bool = True,
    ) -> None:
        super().__init__()
        if mining not in ("semi_hard", "random", "all"):
            raise ValueError(f"mining is {mining}; it is semi_hard, random or all")
        self.margin = at_least_zero("margin", margin, "a squared distance")
        self.mining, self.normalise = mining, normalise

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels -> scalar.

        Raises:
            ValueError: the batch has no triplet: one class only, or no class twice.
        """
        distances = squared_euclidean(unit(embeddings) if self.normalise else embeddings)
        anchors, positives, negatives = mine_triplets(distances.detach(), labels, self.mining)
        losses = F.relu(distances[anchors, positives] - distances[anchors, negatives] + self.margin)
        self.informative = (losses.detach() > 0).sum()
        return losses.sum() / self.informative.clamp(min=1)


def mine_triplets(distances: Tensor, labels: Tensor, mining: Mining) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors, positives and negatives.

    Args:
        distances: (B, B).
        labels: (B,).
        mining: "semi_hard": for each pair of one class the closest negative that is farther than the positive, or the
            farthest where none is. "random": for each pair one negative, all equally likely. "all": every triplet.

    Returns:
        Three (T,) vectors of places in the batch.

    Raises:
        ValueError: there is no triplet.
    """
    same, other = pairs_of(labels)
    if mining == "all":
        anchors, positives, negatives = (same[:, :, None] & other[:, None, :]).nonzero(as_tuple=True)
        return anchors, positives, negatives
    anchors, positives = same.nonzero(as_tuple=True)
    candidates = other[anchors]  # (P, B)
    if mining == "random":
        return anchors, positives, torch.multinomial(candidates.float(), 1)[:, 0]
    of_anchor = distances[anchors]
    farther = candidates & (of_anchor > distances[anchors, positives][:, None])
    closest = of_anchor.masked_fill(~farther, torch.inf).argmin(1)
    farthest = of_anchor.masked_fill(~candidates, -torch.inf).argmax(1)
    return anchors, positives, torch.where(farther.any(1), closest, farthest)
