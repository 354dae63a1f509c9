"""Recall@1 of a run's layers at its epochs, summed over the units that are resampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import Ranks

LayerEpoch = tuple[RankedLayer, int]  # a layer at an epoch
_INEXACT = "the ranks are not exact for K = 1"


@dataclass(frozen=True)
class Faults:
    """The caveats on a layer on a split at an epoch.

    Args:
        tied: share of tied queries where the layer has collapsed; else 0.
        lone: queries without another item of their class, which count as misses.
        invalid: why there is no value; empty where there is one.
    """

    tied: float = 0.0
    zeros: int = 0
    lone: int = 0
    invalid: str = ""


def faults_of(draws: Sequence[Ranks | str]) -> Faults:
    """The worst faults of the draws that a layer is the mean of: of the ranks of each, or the reason why it has none.

    The ranks must be exact for K = 1.
    """
    ranks = [draw for draw in draws if isinstance(draw, Ranks)]
    reasons = (draw if isinstance(draw, str) else _INEXACT if draw.open([1]).any() else "" for draw in draws)
    return Faults(
        max((draw.tied_share for draw in ranks if draw.collapsed), default=0.0),
        max((draw.zeros for draw in ranks), default=0),
        max((draw.lone for draw in ranks), default=0),
        next(filter(None, reasons), ""),
    )


@dataclass(frozen=True, eq=False)
class Cells:
    """Means over the queries of one split.

    Args:
        rows: layer and epoch -> its row in `sums`.
        sums: None without rows.
    """

    rows: Mapping[LayerEpoch, int] = field(default_factory=dict)
    sums: UnitSums | None = None

    def __contains__(self, key: LayerEpoch) -> bool:
        return key in self.rows

    def of(self, keys: Sequence[LayerEpoch]) -> UnitSums:
        """The sums of some layers and epochs, in their order."""
        if self.sums is None or not keys or not all(key in self.rows for key in keys):
            raise ValueError("no hits of a layer at an epoch")
        rows = [self.rows[key] for key in keys]
        return UnitSums(self.sums.sums[rows], self.sums.counts[rows])

    def mean(self, key: LayerEpoch) -> float | None:
        """The mean of a layer at an epoch, if any."""
        return float(self.of([key]).means[0]) if key in self.rows else None

    def epochs(self, ranked: RankedLayer) -> list[int]:
        """The epochs at which a layer has a mean, ascending."""
        return sorted(epoch for layer, epoch in self.rows if layer == ranked)

    def with_epoch(
        self,
        epoch: int,
        values: Mapping[RankedLayer, NDArray[np.float64]],
        units: NDArray[np.int64],
    ) -> Cells:
        """These means and those of a further epoch.

        Args:
            values: layer -> (Q,) values of the queries; NaN where a mean excludes one.
            units: (Q,) the same for every epoch.
        """
        if not values:
            return self
        new = unit_sums(np.stack(list(values.values())), units)
        sums = [] if self.sums is None else [self.sums]
        rows = {(ranked, epoch): len(self.rows) + row for row, ranked in enumerate(values)}
        combined = UnitSums(
            np.concatenate([*(earlier.sums for earlier in sums), new.sums]),
            np.concatenate([*(earlier.counts for earlier in sums), new.counts]),
        )
        return Cells({**self.rows, **rows}, combined)


@dataclass(frozen=True, eq=False)
class SplitCells:
    """The stored values of a split.

    Args:
        raw: Recall@1 of all its queries in its whole gallery.
        thinned: the same in a gallery of the other split's size; empty where it is not thinned.
        faults: layer and epoch -> caveats on it, also where it has no value.
    """

    raw: Cells
    thinned: Cells
    faults: Mapping[LayerEpoch, Faults]
    units: frozenset[int]

    @property
    def compared(self) -> Cells:
        """The values that a gap is made of."""
        return self.thinned if self.thinned.rows else self.raw
