"""Lifted structured loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss, at_least_zero
from layerprobe.losses.vectors import euclidean, pairs_of, unit


class LiftedStructure(Loss):
    """Half the mean, over pairs i, j of one class, of [ ln( sum e^(m - D_ik) + sum e^(m - D_jl) ) + D_ij ]_+^2.

    Fehervari et al. 2019, equation 2 (from Song et al., CVPR 2016): k and l run over the images of other classes than
    i's and j's, D is the Euclidean distance, not squared, m the margin. `informative` counts the pairs whose loss is
    not 0.

    Args:
        embedding_dim, num_classes: not used.
        margin: a distance, at least 0; 1 in the original.
        normalise: give the embeddings length 1; the papers take them as they are (table 1).
    """

    sampler = "classes"
    needs_positives = True

    def __init__(self, embedding_dim: int, num_classes: int, *, margin: float = 1.0, normalise: bool = False) -> None:
        super().__init__()
        self.margin = at_least_zero("margin", margin, "a distance")
        self.normalise = normalise

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels -> scalar.

        Raises:
            ValueError: one class only, or no class twice.
        """
        positives, negatives = pairs_of(labels)
        distances = euclidean(unit(embeddings) if self.normalise else embeddings)
        # Of each image the negatives' term, of which a pair has the sum of two.
        of_image = (self.margin - distances).masked_fill(~negatives, -torch.inf).logsumexp(1)
        anchors, partners = positives.triu().nonzero(as_tuple=True)
        terms = F.relu(torch.logaddexp(of_image[anchors], of_image[partners]) + distances[anchors, partners])
        self.informative = (terms.detach() > 0).sum()
        return terms.square().mean() / 2
