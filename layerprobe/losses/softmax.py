"""Softmax cross-entropy over the training classes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.losses.loss import Loss, share
from layerprobe.losses.vectors import LinearClassifier


class Softmax(Loss):
    """Cross-entropy of a linear classifier on the embedding.

    Vo & Hays 2019, section 4.1: the baseline network with "classification-output-fc7 and classification-loss
    (Softmax-CrossEntropy)" in the place of the metric loss. The classifier belongs to the loss and is no layer.

    Args:
        embedding_dim: D.
        num_classes: C, the training classes.
        relu: a ReLU between the embedding and the classifier. The paper puts one between its other new layers
            (section 4.3) and does not say whether one stands here.
        bias: the classifier has one.
        label_smoothing: share of the target spread evenly over all C classes, in [0, 1).
    """

    sampler = "shuffled"
    needs_positives = False

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        relu: bool = True,
        bias: bool = True,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.relu = relu
        self.label_smoothing = share("label_smoothing", label_smoothing)
        self.classifier = nn.Linear(embedding_dim, num_classes, bias=bias)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels -> scalar; ln C for logits that are all equal."""
        return F.cross_entropy(self.logits(embeddings), labels, label_smoothing=self.label_smoothing)

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, D) -> (B, C)."""
        return self.classifier(F.relu(embeddings) if self.relu else embeddings)  # type: ignore[no-any-return] # torch's Module is untyped here

    def linear(self, embeddings: Tensor) -> LinearClassifier:
        """The classifier of (N, D) embeddings, which are after the ReLU, if any."""
        weight, classifier_bias = self.classifier_weight, self.classifier.bias
        bias = weight.new_zeros(len(weight)) if classifier_bias is None else classifier_bias.detach()
        return LinearClassifier(F.relu(embeddings) if self.relu else embeddings, weight, bias, 1.0, unit=False)

    @property
    def classifier_weight(self) -> Tensor:
        """(C, D) weight, without gradient; what it multiplies is after the ReLU, if any."""
        return self.classifier.weight.detach()
