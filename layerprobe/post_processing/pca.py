"""pca:D and whiten:D:P: the directions in which features vary most, from moments that are taken in batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce as folded
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.post_processing.applying import Blocks, Marked
from layerprobe.post_processing.post_processing import (
    FitInputs,
    InTurn,
    NotApplicableError,
    PostProcessing,
    Projection,
    dimensions,
    max_loss,
    share,
)
from layerprobe.post_processing.unfitted import unit
from layerprobe.system.errors import NotFiniteError, RecipeError

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.post_processing.post_processing import FittedStep

MOST_DIMENSIONS = 128  # of partial whitening in folds
_POWER = 0.5


class PCA(PostProcessing):
    """Subtracts the mean of the features that it is fitted on, and projects onto their first D principal axes.

    Horiguchi et al., 2019, section 3.1, who do not say what they fit it on. The axes are the eigenvectors of the
    covariance. Nothing is normalised before or after: `l2+pca:64+l2` does that.

    Args:
        argument: D, at least 1.

    Raises:
        RecipeError: D is no such number.
    """

    fits = True

    def __init__(self, argument: str) -> None:
        self._name = f"pca:{argument}"
        self._count = dimensions(self._name, argument, like="pca:64")

    def dim(self, dim: int) -> int:
        """D.

        Raises:
            NotApplicableError: features have fewer.
        """
        return max_loss(self._name, self._count, dim)

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - nothing is drawn
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
        name: of the post-processing that asks, for the error.
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


class Whiten(PCA):
    """`pca:D`, each direction then divided by its standard deviation to the power of P.

    P = 1 is full whitening: on the fitted features, every direction has variance 1. P = 0 is `pca:D`. With
    P = 0.5, partial whitening, a direction of standard deviation s has sqrt(s) afterwards. Variances are divided by
    N - 1. There is no other shrinkage: nothing is added to the variances. The released code of Tolias et al., Learning
    and Aggregating Deep Local Descriptors for Instance-Level Recognition, 2020 (github.com/gtolias/how, function
    `pcawhitenlearn_shrinkage`) calls P the shrinkage `s`, divides variances by N, and normalises features afterwards,
    which here is `whiten:D:P+l2`.

    Args:
        argument: `D:P`, D at least 1, P in 0 ... 1.

    Raises:
        RecipeError: it is not.
    """

    def __init__(self, argument: str) -> None:
        count, _, power = argument.partition(":")
        self._name = f"whiten:{argument}"
        self._count = dimensions(self._name, count, like="whiten:64:0.5")
        parsed = share(power)
        if parsed is None:
            raise RecipeError(
                f"{self._name}: {power!r} is no power from 0 to 1",
                fix=f"Partial whitening is whiten:{count}:0.5, full whitening whiten:{count}:1",
            )
        self._power = parsed

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - nothing is drawn
        """The projection.

        Raises:
            NotApplicableError: the features have fewer dimensions than D, or vary in fewer directions.
            NotFiniteError: a row holds NaN or Inf.
        """
        return whitening(leading(self._name, self.dim(dim), batches, dim), self._power)


def whitening(spectrum: Spectrum, power: float) -> Projection:
    """The projection onto principal axes, each divided by its variance to the power of half of `power`."""
    return Projection(spectrum.axes / spectrum.variances ** (power / 2), spectrum.mean)


@dataclass(frozen=True, eq=False)
class Moments:
    """The first two moments of N features.

    Args:
        count: N.
        mean: (D,) float64.
        scatter: (D, D) float64, the sum of the products of the features' differences from their mean.
    """

    count: int
    mean: Tensor
    scatter: Tensor

    @property
    def covariance(self) -> Tensor:
        """(D, D) float64, divided by N - 1; 0 for a single feature."""
        return self.scatter / max(1, self.count - 1)

    def merged(self, other: Moments) -> Moments:
        """The moments of both sets of features together.

        Chan, Golub & LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.
        """
        count = self.count + other.count
        apart = other.mean - self.mean
        scatter = (self.scatter + other.scatter).addr_(apart, apart, alpha=self.count * other.count / count)
        return Moments(count, self.mean + apart * (other.count / count), scatter)


def moments_of(batches: Iterable[Tensor], dim: int) -> Moments:
    """Go once through features, and keep no more than two matrices of D x D beside a batch.

    Args:
        batches: (B, D) float64, each with a row at least.
        dim: D.

    Raises:
        NotFiniteError: a row holds NaN or Inf.
        ValueError: there is no batch, or one of another number of dimensions.
    """
    moments: Moments | None = None
    origin: Tensor | None = None
    rows = bad = 0
    for batch in batches:
        if batch.shape[1] != dim:
            raise ValueError(f"a batch has {batch.shape[1]} dimensions, not {dim}")
        finite = batch.isfinite().all(1)
        rows, bad = rows + len(batch), bad + int((~finite).sum())
        if bad:
            continue
        # Where the mean is large, differences of batches' means would keep few digits of it. Seen from a feature's
        # neighbourhood, all numbers are as small as the features' spread.
        origin = batch.mean(0) if origin is None else origin
        seen = batch - origin
        mean = seen.mean(0)
        centred = seen - mean
        batch_moments = Moments(len(batch), mean, centred.T @ centred)
        moments = batch_moments if moments is None else moments.merged(batch_moments)
    if bad:
        raise NotFiniteError(bad, rows)
    if moments is None or origin is None:
        raise ValueError("no features to fit on")
    return Moments(moments.count, moments.mean + origin, moments.scatter)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The principal axes of features, the one of the largest variance first.

    Args:
        mean: (D,) float64 of the features.
        variances: (D,) float64, descending: the eigenvalues of the covariance.
        axes: (D, D) float64, an axis of length 1 a column. The entry of an axis that is farthest from 0 is positive,
            so that the same features always give the same axes.
        rank: how many variances are above rounding.
    """

    mean: Tensor
    variances: Tensor
    axes: Tensor
    rank: int

    def first(self, count: int) -> Spectrum:
        """The first axes alone."""
        return Spectrum(self.mean, self.variances[:count], self.axes[:, :count].contiguous(), self.rank)


