"""The batch-all triplet loss of Vo & Hays 2019, and its variants in the released code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from layerprobe.losses.loss import Loss, ParameterGroup, at_least_zero, positive
from layerprobe.losses.vectors import SHORTEST

# Elements of one (pairs, B) block; a larger batch is done block by block and recomputed in the backward pass, so that
# memory stays near one block instead of growing with the number of triplets.
_BLOCK = 1 << 22
# Elements of one (anchors, positives, B) chunk of the batch-all loss on a CPU, whose cache has to hold a few of them.
_CHUNK = 1 << 17


class SmoothTriplet(Loss):
    """Mean of log(1 + exp(d(a, p) - d(a, n))) over every triplet of the batch.

    Vo & Hays 2019, section 3.4, with x = scale * f / |f| and d the squared Euclidean distance. The paper prints d(a, n)
    - d(a, p), which is right only for a similarity; the sign here is that of the released code and of the paper's text.
    M, the number of triplets, is p k (k - 1) (p k - k) for p classes of k images. A collapsed batch has the value ln 2.

    The batch-all loss itself (type 0, no margin, no weighting) works out its own gradient, in memory of the order B^2,
    and can be differentiated once; the variants leave it to autograd.

    Args:
        embedding_dim, num_classes: not used.
        scale: length that the embeddings get, in (0, inf). The paper's 4 makes the exponent 32 (cos_an - cos_ap).
        learn_scale: train `scale`, as the released code does, at learning rate 0.01 with weight decay 5e-5.
        normalise: False takes the embeddings as they are ("let the network learn the scaling") and no scale.
        distance: "dot" is the paper's alternative d = -x_a . x_b: half the temperature at the same scale.
        margin: None for the smooth loss; a number m for the hinge max(0, d(a, p) - d(a, n) + m), 0.2 in the code.
        triplet_type: which (i, j, k) count. 0: j of i's class, k of another. 1: j of i's class, k any with
            d_ij < d_ik. 2: j and k of other classes with d_ij > d_ik. As in the released code.
        distance_weighting: weight each triplet by 1 / N(d_ik; mean, std of the batch's distances), without gradient.
        half_gradient: the gradient of the released code, half of the right one: it leaves out the 2 of the squared
            distance.
    """

    sampler = "classes"
    needs_positives = True

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
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
        if learn_scale and not normalise:
            raise ValueError("learn_scale needs normalise: embeddings as they are have no scale to learn")
        self.margin = None if margin is None else at_least_zero("margin", margin, "a distance")
        if half_gradient and distance == "dot":
            raise ValueError("half_gradient leaves out the 2 of the squared distance, and the dot product has none")
        self.normalise, self.distance = normalise, distance
        self.triplet_type, self.distance_weighting, self.half_gradient = triplet_type, distance_weighting, half_gradient
        self.learn_scale = learn_scale
        length = torch.tensor(positive("scale", scale, "the embeddings' length"))
        self.scale = nn.Parameter(length, requires_grad=learn_scale)

    def learnt_numbers(self) -> Mapping[str, str]:
        """The scale, if it is trained."""
        return {"scale": "scale: the embeddings' length"} if self.learn_scale else {}

    def parameter_groups(self) -> list[ParameterGroup]:
        """The learnt scale at the rate and decay of the released code; nothing where it is fixed."""
        return [ParameterGroup([self.scale], 0.01, 5e-5)] if self.learn_scale else []

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar.

        Raises:
            ValueError: the batch has no triplet: one class only, or no class twice.
        """
        same = labels[:, None] == labels
        sizes: list[int] = same.sum(1).tolist()  # the one transfer: it refuses a batch and sizes the chunks
        classes = _BatchClasses(same, sizes, sum([(size - 1) * (len(sizes) - size) for size in sizes]))
        if not classes.triplets:
            raise ValueError("a batch without triplets: it needs two classes and one of them twice")
        if self.triplet_type == 0 and self.margin is None and not self.distance_weighting:
            scale = self.scale if self.normalise else None
            loss: Tensor = _BatchAll.apply(embeddings, scale, classes, self.distance == "dot")
        else:
            loss = self._by_pairs(embeddings, same)
        return 0.5 * loss + 0.5 * loss.detach() if self.half_gradient else loss

    def _by_pairs(self, embeddings: Tensor, same: Tensor) -> Tensor:
        x = F.normalize(embeddings) * self.scale if self.normalise else embeddings
        products = x @ x.T
        if self.distance == "dot":
            distances = -products
        else:
            lengths = x.square().sum(1)
            distances = lengths[:, None] + lengths[None, :] - 2 * products
        total, weight = self._sums(distances, same)
        return total / weight.clamp(min=torch.finfo(weight.dtype).tiny)

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
        anchors, positives = pairs[:, 0], pairs[:, 1]
        positive_distances = distances[anchors, positives][:, None]  # (P, 1)
        all_distances = distances[anchors]  # (P, B)
        if self.triplet_type == 1:
            valid = positive_distances < all_distances
        elif self.triplet_type == 2:
            valid = ~same[anchors] & (positive_distances > all_distances)
        else:
            valid = ~same[anchors]
        difference = positive_distances - all_distances
        losses = F.softplus(difference) if self.margin is None else F.relu(difference + self.margin)
        weights = valid.to(distances.dtype)
        if self.distance_weighting:
            everything = distances.detach()
            deviation = everything.std(correction=0)
            standard = (all_distances.detach() - everything.mean()) / deviation
            weights = weights * torch.exp(standard.square() / 2) * deviation * math.sqrt(2 * math.pi)
        return (losses * weights).sum(), weights.sum()


@dataclass(frozen=True)
class _BatchClasses:
    same: Tensor  # (B, B) whether two images are of one class
    sizes: list[int]  # (B,) of the class of each
    triplets: int


class _BatchAll(torch.autograd.Function):
    """(B, D) embeddings -> mean of log(1 + exp(d(a, p) - d(a, n))) over every triplet; scale None: not normalised."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, scale: Tensor | None, classes: _BatchClasses, dot: bool) -> Tensor:
        x, stretch, factor = embeddings, None, 1 if dot else 2
        if scale is not None:
            lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            stretch = scale / torch.where(lengths > SHORTEST, lengths, 1)
            x = x * stretch
        distances, near = _distances(x, scale, dot)
        total, gradient = _softplus_sum(distances, near, classes)
        pull = gradient.T.contiguous().add_(gradient)
        if scale is None and not dot:
            pull.diagonal().sub_(gradient.sum(0))
        ctx.factor = -factor / classes.triplets
        ctx.save_for_backward(x, pull, stretch, scale)
        return total / classes.triplets

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        x, pull, stretch, scale = ctx.saved_tensors
        # Before the product: as the first work of autograd's thread on a GPU, cuBLAS warns that it finds no context.
        factor = outer * ctx.factor
        slope = pull @ x
        if stretch is None:
            return slope.mul_(factor), None, None, None
        # Only what lies across an embedding reaches it: its length has no part in the loss.
        along = torch.linalg.vecdot(slope, x)
        slope.addcmul_(x, (along / scale.square())[:, None], value=-1).mul_(stretch * factor)
        return slope, along.sum() * factor / scale, None, None


def _distances(x: Tensor, scale: Tensor | None, dot: bool) -> tuple[Tensor, bool]:
    """d(a, b) but for a constant of each row a, which d(a, p) - d(a, n) does not see.

    Args:
        x: (B, D).
        scale: length of the rows; None for any.
        dot: minus the products instead of squared Euclidean distances.

    Returns:
        (B, B), and whether exp of each, and of a difference within a row, lies in the range of floats.
    """
    factor, offset = (1, x.new_zeros(())) if dot else (2, torch.linalg.vecdot(x, x))
    reach = 0.45 * math.log(torch.finfo(x.dtype).max)
    if scale is not None:
        square = float(scale) ** 2
        distances = torch.addmm(offset if dot else offset - square, x, x.T, alpha=-factor)
        return distances, factor * square <= reach
    distances = torch.addmm(offset, x, x.T, alpha=-factor)
    low, high = distances.amin(1, keepdim=True), distances.amax(1, keepdim=True)
    # Infinity and NaN are not within reach, so that they are not lost.
    return distances.sub_((low + high) / 2), bool((high - low).max() <= 2 * reach)


def _softplus_sum(distances: Tensor, near: bool, classes: _BatchClasses) -> tuple[Tensor, Tensor]:
    """Sum of log(1 + exp(d(a, p) - d(a, n))) over the triplets, and its gradient.

    Args:
        distances: (B, B).
        near: see `_distances`.
        classes: of the batch.

    Returns:
        Scalar, and (B, B).
    """
    same, sizes = classes.same, classes.sizes
    softplus = _softplus_by_products if near else _softplus_by_differences
    is_positive = same.clone().fill_diagonal_(False)
    if len(sizes) * len(sizes) * (sizes[0] - 1) <= _CHUNK and min(sizes) == max(sizes):
        positives = distances[is_positive].view(-1, sizes[0] - 1)
        total, of_positives, of_negatives = softplus(positives, distances.masked_fill(same, math.inf))
        return total, of_negatives.masked_scatter_(is_positive, of_positives)
    device = distances.device
    total, gradient = distances.new_zeros(()), torch.zeros_like(distances)
    for anchors, most in _chunks(sizes, _CHUNK if device.type == "cpu" else _BLOCK):
        rows = torch.tensor(anchors, device=device)
        some, positive = distances[rows], is_positive[rows]
        # Row by row, as a mask is read: places that an anchor with fewer positives than another leaves empty.
        is_filled = torch.arange(most, device=device) < positive.sum(1, keepdim=True)
        positives = some.new_full(is_filled.shape, -math.inf).masked_scatter_(is_filled, some[positive])
        chunk_sum, of_positives, of_negatives = softplus(positives, some.masked_fill_(same[rows], math.inf))
        total += chunk_sum
        gradient[rows] = of_negatives.masked_scatter_(positive, of_positives[is_filled])
    return total, gradient


def _softplus_by_products(positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over all (a, p, n), and the gradients of the distances.

    exp of a difference is made as a product of two numbers, each needed once for a pair and not once for a triplet.

    Args:
        positives: (A, K), -inf where there is none.
        negatives: (A, B), inf where there is none.

    Returns:
        Scalar, (A, K) and (A, B).
    """
    exponential = positives.exp()[:, :, None] * negatives.neg().exp_()[:, None, :]
    exponential_plus_1 = exponential + 1
    inverse = exponential_plus_1.reciprocal()
    total = exponential_plus_1.log().sum()
    # What was lost in adding 1, so that this is log1p, which takes ten times as long as log.
    total += torch.dot((exponential - exponential_plus_1.sub_(1)).flatten(), inverse.flatten())
    share = exponential.mul_(inverse)
    return total, share.sum(2), share.sum(1).neg_()


def _softplus_by_differences(positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `_softplus_by_products`, for distances whose exponentials leave the range of floats."""
    difference = positives[:, :, None] - negatives[:, None, :]
    total = F.softplus(difference).sum()
    share = difference.sigmoid_()
    return total, share.sum(2), share.sum(1).neg_()


def _chunks(sizes: list[int], elements: int) -> Iterator[tuple[list[int], int]]:
    """Anchors that have positives, those of large classes first, and the most positives that one of a chunk has."""
    batch = len(sizes)
    anchors = sorted((image for image in range(batch) if sizes[image] > 1), key=lambda image: -sizes[image])
    start = 0
    while start < len(anchors):
        most = sizes[anchors[start]] - 1
        end = start + max(1, elements // (most * batch))
        yield anchors[start:end], most
        start = end


def _blocks(pairs: Tensor, batch: int) -> Iterator[Tensor]:
    yield from pairs.split(max(1, _BLOCK // batch))
