"""Multi-class N-pair loss."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss, at_least_zero
from layerprobe.losses.vectors import first_pairs, pairs_of

Negatives = Literal["both", "positives"]


class NPairs(Loss):
    """Mean over pairs a, p of one class of ln( 1 + sum over n of other classes of exp(s_an - s_ap) ), s = x . x.

    Fehervari et al. 2019, equation 3 (from Sohn, NeurIPS 2016). The paper prints distances in the place of
    similarities, which would push positives apart; the sign here is that of their code and of Sohn. Their batches have
    two images a class; of larger classes every ordered pair counts.

    The equation as printed has both images of the other classes in its sum, and so has the default. Sohn's own sum, the
    code of Fehervari et al. and pytorch-metric-learning have their positives alone: negatives = "positives" takes the
    first two images of each class as anchor and positive, once, and the other classes' positives as negatives.

    Args:
        embedding_dim, num_classes: not used.
        l2: weight of `lengths`, at least 0; without it embeddings, which are not normalised, would grow; 5e-4 in the
            code of Fehervari et al.
        negatives: "both" images of the other classes, or their "positives".
    """

    sampler = "n_pairs"
    needs_positives = True
    images_per_class = 2
    clip_gradient = 10.0  # products of embeddings of any length: SGD's first steps would be as long as they are

    def __init__(
        self, embedding_dim: int, num_classes: int, *, l2: float = 5e-4, negatives: Negatives = "both"
    ) -> None:
        super().__init__()
        self.negatives = negatives
        self.l2 = at_least_zero("l2", l2, "a weight")

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels -> scalar.

        Raises:
            ValueError: one class only, no class twice, or with "positives" only one.
        """
        value = n_pairs(embeddings @ embeddings.T, labels, negatives=self.negatives)
        return value + self.l2 * lengths(embeddings)


def n_pairs(products: Tensor, labels: Tensor, *, negatives: Negatives = "both") -> Tensor:
    """(B, B) similarities and (B,) labels -> the mean over pairs."""
    if negatives == "positives":
        anchors, partners = first_pairs(labels)
        # -log( e^s_ap / ( e^s_ap + sum of e^s_an ) ) is the logarithm of 1 + the sum of e^(s_an - s_ap).
        return F.cross_entropy(products[anchors][:, partners], torch.arange(len(anchors), device=products.device))
    positives, different = pairs_of(labels)
    of_image = products.masked_fill(~different, -torch.inf).logsumexp(1)
    anchors, partners = positives.nonzero(as_tuple=True)
    return F.softplus(of_image[anchors] - products[anchors, partners]).mean()


def lengths(embeddings: Tensor) -> Tensor:
    """(B, D) -> twice the mean squared length; with two images a class the mean of |a|^2 + |p|^2 over the pairs."""
    return 2 * embeddings.square().sum(1).mean()
