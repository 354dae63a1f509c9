"""lwhiten:D:S:P and lda:D:S: linear maps that are learned from the classes of the features they are fitted on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce as folded
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.post_processing.applying import Blocks, MappedBatches, Marked
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.pca import MOST_DIMENSIONS, FoldProjections, Moments, Spectrum, leading_of, with_signs
from layerprobe.post_processing.post_processing import (
    FitInputs,
    NotApplicableError,
    PostProcessing,
    Projection,
    dimensions,
    max_loss,
    share,
)
from layerprobe.post_processing.unfitted import unit
from layerprobe.system.errors import NotFiniteError, RecipeError
from layerprobe.values.layers import NO_POST_PROCESSING

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.post_processing.post_processing import FittedStep


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """The first two moments of N features of C classes.

    Args:
        counts: (C,) float64 features of each class, at least 1.
        means: (C, D) float64.
        within: (D, D) float64, the sum of the products of the features' differences from the means of their classes.
        fourth: the sum of the fourth powers of the lengths of these differences.
    """

    counts: Tensor
    means: Tensor
    within: Tensor
    fourth: float

    @property
    def count(self) -> int:
        """N."""
        return int(self.counts.sum())

    @property
    def mean(self) -> Tensor:
        """(D,) float64 of all features."""
        return self.counts @ self.means / self.count

    @property
    def between(self) -> Tensor:
        """(D, D) float64, the sum over the features of the products of their class means' differences from the mean."""
        differences = self.means - self.mean
        return differences.T @ (differences * self.counts[:, None])

    @property
    def whole(self) -> Tensor:
        """(D, D) float64, the sum of the products of the features' differences from their mean."""
        return self.within + self.between

    @property
    def covariance(self) -> Tensor:
        """(D, D) float64 within classes, divided by N: each feature counts once."""
        return self.within / self.count

    def merged(self, other: ClassMoments) -> ClassMoments:
        """The moments of both sets of features together, which have no class in common."""
        import torch

        counts, means = torch.cat([self.counts, other.counts]), torch.cat([self.means, other.means])
        return ClassMoments(counts, means, self.within + other.within, self.fourth + other.fourth)


def class_moments_of(batches: Iterable[Tensor], dim: int, labels: NDArray[np.int64]) -> ClassMoments:
    """Go twice through features: for the means of their classes, and for the differences from these.

    What is kept is a row of D numbers for each class, and two matrices of D x D beside a batch.

    Args:
        batches: (B, D) float64, N rows in all, with a row each at least.
        dim: D.
        labels: (N,) the class of each row.

    Raises:
        NotFiniteError: a row holds NaN or Inf.
        ValueError: there is no batch, one of another number of dimensions, or another number of labels than rows.
    """
    import torch

    classes, places = np.unique(labels, return_inverse=True)
    origin: Tensor | None = None
    rows = bad = 0
    for batch in batches:
        if batch.shape[1] != dim:
            raise ValueError(f"a batch has {batch.shape[1]} dimensions, not {dim}")
        if origin is None:
            # Sums of differences from a feature's neighbourhood keep the digits that those of a large mean lose.
            origin, device = batch.mean(0), batch.device
            class_of_row = torch.from_numpy(places.reshape(-1)).to(device)
            sums = torch.zeros(len(classes), dim, dtype=torch.float64, device=device)
        bad += int((~batch.isfinite()).any(1).sum())
        sums.index_add_(0, class_of_row[rows : rows + len(batch)], batch - origin)
        rows += len(batch)
    if bad:
        raise NotFiniteError(bad, rows)
    if origin is None or rows != len(labels):
        raise ValueError(f"{rows} features to fit on have {len(labels)} labels")
    counts = torch.bincount(class_of_row, minlength=len(classes)).double()
    means = sums / counts[:, None]
    within, fourth, start = torch.zeros(dim, dim, dtype=torch.float64, device=device), 0.0, 0
    for batch in batches:
        differences = batch - origin - means[class_of_row[start : start + len(batch)]]
        start += len(batch)
        within.addmm_(differences.T, differences)
        fourth += float(differences.square().sum(1).square().sum())
    return ClassMoments(counts, means + origin, within, fourth)


