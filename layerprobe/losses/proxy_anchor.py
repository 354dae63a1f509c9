"""Proxy-Anchor: every proxy is an anchor that pulls and pushes the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import ParameterGroup, ProxyLoss, at_least_zero, parameter_rate, positive
from layerprobe.losses.vectors import normal


class ProxyAnchor(ProxyLoss):
    """Mean_{p in P+} log(1 + sum_{x of p} e^(-a (s - d))) + mean_{all p} log(1 + sum_{x not of p} e^(a (s + d))).

    Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020: s is the cosine of embedding and proxy, a the
    scale, d the margin, P+ the proxies of the classes in the batch. The same values as pytorch-metric-learning's
    ProxyAnchorLoss, which waits for the device in every step; written out, it does not.

    Args:
        embedding_dim: D.
        num_classes: C, one proxy each.
        scale: a, in (0, inf).
        margin: d, in cosine, at least 0.
        proxy_learning_rate: learning rate of the proxies; None for that of the network's new layers. 1e-2 is the
            authors' code's, 100 times that of the network, with AdamW. They have no weight decay here (1e-4 there).
        proxy_rate_factor: in its place, a multiple of the network's learning rate, with which it then changes.
    """

    sampler = "shuffled"
    needs_positives = False

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        scale: float = 32.0,
        margin: float = 0.1,
        proxy_learning_rate: float | None = 1e-2,
        proxy_rate_factor: float | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(positive("scale", scale, "what the cosines are multiplied by")))
        self.margin = at_least_zero("margin", margin, "a cosine")
        self.parameter_rate = parameter_rate("proxy", proxy_learning_rate, proxy_rate_factor, default=1e-2)
        self.proxies = normal(num_classes, embedding_dim)

    def parameter_groups(self) -> list[ParameterGroup]:
        """The proxies."""
        learning_rate, rate_factor = self.parameter_rate
        return [ParameterGroup([self.proxies], learning_rate, 0.0, rate_factor)]

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar."""
        logits = self.logits(embeddings)
        shift = self.scale * self.margin
        is_own_class = F.one_hot(labels, len(self.proxies)).bool()  # (B, C)
        pull = _log_1_plus_sum(shift - logits, is_own_class)  # (C,), 0 for a class that is not in the batch
        push = _log_1_plus_sum(shift + logits, ~is_own_class)
        return pull.sum() / is_own_class.any(0).sum() + push.mean()


def _log_1_plus_sum(exponents: Tensor, counted: Tensor) -> Tensor:
    # The row of zeros is the 1, and keeps the sum of a column in which nothing counts away from log 0.
    ones = exponents.new_zeros(1, exponents.shape[1])
    return torch.cat([ones, exponents.masked_fill(~counted, -torch.inf)]).logsumexp(0)
