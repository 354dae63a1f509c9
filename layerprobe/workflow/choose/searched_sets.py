"""Whether sets of concatenated layers that a search found are candidates: by its cross-fitted gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.units import UnitSums
from layerprobe.values.arrays import FloatArray
from layerprobe.values.choice import Gain

Name = TypeVar("Name")


@dataclass(frozen=True)
class Found(Generic[Name]):
    """The result of a search on some classes.

    Args:
        single: the best single candidate.
        sets: the sets found, each better on these classes than the ones before it in its reduction.
    """

    single: Name
    sets: tuple[Name, ...]


@dataclass(frozen=True)
class Decided:
    """Whether the found sets are candidates.

    Args:
        gain: of the found set over the single layer, on the fold without which both were found; None if no set was.
    """

    admitted: bool
    gain: Gain | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The decision in a line."""
        if self.gain is None:
            return ("concatenated layers: none is better than the best single layer",)
        gain = self.gain
        ends = "" if gain.low is None or gain.high is None else f" [{100 * gain.low:.1f}, {100 * gain.high:.1f}]"
        what = "they are candidates" if self.admitted else "no candidates, as the interval does not lie above 0"
        return (
            f"concatenated layers: cross-fitted gain over one layer {100 * gain.difference:+.1f} points{ends}: {what}",
        )


def searched(
    search: Callable[[FloatArray], Found[Name]], folds: NDArray[np.int64], weights: FloatArray | None = None
) -> dict[int | None, Found[Name]]:
    """Fold that is left out -> what a search finds on the other classes; None: on all.

    Args:
        search: (U,) how much each class counts -> what is found.
        weights: (U,) how often each class is drawn; None for once.
    """
    often = np.ones(len(folds)) if weights is None else weights
    left_out: list[int | None] = [None, *np.unique(folds).tolist()]
    return {fold: search(often if fold is None else np.where(folds == fold, 0.0, often)) for fold in left_out}


def admitted(  # noqa: PLR0913 - the sets, the classes and the draws
    by_fold: Mapping[int | None, Found[Name]],
    cells_of: Callable[[Name], UnitSums],
    folds: NDArray[np.int64],
    *,
    seed: int,
    weights: FloatArray | None = None,
    resamples: int = 10_000,
) -> Decided:
    """Decide by the paired 95 % interval of the cross-fitted gain: it must lie above 0.

    Args:
        by_fold: fold that is left out -> what the search finds; None: on all classes.
        cells_of: candidate -> (1, U) its values.
        folds: (U,) the fold of each class.
        seed: of the draws of classes.
        weights: (U,) how often each class is drawn; None for once.
        resamples: draws of classes.
    """
    if not any(found.sets for found in by_fold.values()):
        return Decided(admitted=False)
    sums, counts = np.zeros((1, len(folds))), np.zeros((1, len(folds)))
    for fold, found in by_fold.items():
        if fold is None:
            continue
        own, single = folds == fold, cells_of(found.single)
        counts[:, own] = single.counts[:, own]
        if found.sets:
            kept = np.where(own, 0.0, np.ones(len(folds)) if weights is None else weights)
            best = max(map(cells_of, found.sets), key=lambda cells: mean_on(cells, kept))
            sums[:, own] = best.sums[:, own] - single.sums[:, own]
    if weights is not None:
        often = weights.astype(int)
        sums, counts = np.repeat(sums, often, axis=1), np.repeat(counts, often, axis=1)
    (gain,) = differences(UnitSums(sums, counts), resamples=resamples, seed=seed)
    return Decided(gain.low is not None and gain.low > 0, Gain(gain.value, gain.low, gain.high))


def mean_on(cells: UnitSums, weights: FloatArray) -> float:
    """The mean of a single row of cells, where classes count by weights (U,)."""
    return float((cells.sums[0] @ weights) / (cells.counts[0] @ weights))
