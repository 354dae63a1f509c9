"""pca:D: the D directions in which features vary most."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from layerprobe.reductions.arguments import at_most, dimensions
from layerprobe.reductions.moments import Spectrum, moments_of, spectrum_of
from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.reductions.steps import Projection

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