def ledoit_wolf(moments: ClassMoments) -> float:
    """The shrinkage of the covariance within classes towards a multiple of the identity, 0 to 1.

    Ledoit & Wolf, A well-conditioned estimator for large-dimensional covariance matrices, Journal of Multivariate
    Analysis 88, 2004, section 3.2: the estimate with the least expected squared error, for N independent rows. Rows
    less the mean of their class are taken as such; C of their N degrees of freedom are not there.
    """
    covariance, count, dim = moments.covariance, moments.count, len(moments.within)
    squares = float(covariance.square().sum())
    distance = squares - float(covariance.trace()) ** 2 / dim
    error = (moments.fourth / count - squares) / count
    return 0.0 if error <= 0 else min(error, distance) / distance if distance > 0 else 1.0


def oracle_approximating(moments: ClassMoments) -> float:
    """The shrinkage as of `ledoit_wolf`, where the rows are normally distributed.

    Chen, Wiesel, Eldar & Hero, Shrinkage Algorithms for MMSE Covariance Estimation, IEEE Transactions on Signal
    Processing 58, 2010, equation 23, without its terms in 2 / D, as scikit-learn has it.
    """
    covariance, dim = moments.covariance, len(moments.within)
    mean_square = float(covariance.square().mean())
    squared_mean = (float(covariance.trace()) / dim) ** 2
    denominator = (moments.count + 1) * (mean_square - squared_mean / dim)
    return 1.0 if denominator <= 0 else min(1.0, (mean_square + squared_mean) / denominator)


_AUTOMATIC: Mapping[str, Callable[[ClassMoments], float]] = {"lw": ledoit_wolf, "oas": oracle_approximating}


class LearnedWhitening(PostProcessing):
    """Whitens what differs within classes, then projects onto the D directions in which features vary most.

    The learned whitening of Radenovic, Tolias & Chum, Fine-tuning CNN Image Retrieval with No Human Annotation, 2018,
    as function `whitenlearn` of their released code (github.com/filipradenovic/cnnimageretrieval-pytorch) computes it,
    with two changes. There the first covariance is that of the differences of matching pairs. Here it is that of the
    differences from the means of classes, in which each image counts once: in pairs a class would count by about the
    square of its images. And it is shrunk. The directions are the principal axes of all features, whitened by it: D may
    be larger than the number of classes.

    The classes that it is fitted on lie closer together afterwards than others do: it is judged on other classes alone.
    Nothing is normalised before or after: `l2+lwhiten:128:lw+l2` does that.

    Args:
        argument: `D:S` or `D:S:P`. D is at least 1. S is the shrinkage of the covariance within classes towards its
            mean variance times the identity, from 0 to 1, or `lw` (`ledoit_wolf`) or `oas` (`oracle_approximating`). P
            is the power of the whitening, from 0 (then it is `pca:D`) to 1, the default.

    Raises:
        RecipeError: it is neither.
    """

    fits = True
    needs_labels = True

    def __init__(self, argument: str) -> None:
        self.name = f"lwhiten:{argument}"
        count, _, settings = argument.partition(":")
        shrinkage, colon, power = settings.partition(":")
        self._count = dimensions(self.name, count, like="lwhiten:128:lw")
        self._shrinkage = _parse_shrinkage(self.name, shrinkage, like=f"lwhiten:{count}:lw")
        parsed = share(power) if colon else 1.0
        if parsed is None:
            fix = f"Leave it out for 1, as in lwhiten:{count}:{shrinkage}"
            raise RecipeError(f"{self.name}: {power!r} is no power from 0 to 1", fix=fix)
        self._power = parsed

    def dim(self, dim: int) -> int:
        """D.

        Raises:
            NotApplicableError: features have fewer.
        """
        return max_loss(self.name, self._count, dim)

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:
        """The projection.

        Raises:
            NotApplicableError: the features have fewer dimensions than D, or vary in fewer directions; their classes
                are not known; no class has two different images; or the covariance within classes has no inverse.
            NotFiniteError: a row holds NaN or Inf.
        """
        self.dim(dim)
        moments = class_moments_of(batches, dim, _require_labels(self.name, inputs))
        whitening = _whitening_within(self.name, moments, _amount_of(self._shrinkage, moments), self._power)
        return _project_onto(self.name, *_leading(moments, moments.whole, whitening, self._count), self._count)


