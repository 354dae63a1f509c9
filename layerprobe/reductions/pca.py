"""pca:D and whiten:D:P: the directions in which features vary most, their variances more equal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from layerprobe.reductions.moments import Spectrum, moments_of, spectrum_of
from layerprobe.reductions.reduction import NotApplicableError, Projection, at_most, dimensions
from layerprobe.system.errors import RecipeError

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.reductions.reduction import Reduce


class PCA:
    """Subtracts the mean of the features that it is fitted on, and projects onto their first D principal axes.

    Horiguchi et al., 2019, section 3.1, who do not say what they fit it on. The axes are the eigenvectors of the
    covariance. Nothing is normalised before or after: `l2+pca:64+l2` does that.

    Args:
        argument: D, at least 1.

    Raises:
        RecipeError: D is no such number.
    """

    fits = True
    draws = needs_classifier = False
    similarity = None
    members = ()

    def __init__(self, argument: str) -> None:
        self._name = f"pca:{argument}"
        self._count = dimensions(self._name, argument, like="pca:64")

    def dim(self, dim: int) -> int:
        """D.

        Raises:
            NotApplicableError: features have fewer.
        """
        return at_most(self._name, self._count, dim)

    def fit(self, batches: Iterable[Tensor], dim: int, *, seed: int, classifier_weight: Tensor | None) -> Reduce:  # noqa: ARG002 - nothing is drawn
        """The projection.

        Raises:
            NotApplicableError: the features have fewer dimensions than D, or vary in fewer directions.
            NotFiniteError: a row holds NaN or Inf.
        """
        spectrum = leading(self._name, self.dim(dim), batches, dim)
        return Projection(spectrum.axes, spectrum.mean)


def leading(name: str, count: int, batches: Iterable[Tensor], dim: int) -> Spectrum:
    """The first principal axes of features.

    Args:
        name: of the reduction that asks, for the error.
        count: how many axes.
        batches: (B, D) float64.
        dim: D.

    Raises:
        NotApplicableError: the features vary in fewer directions.
        NotFiniteError: a row holds NaN or Inf.
    """
    spectrum = spectrum_of(moments_of(batches, dim))
    if count > spectrum.rank:
        fix = f"Use at most {spectrum.rank}" if spectrum.rank else "They are all the same: leave it out"
        raise NotApplicableError(f"{name}: the features that it is fitted on have rank {spectrum.rank}", fix=fix)
    return spectrum.first(count)


class Whiten:
    """`pca:D`, each direction then divided by its variance to the power of P / 2.

    P = 1 is full whitening: on the fitted features, every direction has variance 1. P = 0 is `pca:D`, and P = 0.5,
    half-whitening, takes the square root of every direction's standard deviation. Variances are divided by N - 1.
    There is no other shrinkage: nothing is added to the variances. The released code of Tolias et al., *Learning and
    Aggregating Deep Local Descriptors for Instance-Level Recognition*, 2020 (github.com/gtolias/how, function
    `pcawhitenlearn_shrinkage`) calls P the shrinkage `s`, divides variances by N, and normalises features afterwards,
    which here is `whiten:D:P+l2`.

    Args:
        argument: `D:P`, D at least 1, P in 0 ... 1.

    Raises:
        RecipeError: it is not.
    """

    fits = True
    draws = needs_classifier = False
    similarity = None
    members = ()

    def __init__(self, argument: str) -> None:
        count, _, power = argument.partition(":")
        self._name = f"whiten:{argument}"
        self._count = dimensions(self._name, count, like="whiten:64:0.5")
        if not re.fullmatch(r"\d*\.?\d+", power, re.ASCII) or not 0 <= float(power) <= 1:
            raise RecipeError(
                f"{self._name}: {power!r} is no power from 0 to 1",
                fix=f"Half-whitening is whiten:{count}:0.5, full whitening whiten:{count}:1",
            )
        self._power = float(power)

    def dim(self, dim: int) -> int:
        """D.

        Raises:
            NotApplicableError: features have fewer.
        """
        return at_most(self._name, self._count, dim)

    def fit(self, batches: Iterable[Tensor], dim: int, *, seed: int, classifier_weight: Tensor | None) -> Reduce:  # noqa: ARG002 - nothing is drawn
        """The projection.

        Raises:
            NotApplicableError: the features have fewer dimensions than D, or vary in fewer directions.
            NotFiniteError: a row holds NaN or Inf.
        """
        return whitening(leading(self._name, self.dim(dim), batches, dim), self._power)


def whitening(spectrum: Spectrum, power: float) -> Reduce:
    """The projection onto principal axes, each divided by its variance to the power of half of `power`."""
    return Projection(spectrum.axes / spectrum.variances ** (power / 2), spectrum.mean)
