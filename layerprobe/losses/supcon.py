"""Supervised contrastive loss."""

from __future__ import annotations

import torch
from torch import Tensor

from layerprobe.losses.loss import Loss, positive
from layerprobe.losses.vectors import unit


class SupCon(Loss):
    """Mean over images i and their positives p of -ln( e^(s_ip / tau) / sum over a != i of e^(s_ia / tau) ).

    Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, with the sum over the positives P(i) outside of the
    logarithm: first the mean over P(i), then over the images that have a positive, as in pytorch-metric-learning; the
    paper sums the latter. s is the cosine. A collapsed batch costs ln(B - 1).

    Args:
        embedding_dim, num_classes: not used.
        temperature: tau, above 0; kept as `scale` = 1 / tau.
    """

    sampler = "classes"
    needs_positives = True
    scale: Tensor

    def __init__(self, embedding_dim: int, num_classes: int, *, temperature: float = 0.1) -> None:
        super().__init__()
        scale = 1 / positive("temperature", temperature, "what the cosines are divided by")
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar.

        Raises:
            ValueError: no class is there twice.
        """
        itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        positives = (labels[:, None] == labels[None, :]) & ~itself
        counts = positives.sum(1)
        if not bool(counts.any()):
            raise ValueError("a batch without positive pairs: it needs one class twice")
        x = unit(embeddings)
        logits = (self.scale * (x @ x.T)).masked_fill(itself, -torch.inf)
        losses = torch.where(positives, logits.logsumexp(1, keepdim=True) - logits, 0.0)
        anchors = counts > 0
        return (losses.sum(1)[anchors] / counts[anchors]).mean()
