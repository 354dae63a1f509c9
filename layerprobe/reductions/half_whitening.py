"""Half-whitening that is fitted without each fold of the features, from moments that are taken once."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce as folded

import numpy as np
from numpy.typing import NDArray

from layerprobe.reductions.applying import Blocks, Marked
from layerprobe.reductions.moments import Moments, leading_of, moments_of
from layerprobe.reductions.pca import whitening
from layerprobe.reductions.reduction import InTurn, Reduce
from layerprobe.reductions.unfitted import unit

MOST_DIMENSIONS = 128
_POWER = 0.5


@dataclass(frozen=True, eq=False)
class HalfWhitening:
    """`l2+whiten:D:0.5+l2`, fitted on several parts of the same features.

    Args:
        dim: D: the minimum of 128, the features' dimensions and the rank of each part.
        fits: fold -> fitted on all other folds; None -> on all of them.
    """

    dim: int
    fits: Mapping[int | None, Reduce]

    @property
    def name(self) -> str:
        """The chain that `reductions.chain` knows it by."""
        return half_whitened(self.dim)


def half_whitened(dim: int) -> str:
    """The name of half-whitening to some dimensions, of features of length 1, to features of length 1."""
    return f"l2+whiten:{dim}:{_POWER}+l2"


def is_half_whitening(chain: str) -> bool:
    """Whether a chain of reductions is half-whitening to any number of dimensions."""
    return re.fullmatch(rf"l2\+whiten:\d+:{_POWER}\+l2", chain) is not None


def half_whitening(
    blocks: Blocks,
    folds: NDArray[np.int64],
    without: Collection[int | None] = (None,),
) -> HalfWhitening | None:
    """Fit half-whitening on all folds of features but one, for each of some.

    The moments of each fold are taken once, and merged for every fit: the results are those of the chain on the same
    rows, up to rounding.

    Args:
        blocks: (N, D) features.
        folds: (N,) the fold of each row.
        without: the folds to hold out, one for each fit; None: fit on all.

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
    most = min(MOST_DIMENSIONS, dim)
    spectra = {held_out: leading_of(_merge_moments(parts, held_out), most) for held_out in without}
    most = min(spectrum.rank for spectrum in spectra.values())
    if most < 1:
        return None
    return HalfWhitening(
        most, {held_out: _through(whitening(s.first(most), _POWER)) for held_out, s in spectra.items()}
    )


def _merge_moments(parts: Mapping[int, Moments], held_out: int | None) -> Moments:
    return folded(Moments.merged, [moments for fold, moments in parts.items() if fold != held_out])


def _through(whiten: Reduce) -> Reduce:
    return InTurn((unit, whiten, unit))
