"""Vectors of length 1."""

from __future__ import annotations

import torch
from torch import Tensor

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
