"""Proxy-triplet: the triplet hinge with one learnt proxy per class."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import ParameterGroup, ProxyLoss, at_least_zero, parameter_rate, several_classes
from layerprobe.losses.vectors import normal, unit


class ProxyTriplet(ProxyLoss):
    """Mean of [|x - p_y|^2 - |x - p_z|^2 + margin]_+ over the (image, other class z) that violate the margin.

    Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017; "proxies with triplet loss" in
    section 2.9 of Fehervari et al. 2019. Embeddings and proxies have length 1. Neither paper says how the triplets are
    averaged; the code of the second sums over z, which grows with the classes. Here, as in pytorch-metric-learning's
    triplet loss, the triplets of loss 0 do not dilute the others. `informative` counts the ones that violate; without
    any the value and the gradient are 0. A collapsed set costs the margin.

    Args:
        embedding_dim: D.
        num_classes: C >= 2, one proxy each.
        margin: in squared distance of unit vectors, at least 0; above 4 it is always violated.
        proxy_learning_rate: learning rate of the proxies; None for that of the network's new layers. 1e-3 is the rate
            in the code of Fehervari et al., with Adam and 1e-5 for the embedding layer.
        proxy_rate_factor: in its place, a multiple of the network's learning rate, with which it then changes.
        proxy_weight_decay: of the proxies, at least 0; 5e-4 in that code.
    """

    sampler = "shuffled"
    needs_positives = False

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        margin: float = 0.1,
        proxy_learning_rate: float | None = 1e-3,
        proxy_rate_factor: float | None = None,
        proxy_weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        self.margin = at_least_zero("margin", margin, "a squared distance")
        self.parameter_rate = parameter_rate("proxy", proxy_learning_rate, proxy_rate_factor, default=1e-3)
        self.proxy_weight_decay = at_least_zero("proxy_weight_decay", proxy_weight_decay, "a weight decay")
        self.proxies = normal(several_classes(num_classes), embedding_dim)

    def parameter_groups(self) -> list[ParameterGroup]:
        """The proxies."""
        learning_rate, rate_factor = self.parameter_rate
        return [ParameterGroup([self.proxies], learning_rate, self.proxy_weight_decay, rate_factor)]

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar."""
        logits = self.logits(embeddings)
        losses = F.relu(logits - logits.gather(1, labels[:, None]) + self.margin)
        losses = losses.masked_fill(F.one_hot(labels, len(self.proxies)).bool(), 0.0)
        self.informative = (losses.detach() > 0).sum()
        return losses.sum() / self.informative.clamp(min=1)

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, D) -> (B, C), squared distances to the proxies times -1."""
        return 2 * (F.linear(unit(embeddings), unit(self.proxies)) - 1)
