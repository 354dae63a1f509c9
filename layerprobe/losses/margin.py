"""Margin loss with distance-weighted sampling and a learnt boundary for each class."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.losses.loss import Loss, ParameterGroup, at_least_zero, parameter_rate, positive
from layerprobe.losses.vectors import euclidean, pairs_of, unit

# Wu et al.: a negative closer than the first is drawn as if it were at that distance, one beyond the second never.
_CLOSEST, _FARTHEST = 0.5, 1.4


class Margin(Loss):
    """Sum of [ margin + D_ap - beta ]_+ and [ margin + beta - D_an ]_+ over the sampled pairs, over how many are not 0.

    Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017; section 2.2 of Fehervari et al. 2019. D is the
    Euclidean distance of embeddings of length 1, beta the learnt boundary of the anchor's class. Every ordered pair of
    one class counts, and with each a negative of the anchor drawn by `distance_weighted`. `informative` counts the
    pairs above 0.

    Args:
        embedding_dim: D, the space whose distances are expected.
        num_classes: C, one boundary each.
        margin: alpha, a distance, at least 0.
        beta: the boundaries' first value, a distance above 0.
        nu: weight of the sum of the pairs' boundaries, which keeps them small, at least 0.
        beta_learning_rate: learning rate of the boundaries, which have no weight decay; 0.1 in the code of Fehervari et
            al., whose boundaries train by an SGD of their own: with Adam every step would be 0.1 long, half the margin.
            None for that of the network's new layers.
        beta_rate_factor: in its place, a multiple of the network's learning rate, with which it then changes.
    """

    sampler = "classes"
    needs_positives = True
    images_per_class = 5

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        margin: float = 0.2,
        beta: float = 1.2,
        nu: float = 0.0,
        beta_learning_rate: float | None = 0.1,
        beta_rate_factor: float | None = None,
    ) -> None:
        super().__init__()
        self.dim = embedding_dim
        self.margin = at_least_zero("margin", margin, "a distance")
        self.nu = at_least_zero("nu", nu, "a weight")
        self.beta = nn.Parameter(torch.full((num_classes,), positive("beta", beta, "a distance")))
        self.parameter_rate = parameter_rate("beta", beta_learning_rate, beta_rate_factor, default=0.1)

    def learnt_numbers(self) -> Mapping[str, str]:
        """The boundaries."""
        return {"beta": "beta, a distance: mean over the classes"}

    def parameter_groups(self) -> list[ParameterGroup]:
        """The boundaries."""
        learning_rate, rate_factor = self.parameter_rate
        return [ParameterGroup([self.beta], learning_rate, 0.0, rate_factor)]

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar.

        Raises:
            ValueError: one class only, or no class twice.
        """
        positives, negatives = pairs_of(labels)
        distances = euclidean(unit(embeddings))
        anchors, partners = positives.nonzero(as_tuple=True)
        chances = distance_weighted(distances.detach(), negatives, self.dim)[anchors]
        return self.of_pairs(distances, labels, anchors, partners, torch.multinomial(chances, 1)[:, 0])

    def of_pairs(
        self, distances: Tensor, labels: Tensor, anchors: Tensor, partners: Tensor, negatives: Tensor
    ) -> Tensor:
        """The loss of (P,) anchors with a positive and a negative each, of (B, B) distances."""
        beta = self.beta[labels[anchors]]
        near = F.relu(self.margin + distances[anchors, partners] - beta)
        far = F.relu(self.margin + beta - distances[anchors, negatives])
        self.informative = (near.detach() > 0).sum() + (far.detach() > 0).sum()
        return (near.sum() + far.sum() + self.nu * beta.sum()) / self.informative.clamp(min=1)


def distance_weighted(distances: Tensor, candidates: Tensor, dim: int) -> Tensor:
    """How likely each negative of an anchor is drawn: as 1 / q(D), q the density of distances on the unit sphere.

    ln q(d) = (n - 2) ln d + (n - 3) / 2 ln(1 - d^2 / 4). Distances below 0.5 count as 0.5, so that noise does not
    decide; negatives beyond 1.4, which cost nothing, are not drawn unless all are.

    Args:
        distances: (B, B) of unit vectors.
        candidates: (B, B) mask of each anchor's negatives, at least one a row.
        dim: n, the dimension of the space.

    Returns:
        (B, B) probabilities, each row's sum 1.
    """
    d = distances.clamp(min=_CLOSEST)
    log_density = (dim - 2) * d.log() + (dim - 3) / 2 * (1 - d.square() / 4).clamp(min=1e-8).log()
    drawn = candidates & (distances <= _FARTHEST)
    drawn = torch.where(drawn.any(1, keepdim=True), drawn, candidates)
    # Beyond 1.4 all are equally likely: none of them costs anything.
    log_weights = torch.where(distances <= _FARTHEST, -log_density, 0.0)
    return log_weights.masked_fill(~drawn, -math.inf).softmax(1)