def spectrum_of(moments: Moments) -> Spectrum:
    """The eigenvectors of the covariance.

    The rank is `numpy.linalg.matrix_rank`'s of the covariance: variances count above D times the largest one times the
    distance of 1 from the next float64. N features have a rank of at most N - 1.
    """
    import torch

    ascending, vectors = torch.linalg.eigh(moments.covariance)
    return _spectrum(moments, ascending.flip(0), vectors.flip(1))


def leading_of(moments: Moments, count: int) -> Spectrum:
    """The first axes of `spectrum_of` alone; on a CPU they take half the time of all.

    Args:
        moments: of the features.
        count: how many axes, at most D.

    Returns:
        Axes (D, count); the rank is that of the features, or `count` where it is higher.
    """
    import torch

    dim = len(moments.mean)
    if moments.mean.device.type != "cpu" or count == dim:
        spectrum = spectrum_of(moments).first(count)
        return Spectrum(spectrum.mean, spectrum.variances, spectrum.axes, min(spectrum.rank, count))
    import scipy.linalg  # only this waits for it

    ascending, vectors = scipy.linalg.eigh(
        moments.covariance.numpy(), subset_by_index=(dim - count, dim - 1), driver="evr", check_finite=False
    )
    return _spectrum(moments, torch.from_numpy(ascending).flip(0), torch.from_numpy(vectors).flip(1))


def _spectrum(moments: Moments, variances: Tensor, axes: Tensor) -> Spectrum:
    import torch

    least = variances[0] * len(moments.mean) * torch.finfo(variances.dtype).eps
    rank = int((variances > least.clamp(min=0)).sum())
    return Spectrum(moments.mean, variances, with_signs(axes), rank)


def with_signs(axes: Tensor) -> Tensor:
    """(D, D') the columns, each times -1 where its entry that is farthest from 0 is negative."""
    farthest: Tensor = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    return axes * farthest.sign()


@dataclass(frozen=True, eq=False)
class FoldProjections:
    """A projection of features of length 1, fitted on several parts of them.

    Args:
        fits: fold -> fitted on all other folds; None -> on all of them. All have as many axes, the leading one first.
    """

    fits: Mapping[int | None, Projection]

    @property
    def dim(self) -> int:
        """The number of axes: the minimum of those asked for, the features' dimensions and the rank of each fit."""
        return min(projection.matrix.shape[1] for projection in self.fits.values())

    def onto(self, count: int, end: FittedStep) -> Callable[[int | None], FittedStep]:
        """Fold -> its map onto the first axes, with what comes after the projection."""
        return lambda fold: InTurn((unit, self.fits[fold].onto(count), end))


def partially_whitened(dim: int) -> str:
    """The name of partial whitening to some dimensions, of features of length 1, to features of length 1."""
    return f"l2+whiten:{dim}:{_POWER}+l2"


def partial_whitening(
    blocks: Blocks,
    folds: NDArray[np.int64],
    without: Collection[int | None] = (None,),
    most: int = MOST_DIMENSIONS,
) -> FoldProjections | None:
    """Fit `whiten:D:0.5` of features of length 1 on all folds but one, for each of some.

    The moments of each fold are taken once, and merged for every fit: the results are those of the chain on the same
    rows, up to rounding.

    Args:
        blocks: (N, D) features.
        folds: (N,) the fold of each row.
        without: the folds to hold out, one for each fit; None: fit on all.
        most: axes.

    Returns:
        None where the features of a fit are all the same, or are a single row.

    Raises:
        NotFiniteError: a row holds NaN or Inf.
        ValueError: no row is left for a fit.
    """
    dim = int(blocks.rows.shape[1])
    names = np.unique(folds).tolist()
    moments = (moments_of(map(unit, Marked(blocks, folds == fold)), dim) for fold in names)
    parts: dict[int, Moments] = dict(zip(names, moments, strict=True))
    most = min(most, dim)
    spectra = {}
    for held_out in without:
        fitted_on = [moments for fold, moments in parts.items() if fold != held_out]
        spectra[held_out] = leading_of(folded(Moments.merged, fitted_on), most)
    most = min(spectrum.rank for spectrum in spectra.values())
    if most < 1:
        return None
    return FoldProjections(
        {held_out: whitening(spectrum.first(most), _POWER) for held_out, spectrum in spectra.items()}
    )
