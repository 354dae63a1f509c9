"""Vectors that losses share: of length 1, pairs of a batch, proxies, the linear classifier's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Shorter vectors have no direction worth the name: dividing by such a length multiplies the gradient by its inverse.
SHORTEST = 1e-12


def unit(vectors: Tensor) -> Tensor:
    """Rows of length 1.

    Unlike F.normalize, a row of length 0 gets the gradient that it would have at length 1, not 1e12 times as much.

    Args:
        vectors: (..., D).

    Returns:
        (..., D); rows not longer than 1e-12 as they are.
    """
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(lengths > SHORTEST, lengths, torch.ones_like(lengths))


def euclidean(x: Tensor) -> Tensor:
    """Distances between all rows.

    Args:
        x: (B, D).

    Returns:
        (B, B), exact zeros for equal rows, unlike those of a matrix product; without gradient there, since equal rows
        have no direction to move apart in.
    """
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")


def squared_euclidean(x: Tensor) -> Tensor:
    """(B, D) -> (B, B) squared distances: exact zeros for equal rows."""
    return euclidean(x).square()


def first_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The first two images of each class that has two: anchors and positives.

    Args:
        labels: (B,).

    Returns:
        (P,) and (P,) indices into the batch.

    Raises:
        ValueError: fewer than two classes have two images.
    """
    order = labels.argsort(stable=True)
    ordered = labels[order]
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    starts_pair = begins[:-1] & ~begins[1:]
    if int(starts_pair.sum()) < 2:
        raise ValueError("a batch without two pairs: it needs two classes twice")
    return order[:-1][starts_pair], order[1:][starts_pair]


def pairs_of(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which pairs are of one class, each image's pair with itself left out, and which are of two.

    Args:
        labels: (B,).

    Returns:
        Two masks (B, B).

    Raises:
        ValueError: there is none of one kind.
    """
    same = labels[:, None] == labels[None, :]
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    has_positives, is_one_class = torch.stack([positives.any(), same.all()]).tolist()  # a GPU is waited for once
    if not has_positives:
        raise ValueError("a batch without positive pairs: it needs one class twice")
    if is_one_class:
        raise ValueError("a batch without negative pairs: it needs two classes")
    return positives, ~same


def uniform(rows: int, dim: int) -> nn.Parameter:
    """(rows, dim) drawn from U(-1 / sqrt(dim), 1 / sqrt(dim)), as NormSoftmax's code and torch's Linear start."""
    bound = 1 / math.sqrt(dim)
    return nn.Parameter(torch.empty(rows, dim).uniform_(-bound, bound))


def normal(rows: int, dim: int) -> nn.Parameter:
    """(rows, dim) drawn from N(0, 1 / dim): any direction, a length near 1."""
    values = torch.empty(rows, dim)
    if not values.is_meta:  # there is nothing to draw, and torch would import its compiler to do so
        values.normal_().div_(math.sqrt(dim))
    return nn.Parameter(values)


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """logits = scale * x . w_c + bias_c, with x the features, or these at length 1.

    Args:
        features: (N, D) before they get length 1.
        weight: (C, D).
        bias: (C,), which the scale does not multiply.
        unit: whether x has length 1.
    """

    features: Tensor
    weight: Tensor
    bias: Tensor
    scale: float
    unit: bool
