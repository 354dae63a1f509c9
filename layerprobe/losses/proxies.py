"""First values of proxies: one learnt vector, or several, for each class."""

from __future__ import annotations

import math

import torch
from torch import nn


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
