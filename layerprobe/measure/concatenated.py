"""Features of the layer `A+B`: those of its members, each normalised, concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.items import Table

_ROWS = 4096  # normalised at once: 32 MiB at 2,048 dimensions


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Features of the same images at several layers: each of length 1, one after the other in a row.

    They are made when rows are read. The cosine of two rows is the mean of the layers' cosines. A zero vector stays
    zero and adds nothing to its row.

    Args:
        members: (N, D) float32 features of each layer, in memory or on disk.
    """

    members: Sequence[Table]

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, the sum of the layers' dimensions)."""
        return len(self), sum(member.shape[1] for member in self.members)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """float32."""
        return np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.members[0])

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("rows are read one after the other")
        joint = np.empty((max(0, stop - start), self.shape[1]), np.float32)
        for low in range(start, stop, _ROWS):
            high = min(low + _ROWS, stop)
            done = 0
            for member in self.members:
                block = np.asarray(member[low:high])
                _normalise(block, out=joint[low - start : high - start, done : done + block.shape[1]])
                done += block.shape[1]
        return joint


def side_by_side(members: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """(N, D) features of a layer, or (N, the sum of D) those of several as `SideBySide` has them.

    Args:
        members: (N, D) of each layer, at least one.
    """
    return SideBySide(members)[:] if len(members) > 1 else members[0]


def _normalise(features: NDArray[np.float32], *, out: NDArray[np.float32]) -> None:
    """Write (B, D) features of length 1, computed in float64; zero vectors stay, NaN and Inf give NaN."""
    lengths = np.sqrt(np.einsum("nd,nd->n", features, features, dtype=np.float64))
    lengths[lengths == 0] = 1
    with np.errstate(invalid="ignore"):  # Inf / Inf: the search tells of it
        np.divide(features, lengths[:, None], out=out, casting="same_kind")
