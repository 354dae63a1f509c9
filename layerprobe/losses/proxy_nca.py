"""Proxy-NCA: neighbourhood components with one learnt proxy per class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import ParameterGroup, ProxyLoss, at_least_zero, parameter_rate, positive, several_classes
from layerprobe.losses.vectors import normal, unit


class ProxyNCA(ProxyLoss):
    """-log( exp(-d(x, p_y)) / sum over the other classes n of exp(-d(x, p_n)) ), d the squared Euclidean distance.

    Fehervari et al. 2019, equation 14 (from Movshovitz-Attias et al., ICCV 2017), with N the classes other than the
    image's own; equation 1 of Zhai & Wu 2019 has the same form. Embeddings and proxies are normalised to the length
    `scale`, so that d = 2 scale^2 (1 - cos). Without the positive in the denominator the value may fall below 0: it
    lies within 4 scale^2 of ln(C - 1), which an embedding orthogonal to all proxies costs. pytorch-metric-learning's
    ProxyNCALoss has the positive in the denominator.

    Args:
        embedding_dim: D.
        num_classes: C >= 2, one proxy each.
        scale: length that embeddings and proxies get, in (0, inf); the "multiplier" 3 of the code of Fehervari et al.
        proxy_learning_rate: learning rate of the proxies; None for that of the network's new layers. 1e-3 is that
            code's, with Adam and 1e-5 for the embedding layer.
        proxy_rate_factor: in its place, a multiple of the network's learning rate, with which it then changes.
        proxy_weight_decay: of the proxies, at least 0; 5e-4 in that code.
    """

    sampler = "shuffled"
    needs_positives = False
    scale: Tensor

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        scale: float = 3.0,
        proxy_learning_rate: float | None = 1e-3,
        proxy_rate_factor: float | None = None,
        proxy_weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(positive("scale", scale, "the embeddings' length")))
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
        is_own_class = F.one_hot(labels, len(self.proxies)).bool()
        log_denominator = logits.masked_fill(is_own_class, -torch.inf).logsumexp(1)
        return (log_denominator - logits.gather(1, labels[:, None])[:, 0]).mean()

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, D) -> (B, C), squared distances to the proxies times -1."""
        return 2 * self.scale.square() * (F.linear(unit(embeddings), unit(self.proxies)) - 1)
