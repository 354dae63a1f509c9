"""random:D: D random directions at right angles."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from layerprobe.post_processing.post_processing import FitInputs, PostProcessing, Projection, dimensions, max_loss
from layerprobe.system.errors import RecipeError

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.post_processing.post_processing import FittedStep


class RandomProjection(PostProcessing):
    """Projects onto D orthonormal directions, every such set being equally likely.

    Horiguchi et al., 2019, section 3.1. The draw depends on the run's seed, the number of dimensions before and after,
    and which draw it is; layers of equal dimension are projected alike. No feature is read.

    Args:
        argument: `D` is the first draw; `D:i` its i-th further one, i at least 1; `DxN` is the mean of the first N
            draws, N at least 2, whose scores are averaged: `members` are their names, and it cannot be fitted itself.

    Raises:
        RecipeError: it is none of these.
    """

    draws = True

    def __init__(self, argument: str) -> None:
        self._name = f"random:{argument}"
        match = re.fullmatch("([^:x]*)(?::([1-9][0-9]*)|x([2-9]|[1-9][0-9]+))?", argument, re.ASCII)
        if match is None:
            raise RecipeError(
                f"{self._name}: {argument!r} is neither a number of dimensions nor draws of one",
                fix="One draw is random:64, another one random:64:1, the mean of five random:64x5",
            )
        count, draw, draws = match.groups()
        self._count = dimensions(self._name, count, like="random:64")
        self._draw = int(draw or 0)
        self.members = tuple(f"random:{count}:{i}" if i else f"random:{count}" for i in range(int(draws or 0)))

    def dim(self, dim: int) -> int:
        """D.

        Raises:
            NotApplicableError: features have fewer.
        """
        return max_loss(self._name, self._count, dim)

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - no feature is needed
        """The projection; no batch is read.

        Raises:
            NotApplicableError: the features have fewer dimensions than D.
            ValueError: it stands for several draws.
        """
        if self.members:
            raise ValueError(f"{self._name} stands for {len(self.members)} draws: fit each of its members")
        import torch

        return Projection(torch.from_numpy(orthonormal(dim, self.dim(dim), seed=(inputs.seed, self._draw))))


def orthonormal(dim: int, count: int, *, seed: tuple[int, ...]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Random directions at right angles, uniform over all such sets.

    Mezzadri, How to Generate Random Matrices from the Classical Compact Groups, Notices of the AMS 54, 2007: the QR
    decomposition of normal numbers, with the signs that make the diagonal of R positive.

    Returns:
        (dim, count) float64.
    """
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, count)))
    directions: np.ndarray[tuple[int, int], np.dtype[np.float64]] = q * np.sign(np.diagonal(r))
    return directions
