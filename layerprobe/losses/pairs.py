"""What the losses on pairs and triplets of a batch share: distances, and which images are of one class."""

from __future__ import annotations

import torch
from torch import Tensor


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
    if not bool(positives.any()):
        raise ValueError("a batch without positive pairs: it needs one class twice")
    if bool(same.all()):
        raise ValueError("a batch without negative pairs: it needs two classes")
    return positives, ~same