class DiscriminantAnalysis(PostProcessing):
    """The D linear discriminants: whitens what differs within classes, then projects onto the axes of the class means.

    Fisher, 1936; as scikit-learn's `LinearDiscriminantAnalysis(solver="eigen", shrinkage=S)` transforms, but that the
    features' mean is subtracted. A class counts by its images, both in the covariance within classes and in
    that of the means. There are one discriminant fewer than classes. scikit-learn's automatic shrinkage is another one:
    it standardises and shrinks the covariance of each class apart.

    Args:
        argument: `D` or `D:S`. D is at least 1; S is as of `lwhiten`, by default `lw`.

    Raises:
        RecipeError: it is neither.
    """

    fits = True
    needs_labels = True

    def __init__(self, argument: str) -> None:
        self.name = f"lda:{argument}"
        count, colon, shrinkage = argument.partition(":")
        self._count = dimensions(self.name, count, like="lda:64")
        self._shrinkage = _parse_shrinkage(self.name, shrinkage, like=f"lda:{count}:lw") if colon else "lw"

    def dim(self, dim: int) -> int:
        """D.

        Raises:
            NotApplicableError: features have fewer.
        """
        return max_loss(self.name, self._count, dim)

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:
        """The projection.

        Raises:
            NotApplicableError: as of `LearnedWhitening`; or there are no more classes than D.
            NotFiniteError: a row holds NaN or Inf.
        """
        self.dim(dim)
        moments = class_moments_of(batches, dim, _require_labels(self.name, inputs))
        if self._count >= len(moments.counts):
            message = f"{self.name}: it is fitted on {len(moments.counts)} classes, which have one discriminant fewer"
            raise NotApplicableError(message, fix="Ask for fewer dimensions, or take lwhiten")
        amount = _amount_of(self._shrinkage, moments)
        whitening = _whitening_within(self.name, moments, amount, power=1.0)
        between = _shrink(moments.between, amount)
        return _project_onto(self.name, *_leading(moments, between, whitening, self._count), self._count)


def _parse_shrinkage(name: str, text: str, *, like: str) -> float | str:
    number = share(text)
    if number is None and text not in _AUTOMATIC:
        names = ", ".join(_AUTOMATIC)
        raise RecipeError(f"{name}: {text!r} is no shrinkage: a number from 0 to 1, {names}", fix=f"Try {like}")
    return text if number is None else number


def _require_labels(name: str, inputs: FitInputs) -> NDArray[np.int64]:
    if inputs.labels is None:
        message = f"{name}: the classes of the features that it is fitted on are not known"
        raise NotApplicableError(message, fix="Take post-processing without classes")
    return inputs.labels


def _amount_of(shrinkage: float | str, moments: ClassMoments) -> float:
    return shrinkage if isinstance(shrinkage, float) else _AUTOMATIC[shrinkage](moments)


def _shrink(matrix: Tensor, amount: float) -> Tensor:
    """(D, D) shrunk towards the mean of its diagonal times the identity."""
    import torch

    shrunk = (1 - amount) * matrix
    shrunk.diagonal().add_(amount * float(torch.trace(matrix)) / len(matrix))
    return shrunk


def _whitening_within(name: str, moments: ClassMoments, amount: float, power: float) -> Tensor:
    """(D, D) whose columns whiten what differs within classes, each divided by its variance to half of the power."""
    import torch

    if float(moments.counts.max()) < 2:
        message = f"{name}: each class that it is fitted on has one image, and nothing differs within classes"
        raise NotApplicableError(message, fix="Give several images of some classes")
    rounding = torch.finfo(torch.float64).eps ** 2 * moments.count * float(moments.between.trace())
    if float(moments.within.trace()) <= rounding:
        message = f"{name}: all images of a class that it is fitted on have the same features"
        raise NotApplicableError(message, fix="Leave it out")
    variances, axes = torch.linalg.eigh(_shrink(moments.covariance, amount))
    least = float(variances[-1]) * len(axes) * torch.finfo(variances.dtype).eps
    if power and float(variances[0]) <= least:
        rank = int((variances > least).sum())
        message = f"{name}: the features differ within classes in {rank} of {len(axes)} directions"
        raise NotApplicableError(message, fix="Shrink their covariance, as lw does")
    whitening: Tensor = axes / variances.clamp(min=least) ** (power / 2)
    return whitening


