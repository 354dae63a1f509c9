"""The batch-all triplet loss of the core paper, and its variants in the released code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from layerprobe.losses.loss import Loss, ParameterGroup

# Elements of one (pairs, B) block; a larger batch is done block by block and recomputed in the backward pass, so that
# memory stays near one block instead of growing with the number of triplets.
_BLOCK = 1 << 22


class SmoothTriplet(Loss):
    """Mean of log(1 + exp(d(a, p) - d(a, n))) over every triplet of the batch.

    Vo & Hays, Generalization in Metric Learning, section 3.4, with x = scale * f / |f| and d the squared Euclidean
    distance. The paper prints d(a, n) - d(a, p), which is right only for a similarity; this is the sign of the
    released code and of the text. M, the number of triplets, is p k (k - 1) (p k - k) for p classes of k images. A
    collapsed batch has the value ln 2.

    Args:
        embedding_dim: D; not used.
        num_classes: not used.
        scale: length that the embeddings get, in (0, inf). The paper's 4 makes the exponent 32 (cos_an - cos_ap).
        learn_scale: train `scale`, as the released code does, at learning rate 0.01 with weight decay 5e-5.
        normalise: False takes the embeddings as they are ("let the network learn the scaling") and no scale.
        distance: "dot" is the paper's alternative d = -x_a . x_b: half the temperature at the same scale.
        margin: None for the smooth loss; a number m for the hinge max(0, d(a, p) - d(a, n) + m), 0.2 in the code.
        triplet_type: which (i, j, k) count. 0: j of i's class, k of another. 1: j of i's class, k any with
            d_ij < d_ik. 2: j and k of other classes with d_ij > d_ik. As in the released code.
        distance_weighting: weight each triplet by 1 / N(d_ik; mean, std of the batch's distances), without gradient.
        half_gradient: the released code's backward pass, which leaves out the 2 of the squared distance.
    """

    sampler = "classes"
    needs_positives = True

    def __init__(
        self,
        embedding_dim: int,  # noqa: ARG002 - every loss is built alike
        num_classes: int,  # noqa: ARG002
        *,
        scale: float = 4.0,
        learn_scale: bool = False,
        normalise: bool = True,
        distance: Literal["squared_euclidean", "dot"] = "squared_euclidean",
        margin: float | None = None,
        triplet_type: Literal[0, 1, 2] = 0,
        distance_weighting: bool = False,
        half_gradient: bool = False,
    ) -> None:
        super().__init__()
        if not (scale > 0 and math.isfinite(scale)):
            raise ValueError(f"scale is {scale}; it is the embeddings' length, a number above 0")
        if learn_scale and not normalise:
            raise ValueError("learn_scale needs normalise: embeddings as they are have no scale to learn")
        if margin is not None and not (margin >= 0 and math.isfinite(margin)):
            raise ValueError(f"margin is {margin}; it is a distance, a number of at least 0")
        if half_gradient and distance == "dot":
            raise ValueError("half_gradient leaves out the 2 of the squared distance, which the dot product has not")
        self.normalise, self.distance, self.margin = normalise, distance, margin
        self.triplet_type, self.distance_weighting, self.half_gradient = triplet_type, distance_weighting, half_gradient
        self.learn_scale = learn_scale
        self.scale = nn.Parameter(torch.tensor(float(scale)), requires_grad=learn_scale)

    def parameter_groups(self) -> list[ParameterGroup]:
        """The learnt scale at the rate and decay of the released code; nothing where it is fixed."""
        return [ParameterGroup([self.scale], 0.01, 5e-5)] if self.learn_scale else []

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar.

        Raises:
            ValueError: the batch has no triplet: one class only, or no class twice.
        """
        same = labels[:, None] == labels[None, :]
        if not (bool((~same).any()) and bool(same.sum() > len(labels))):
            raise ValueError("a batch without triplets: it needs two classes and one of them twice")
        x = F.normalize(embeddings) * self.scale if self.normalise else embeddings
        products = x @ x.T
        if self.distance == "dot":
            distances = -products
        else:
            lengths = x.square().sum(1)
            distances = lengths[:, None] + lengths[None, :] - 2 * products
        total, weight = self._sums(distances, same)
        loss = total / weight.clamp(min=torch.finfo(weight.dtype).tiny)
        return 0.5 * loss + 0.5 * loss.detach() if self.half_gradient else loss

    def _sums(self, distances: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted sum of the triplets' losses, and the sum of the weights."""
        itself = torch.eye(len(same), dtype=torch.bool, device=same.device)
        pairs = torch.nonzero(~same if self.triplet_type == 2 else same & ~itself)  # (P, 2)
        total = distances.new_zeros(())
        weight = distances.new_zeros(())
        blocks = list(_blocks(pairs, len(same)))
        for block in blocks:
            if len(blocks) == 1:
                block_total, block_weight = self._block_sums(distances, same, block)
            else:
                block_total, block_weight = checkpoint(self._block_sums, distances, same, block, use_reentrant=False)
            total, weight = total + block_total, weight + block_weight
        return total, weight

    def _block_sums(self, distances: Tensor, same: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        anchors, others = pairs[:, 0], pairs[:, 1]
        first = distances[anchors, others][:, None]  # (P, 1)
        second = distances[anchors]  # (P, B)
        if self.triplet_type == 1:
            valid = first < second
        elif self.triplet_type == 2:
            valid = ~same[anchors] & (first > second)
        else:
            valid = ~same[anchors]
        difference = first - second
        losses = F.softplus(difference) if self.margin is None else F.relu(difference + self.margin)
        weights = valid.to(distances.dtype)
        if self.distance_weighting:
            everything = distances.detach()
            deviation = everything.std(correction=0)
            standard = (second.detach() - everything.mean()) / deviation
            weights = weights * torch.exp(standard.square() / 2) * deviation * math.sqrt(2 * math.pi)
        return (losses * weights).sum(), weights.sum()


def _blocks(pairs: Tensor, batch: int) -> Iterator[Tensor]:
    yield from pairs.split(max(1, _BLOCK // batch))
