"""Angular loss, alone or with N-pairs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss, at_least_zero
from layerprobe.losses.n_pairs import Negatives, lengths, n_pairs
from layerprobe.losses.vectors import first_pairs, pairs_of, unit


class Angular(Loss):
    """Mean over pairs a, p of one class of ln( 1 + sum over n of other classes of exp(f_apn) ).

    f_apn = 4 tan^2(alpha) (x_a + x_p) . x_n - 2 (1 + tan^2(alpha)) x_a . x_p: Fehervari et al., Unbiased Evaluation of
    Deep Metric Learning Algorithms, equations 4 and 5 (from Wang et al., ICCV 2017). Of classes with more than two
    images every ordered pair counts. Both images of the other classes are negatives, as printed; the code of Fehervari
    et al. has their positives alone: negatives = "positives", as of `n_pairs`.

    Args:
        embedding_dim, num_classes: not used.
        alpha: degrees, above 0 and below 90; 45 in the code of Fehervari et al.
        n_pairs_weight: weight of the N-pair loss of the same embeddings, which is added; at least 0. Wang et al. add
            the angular loss to it with weight 2, which is 0.5 here at twice the learning rate.
        l2: weight of the embeddings' squared lengths, as of `n_pairs`, at least 0; 5e-4 in the code of Fehervari et al.
            Equation 4 has none.
        normalise: give the embeddings length 1; False as in the paper's table 1.
        negatives: "both" images of the other classes, or their "positives"; of the N-pair loss too.
    """

    sampler = "n_pairs"
    needs_positives = True
    images_per_class = 2
    clip_gradient = 10.0  # products of embeddings of any length: SGD's first steps would be as long as they are

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        alpha: float = 45.0,
        n_pairs_weight: float = 0.0,
        l2: float = 0.0,
        normalise: bool = False,
        negatives: Negatives = "both",
    ) -> None:
        super().__init__()
        if not 0 < alpha < 90:
            raise ValueError(f"alpha is {alpha}; it is an angle in degrees, above 0 and below 90")
        self.square = math.tan(math.radians(alpha)) ** 2
        self.n_pairs_weight = at_least_zero("n_pairs_weight", n_pairs_weight, "a weight")
        self.l2 = at_least_zero("l2", l2, "a weight")
        self.normalise = normalise
        self.negatives = negatives

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels -> scalar.

        Raises:
            ValueError: one class only, no class twice, or with "positives" only one.
        """
        x = unit(embeddings) if self.normalise else embeddings
        products = x @ x.T
        if self.negatives == "positives":
            anchors, partners = first_pairs(labels)
            # Its own class has one positive among them: the pair's.
            different = ~torch.eye(len(anchors), dtype=torch.bool, device=x.device)
            candidates = products[:, partners]
        else:
            positives, negatives = pairs_of(labels)
            anchors, partners = positives.nonzero(as_tuple=True)
            different, candidates = negatives[anchors], products
        sums = 4 * self.square * (candidates[anchors] + candidates[partners])  # (P, negatives and others)
        far = sums.masked_fill(~different, -torch.inf).logsumexp(1)
        loss = F.softplus(far - 2 * (1 + self.square) * products[anchors, partners]).mean()
        if self.l2:
            loss = loss + self.l2 * lengths(x)
        return (
            loss + self.n_pairs_weight * n_pairs(products, labels, negatives=self.negatives)
            if self.n_pairs_weight
            else loss
        )
