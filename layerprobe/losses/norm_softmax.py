"""Normalised softmax: classification as proxy-based metric learning."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import ProxyLoss, positive, share
from layerprobe.losses.vectors import LinearClassifier, uniform


class NormSoftmax(ProxyLoss):
    """-log( exp(x . p_y / sigma) / sum over all classes z of exp(x . p_z / sigma) ), x and p of length 1, no bias.

    Zhai & Wu 2019, equation 5. An embedding orthogonal to all proxies costs ln C; with random proxies the first value
    is about ln C + 1 / (2 D sigma^2). The paper's LayerNorm after the pooling is the network's.

    Unlike the authors' code, which leaves it to the network, the embedding is normalised here, as equation 4
    says: "input and weights".

    Args:
        embedding_dim: D.
        num_classes: C, one proxy each, first drawn from U(-1 / sqrt(D), 1 / sqrt(D)) as in the authors' code.
        temperature: sigma, in (0, inf). Kept as `scale` = 1 / sigma.
        label_smoothing: share of the target spread evenly over all C classes, in [0, 1). Not in the paper; 0.1 in the
            code of Fehervari et al. (which spreads it over the C - 1 others).
    """

    # The paper's batches are balanced, 25 images of 3 classes, for which 75 images are few enough; its table 4 finds
    # shuffled ones 1.8 points worse, and one class a batch 20.
    sampler = "shuffled"
    needs_positives = False
    images_per_class = 25

    def __init__(
        self, embedding_dim: int, num_classes: int, *, temperature: float = 0.05, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        scale = 1 / positive("temperature", temperature, "what the cosines are divided by")
        self.label_smoothing = share("label_smoothing", label_smoothing)
        self.proxies = uniform(num_classes, embedding_dim)
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar."""
        return F.cross_entropy(self.logits(embeddings), labels, label_smoothing=self.label_smoothing)

    def linear(self, embeddings: Tensor) -> LinearClassifier:
        """The classifier of (N, D) embeddings."""
        weight = self.classifier_weight
        return LinearClassifier(embeddings, weight, weight.new_zeros(len(weight)), float(self.scale), unit=True)