def _leading(moments: ClassMoments, scatter: Tensor, whitening: Tensor, count: int) -> tuple[Tensor, Spectrum]:
    """A whitening, and the first principal axes of a scatter matrix after it."""
    return whitening, leading_of(Moments(moments.count, moments.mean, whitening.T @ scatter @ whitening), count)


def _project_onto(name: str, whitening: Tensor, spectrum: Spectrum, count: int) -> Projection:
    """The projection onto the first axes after a whitening."""
    if spectrum.rank < count:
        fix = f"Use at most {spectrum.rank}" if spectrum.rank else "They are all the same: leave it out"
        raise NotApplicableError(f"{name}: the features that it is fitted on have rank {spectrum.rank}", fix=fix)
    return Projection(with_signs(whitening @ spectrum.axes[:, :count]), spectrum.mean)


FEWEST_CLASSES = 16  # of two images or more, on which learned whitening is fitted to be a candidate of `choose`
LEARNED_DIMENSIONS = MOST_DIMENSIONS, 64  # of these candidates


def learned_whitened(dim: int) -> str:
    """The name of learned whitening to some dimensions, of features of length 1, to features of length 1."""
    return f"l2+lwhiten:{dim}:lw+l2"


def parse_whitening(chain: str) -> tuple[bool, int, str] | None:
    """Whether a chain is learned rather than partial whitening of unit features, its dimensions, and the rest.

    Returns:
        None for another chain, and where the rest is fitted, too.
    """
    match = re.fullmatch(r"l2\+(?:whiten:(\d+):0\.5|lwhiten:(\d+):lw)(?:\+([^@]+))?", chain)
    if match is None:
        return None
    half, learned, rest = match.groups()
    end = parse_chain(rest or NO_POST_PROCESSING)
    return (
        None if end.fits or end.draws or end.needs_classifier else (learned is not None, int(half or learned), end.text)
    )


def learned_whitening(
    blocks: Blocks,
    labels: NDArray[np.int64],
    folds: NDArray[np.int64],
    without: Collection[int | None] = (None,),
    most: int = MOST_DIMENSIONS,
) -> FoldProjections | None:
    """Fit `lwhiten:D:lw` of features of length 1 on all folds of classes but one, for each of some.

    The moments of each fold are taken once, and merged for every fit: the results are those of the chain on the same
    rows, up to rounding.

    Args:
        blocks: (N, D) features.
        labels: (N,) the class of each row.
        folds: (N,) the fold of each row; a class is in one fold.
        without: the folds to hold out, one for each fit; None: fit on all.
        most: axes.

    Returns:
        None where a fit has fewer than 16 classes of two images or more, or where a class's features do not differ.

    Raises:
        NotFiniteError: a row holds NaN or Inf.
        ValueError: no row is left for a fit.
    """
    dim, parts = int(blocks.rows.shape[1]), dict[int, ClassMoments]()
    for fold in np.unique(folds).tolist():
        batches = MappedBatches(Marked(blocks, folds == fold), unit)
        parts[fold] = class_moments_of(batches, dim, labels[folds == fold])
    leading: dict[int | None, tuple[Tensor, Spectrum]] = {}
    for held_out in without:
        moments = folded(ClassMoments.merged, [part for fold, part in parts.items() if fold != held_out])
        if int((moments.counts >= 2).sum()) < FEWEST_CLASSES:
            return None
        try:
            whitening = _whitening_within("", moments, ledoit_wolf(moments), power=1.0)
        except NotApplicableError:
            return None
        leading[held_out] = _leading(moments, moments.whole, whitening, min(most, dim))
    count = min(spectrum.rank for _, spectrum in leading.values())
    return FoldProjections({held_out: _project_onto("", *axes, count) for held_out, axes in leading.items()})
