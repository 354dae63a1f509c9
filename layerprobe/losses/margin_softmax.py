"""ArcFace and CosFace: normalised softmax with a margin on the target."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import ProxyLoss, at_least_zero, positive
from layerprobe.losses.vectors import uniform, unit


class ArcFace(ProxyLoss):
    """Cross-entropy of scale * cos(theta_c), the target's theta_y replaced by theta_y + margin.

    Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019. Beyond theta_y = pi -
    margin, where cos(theta + margin) would rise again, it goes on as cos(theta) - margin sin(margin), as in the
    authors' code and in pytorch-metric-learning; the latter's gradient is not finite at theta = 0, this one is.

    Args:
        embedding_dim: D.
        num_classes: C, one proxy each.
        scale: in (0, inf); 30 suits small sets of classes.
        margin: radians, in [0, pi).
    """

    sampler = "shuffled"
    needs_positives = False
    clip_gradient = 5.0  # of a network without weights, SGD's first steps at this scale would undo what it can tell

    def __init__(self, embedding_dim: int, num_classes: int, *, scale: float = 64.0, margin: float = 0.5) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(positive("scale", scale, "what the cosines are multiplied by")))
        if not 0 <= margin < math.pi:
            raise ValueError(f"margin is {margin}; it is an angle in radians, at least 0 and below pi")
        self.margin = float(margin)
        self.proxies = uniform(num_classes, embedding_dim)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar."""
        cosines = F.linear(unit(embeddings), unit(self.proxies))
        target = cosines.gather(1, labels[:, None])
        # The slope of the square root is infinite at 0; clamped, it is cut off where rounding has made it noise.
        sines = (1 - target.square()).clamp(min=torch.finfo(target.dtype).eps).sqrt()
        turned = target * math.cos(self.margin) - sines * math.sin(self.margin)
        beyond = target < math.cos(math.pi - self.margin)
        moved = torch.where(beyond, target - self.margin * math.sin(self.margin), turned)
        return F.cross_entropy(self.scale * cosines.scatter(1, labels[:, None], moved), labels)


class CosFace(ProxyLoss):
    """Cross-entropy of scale * cos(theta_c), the target's lowered by scale * margin.

    Wang et al., CosFace: Large Margin Cosine Loss for Deep Face Recognition, CVPR 2018. The same values as
    pytorch-metric-learning's CosFaceLoss, which waits for the device in every step; written out, it does not.

    Args:
        embedding_dim: D.
        num_classes: C, one proxy each.
        scale: in (0, inf); 30 suits small sets of classes.
        margin: in cosine, at least 0.
    """

    sampler = "shuffled"
    needs_positives = False
    clip_gradient = 5.0  # of a network without weights, SGD's first steps at this scale would undo what it can tell

    def __init__(self, embedding_dim: int, num_classes: int, *, scale: float = 64.0, margin: float = 0.35) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(positive("scale", scale, "what the cosines are multiplied by")))
        self.margin = at_least_zero("margin", margin, "a cosine")
        self.proxies = uniform(num_classes, embedding_dim)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar."""
        logits = self.logits(embeddings)
        is_own_class = F.one_hot(labels, len(self.proxies)).to(logits.dtype)
        return F.cross_entropy(logits - self.scale * self.margin * is_own_class, labels)
