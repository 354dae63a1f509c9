"""What the losses with one learnt vector per class share: unit vectors, first values and checks of options."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# Shorter vectors have no direction worth the name: dividing by such a length multiplies the gradient by its inverse.
_SHORTEST = 1e-12


def unit(vectors: Tensor) -> Tensor:
    """Rows of length 1.

    Unlike F.normalize, a row of length 0 gets the gradient that it would have at length 1, not 1e12 times as much.

    Args:
        vectors: (..., D).

    Returns:
        (..., D); rows not longer than 1e-12 as they are.
    """
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(lengths > _SHORTEST, lengths, torch.ones_like(lengths))


def uniform(rows: int, dim: int) -> nn.Parameter:
    """(rows, dim) drawn from U(-1 / sqrt(dim), 1 / sqrt(dim)), as NormSoftmax's code and torch's Linear start."""
    bound = 1 / math.sqrt(dim)
    return nn.Parameter(torch.empty(rows, dim).uniform_(-bound, bound))


def normal(rows: int, dim: int) -> nn.Parameter:
    """(rows, dim) drawn from N(0, 1 / dim): any direction, a length near 1."""
    return nn.Parameter(torch.randn(rows, dim) / math.sqrt(dim))


def positive(name: str, value: float, meaning: str) -> float:
    """The value; ValueError unless it is a finite number above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}; it is {meaning}, a number above 0")
    return float(value)


def at_least_zero(name: str, value: float, meaning: str) -> float:
    """The value; ValueError unless it is a finite number of at least 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}; it is {meaning}, a number of at least 0")
    return float(value)


def share(name: str, value: float) -> float:
    """The value; ValueError unless it is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}; it is a share, at least 0 and below 1")
    return float(value)


def rate(name: str, value: float | None) -> float | None:
    """The value; ValueError unless it is None or a finite number above 0."""
    return None if value is None else positive(name, value, "a learning rate")


def several_classes(num_classes: int) -> int:
    """The value; ValueError for a single class, which has no other to be told from."""
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}; telling classes apart needs at least 2")
    return num_classes
