"""SoftTriple: softmax with several learnt centres per class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss, ParameterGroup, at_least_zero, parameter_rate, positive
from layerprobe.losses.vectors import uniform, unit


class SoftTriple(Loss):
    """Cross-entropy of scale * (S_c - margin [c = y]), S_c = sum_k softmax_k(x . w_ck / gamma) x . w_ck, + tau R.

    Qian et al., SoftTriple Loss: Deep Metric Learning Without Triplet Sampling, ICCV 2019. R, which merges a class's
    centres that it does not need, is the sum over classes of |w_s - w_t| over each pair of the class's centres, divided
    by C K (K - 1). Embeddings and centres have length 1. Equal centres have the distance 0 and no gradient; the
    authors' code has sqrt(1e-5) there instead.

    Args:
        embedding_dim: D.
        num_classes: C.
        centres: K, how many a class has, at least 1; 2 on Stanford Online Products.
        scale: lambda, in (0, inf).
        gamma: temperature of the choice among a class's centres, in (0, inf).
        margin: delta, in cosine, at least 0.
        tau: weight of R, at least 0.
        centre_learning_rate: learning rate of the centres; None for that of the network's new layers. 1e-2 is the
            authors' code's, 100 times that of the network, with Adam. They have no weight decay here (1e-4 there).
        centre_rate_factor: in its place, a multiple of the network's learning rate, with which it then changes.
    """

    sampler = "shuffled"
    needs_positives = False
    scale: Tensor

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        centres: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
        centre_learning_rate: float | None = 1e-2,
        centre_rate_factor: float | None = None,
    ) -> None:
        super().__init__()
        if centres < 1:
            raise ValueError(f"centres is {centres}; a class has at least 1")
        self.num_classes, self.per_class = num_classes, centres
        self.register_buffer("scale", torch.tensor(positive("scale", scale, "what the cosines are multiplied by")))
        self.gamma = positive("gamma", gamma, "a temperature")
        self.margin = at_least_zero("margin", margin, "a cosine")
        self.tau = at_least_zero("tau", tau, "a weight")
        self.parameter_rate = parameter_rate("centre", centre_learning_rate, centre_rate_factor, default=1e-2)
        self.centres = uniform(num_classes * centres, embedding_dim)

    def parameter_groups(self) -> list[ParameterGroup]:
        """The centres."""
        learning_rate, rate_factor = self.parameter_rate
        return [ParameterGroup([self.centres], learning_rate, 0.0, rate_factor)]

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar."""
        is_own_class = F.one_hot(labels, self.num_classes).to(embeddings.dtype)
        loss = F.cross_entropy(self.logits(embeddings) - self.scale * self.margin * is_own_class, labels)
        return loss + self.tau * self.spread() if self.tau and self.per_class > 1 else loss

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, D) -> (B, C), similarities to the classes times the scale, without the margin."""
        cosines = F.linear(unit(embeddings), unit(self.centres)).view(-1, self.num_classes, self.per_class)
        return self.scale * ((cosines / self.gamma).softmax(2) * cosines).sum(2)

    def spread(self) -> Tensor:
        """R: half the mean distance of two centres of a class; 0 for one centre per class."""
        centres = unit(self.centres).view(self.num_classes, self.per_class, -1)  # (C, K, D)
        # Not the Gram matrix: cdist takes differences, exact for near centres, and has no gradient at distance 0.
        distances = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
        pairs = self.num_classes * self.per_class * (self.per_class - 1)
        return distances.sum() / (2 * max(pairs, 1))
