"""Multi-similarity loss with its pair mining."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss, at_least_zero, positive
from layerprobe.losses.vectors import unit


class MultiSimilarity(Loss):
    """Mean over images of ln(1 + sum_P e^(-alpha (s - lambda))) / alpha + ln(1 + sum_N e^(beta (s - lambda))) / beta.

    Wang et al., Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning, CVPR 2019; s the cosine, P
    and N the image's pairs that `mine_pairs` keeps. Images without a kept pair count 0, as in the authors' code and in
    pytorch-metric-learning. `informative` counts the kept pairs.

    Args:
        embedding_dim, num_classes: not used.
        alpha: of positive pairs, above 0.
        beta: of negative pairs, above 0.
        base: lambda, a cosine: 1 in the paper's notation, 0.5 in the authors' code and in libraries.
        epsilon: margin of the mining, at least 0; the larger, the more pairs are kept.
    """

    sampler = "classes"
    needs_positives = True
    images_per_class = 5

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        epsilon: float = 0.1,
    ) -> None:
        super().__init__()
        self.alpha = positive("alpha", alpha, "the weight of positive pairs")
        self.beta = positive("beta", beta, "the weight of negative pairs")
        self.epsilon = at_least_zero("epsilon", epsilon, "the mining's margin")
        self.base = base

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar.

        Raises:
            ValueError: no image has both another of its class and one of another class.
        """
        x = unit(embeddings)
        cosines = x @ x.T
        positives, negatives = mine_pairs(cosines.detach(), labels, self.epsilon)
        self.informative = positives.sum() + negatives.sum()
        near = _log1p_sum(-self.alpha * (cosines - self.base), positives) / self.alpha
        far = _log1p_sum(self.beta * (cosines - self.base), negatives) / self.beta
        return (near + far).mean()


def mine_pairs(cosines: Tensor, labels: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The pairs that are hard for their image.

    A negative is kept where its cosine + epsilon is above that of the image's least similar positive, a positive where
    its cosine - epsilon is below that of the most similar negative.

    Args:
        cosines: (B, B).
        labels: (B,).
        epsilon: the margin.

    Returns:
        Positive and negative pairs, each a (B, B) mask.

    Raises:
        ValueError: no image has both kinds.
    """
    same = labels[:, None] == labels[None, :]
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    if not bool((positives.any(1) & (~same).any(1)).any()):
        raise ValueError("a batch without pairs to compare: it needs two classes and one of them twice")
    hardest_positive = cosines.masked_fill(~positives, torch.inf).amin(1, keepdim=True)
    hardest_negative = cosines.masked_fill(same, -torch.inf).amax(1, keepdim=True)
    both = torch.isfinite(hardest_positive) & torch.isfinite(hardest_negative)
    return (
        positives & both & (cosines - epsilon < hardest_negative),
        ~same & both & (cosines + epsilon > hardest_positive),
    )


def _log1p_sum(exponents: Tensor, chosen: Tensor) -> Tensor:
    """(B,) ln(1 + the sum of the chosen ones' exponentials)."""
    return torch.logsumexp(F.pad(exponents.masked_fill(~chosen, -torch.inf), (1, 0)), 1)
