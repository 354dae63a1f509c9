"""Mean and covariance of features that come in batches, and what follows from the covariance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerprobe.system.errors import NotFiniteError

if TYPE_CHECKING:
    from torch import Tensor


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
        batch_moments = _of_batch(batch - origin)
        moments = batch_moments if moments is None else moments.merged(batch_moments)
    if bad:
        raise NotFiniteError(bad, rows)
    if moments is None or origin is None:
        raise ValueError("no features to fit on")
    return Moments(moments.count, moments.mean + origin, moments.scatter)


def _of_batch(features: Tensor) -> Moments:
    mean = features.mean(0)
    centred = features - mean
    return Moments(len(features), mean, centred.T @ centred)


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

    farthest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    least = variances[0] * len(moments.mean) * torch.finfo(variances.dtype).eps
    rank = int((variances > least.clamp(min=0)).sum())
    return Spectrum(moments.mean, variances, axes * farthest.sign(), rank)
