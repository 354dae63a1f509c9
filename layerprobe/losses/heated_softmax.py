"""The heated-up family: softmax at a temperature, on features and weights normalised or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.losses.loss import Loss, ParameterGroup, positive, share
from layerprobe.losses.vectors import LinearClassifier, uniform, unit
from layerprobe.values.sections import Network, Problem, Train

# A learnt scale below this is used as this, and may rise again.
_SMALLEST_SCALE = 0.01


class HeatedSoftmax(Loss):
    """Cross-entropy of alpha * w_c . f + b_c, with f and w normalised as the variant says.

    Zhang et al. 2018, Heated-Up Softmax Embedding, equations 1-2 and 13, section 5.2. Variants: "SM" takes f and w as
    they are, alpha 1; "LN" gives both length 1, alpha 16; "BN" has BatchNorm(f) / sqrt(D) without learnt scale and
    shift, and w of length 1, alpha 16. HLN and HBN are LN and BN whose `scale` a schedule multiplies by 1/4, together
    with a lower learning rate. The ablations of appendices E and F: SM with a scale of 8 ... 32, BN without weight
    normalisation, a learnt scale.

    An embedding orthogonal to all weights costs ln C while the bias is 0.

    In the authors' code the BatchNorm is the network's last layer and keeps a learnt shift. Here it belongs to the
    network (`fc_norm = "batch"`), where it is a layer, or to the loss, where it is none; it never has a shift.

    Args:
        embedding_dim: D.
        num_classes: C.
        variant: how the features are normalised.
        batch_norm: the loss has the BatchNorm of BN; False where the network has it (`fc_norm = "batch"`).
        normalise_weights: None for the variant's own: yes for LN and BN, no for SM.
        scale: alpha = 1 / temperature, in (0, inf); None for the variant's own.
        learn_scale: train alpha from that value on, without weight decay; below 0.01 it counts as 0.01.
        bias: learn b, which starts at 0 and which alpha does not multiply. The authors' code has it in every variant;
            equation 1 multiplies it by alpha.
        label_smoothing: share of the target spread evenly over all C classes, in [0, 1); the authors' code has an
            option for 0.1.
        length_in_gradient: False takes the factor 1 / |f| out of the gradient of LN's features, equation 11, so that
            features of any length move alike (section 3.3, where it "did not give significant improvement").
    """

    sampler = "shuffled"
    needs_positives = False
    scale: Tensor

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        variant: Literal["SM", "LN", "BN"] = "BN",
        batch_norm: bool = True,
        normalise_weights: bool | None = None,
        scale: float | None = None,
        learn_scale: bool = False,
        bias: bool = True,
        label_smoothing: float = 0.0,
        length_in_gradient: bool = True,
    ) -> None:
        super().__init__()
        if variant not in ("SM", "LN", "BN"):
            raise ValueError(f"variant is {variant}; it is SM, LN or BN (HLN and HBN are LN and BN with a schedule)")
        if not length_in_gradient and variant != "LN":
            raise ValueError(f"length_in_gradient is False and variant is {variant}; LN alone divides by the length")
        self.variant, self.learn_scale, self.length_in_gradient = variant, learn_scale, length_in_gradient
        self.normalise_weights = variant != "SM" if normalise_weights is None else normalise_weights
        self.label_smoothing = share("label_smoothing", label_smoothing)
        alpha = (1.0 if variant == "SM" else 16.0) if scale is None else scale
        start = torch.tensor(positive("scale", alpha, "the inverse of the temperature"))
        if learn_scale:
            self.scale = nn.Parameter(start)
        else:
            self.register_buffer("scale", start)
        self.weight = uniform(num_classes, embedding_dim)
        self.bias = nn.Parameter(torch.zeros(num_classes)) if bias else None
        self.norm = nn.BatchNorm1d(embedding_dim, affine=False) if variant == "BN" and batch_norm else None

    def contradictions(self, train: Train, net: Network) -> list[Problem]:
        """As for every loss, and without a BatchNorm of the loss's own the network has to have one."""
        problems = super().contradictions(train, net)
        if self.variant == "BN" and self.norm is None and net.options().get("fc_norm") != "batch":
            text = 'batch_norm = false leaves it to the network. Set net.fc_norm = "batch", or leave it out'
            problems.append(Problem("loss", text, ("batch_norm", "variant", "net.fc_norm")))
        return problems

    def learnt_numbers(self) -> Mapping[str, str]:
        """The scale, if it is trained."""
        return {"scale": "scale: alpha, 1 / temperature"} if self.learn_scale else {}

    def parameter_groups(self) -> list[ParameterGroup]:
        """The classifier as the network's new layers, and the learnt scale without weight decay."""
        classifier = [self.weight] if self.bias is None else [self.weight, self.bias]
        groups = [ParameterGroup(classifier)]
        return [*groups, ParameterGroup([self.scale], weight_decay=0.0)] if self.learn_scale else groups  # type: ignore[list-item] # a parameter where it is learnt

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels -> scalar; BN moves its running statistics while training.

        Raises:
            ValueError: variant BN, training, and a batch of one, which has no variance.
        """
        if self.norm is not None and self.training and len(embeddings) < 2:
            raise ValueError("a batch of one image has no statistics for variant BN; it needs at least 2")
        return F.cross_entropy(self.logits(embeddings), labels, label_smoothing=self.label_smoothing)

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, D) -> (B, C), by BN's statistics of the batch while training, else by its running ones."""
        logits = self._alpha() * F.linear(self._features(embeddings), self._weight())
        return logits if self.bias is None else logits + self.bias

    def linear(self, embeddings: Tensor) -> LinearClassifier:
        """The classifier of (N, D) embeddings, which with BN are after the BatchNorm and 1 / sqrt(D)."""
        features = self._features(embeddings) if self.variant == "BN" else embeddings
        weight = self._weight().detach()
        bias = weight.new_zeros(len(weight)) if self.bias is None else self.bias.detach()
        return LinearClassifier(
            features.detach(), weight, bias, float(self._alpha().detach()), unit=self.variant == "LN"
        )

    @property
    def classifier_origin(self) -> Tensor:
        """(D,) the embedding that `classifier_weight` takes for zero: the running mean of the BatchNorm."""
        return torch.zeros_like(self.weight[0]) if self.norm is None else self.norm.running_mean  # type: ignore[return-value] # it tracks them

    @property
    def classifier_weight(self) -> Tensor:
        """(C, D) without gradient: what multiplies the embedding, but for alpha and, with LN, the embedding's length.

        With BN it includes the running variance; the running mean adds a constant to each class, as a bias does.
        """
        weight = self._weight().detach()
        if self.variant == "BN":
            weight = weight / math.sqrt(weight.shape[1])
        if self.norm is None:
            return weight
        variance: Tensor = self.norm.running_var  # type: ignore[assignment] # it tracks them
        return weight / (variance + self.norm.eps).sqrt()

    def _features(self, embeddings: Tensor) -> Tensor:
        if self.variant == "BN":
            normalised: Tensor = embeddings if self.norm is None else self.norm(embeddings)
            return normalised / math.sqrt(embeddings.shape[1])
        if not self.length_in_gradient:
            lengths = torch.linalg.vector_norm(embeddings.detach(), dim=1, keepdim=True)
            # Adds 0, with lengths - 1 times the gradient: in all that of the embeddings, times their lengths.
            embeddings = embeddings + (lengths - 1) * (embeddings - embeddings.detach())
        return unit(embeddings) if self.variant == "LN" else embeddings

    def _weight(self) -> Tensor:
        return unit(self.weight) if self.normalise_weights else self.weight

    def _alpha(self) -> Tensor:
        if not self.learn_scale:
            return self.scale
        # Clamped, but with the gradient of the identity, so that the scale recovers from a step too far.
        return self.scale + (self.scale.clamp(min=_SMALLEST_SCALE) - self.scale).detach()
