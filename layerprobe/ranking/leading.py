"""The leading directions of vectors: most of two vectors' product, and a bound of the rest from their residuals.

For Q (D, P) with orthonormal columns, a = Q'u, b = Q'v, the residuals u - Qa and v - Qb are orthogonal to Q's columns:
u.v = a.b + (u - Qa).(v - Qb), and by Cauchy-Schwarz the last term is at most |u - Qa| |v - Qb|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Rows that tell whether the spectrum is flat.
_ROWS_OF_SPECTRUM = 256
# The spectrum is flat where the participation ratio is at least this share of what so many rows can show.
_FLAT = 1 / 3


@dataclass(frozen=True, eq=False)
class Leading:
    """Directions, those of the largest variance first.

    Args:
        directions: (D, P) float64.
        slack: |Q'Q - 1|, Frobenius norm, with its own rounding.
    """

    directions: Tensor
    slack: float

    @property
    def count(self) -> int:
        """P."""
        return int(self.directions.shape[1])

    def take(self, count: int) -> Leading:
        """The first directions."""
        return Leading(self.directions[:, :count].contiguous(), self.slack)

    @classmethod
    def of(cls, centred: Tensor, count: int) -> Leading | None:
        """Find `count` directions, at most D, by subspace iteration; None where no few directions lead.

        Halko, Martinsson and Tropp, Finding structure with randomness, SIAM Review 2011, Algorithm 4.4, started with
        some of the rows. Any directions give valid bounds, so float32 will do.

        Args:
            centred: (N, D) a sample, at least `count` rows.
            count: P.
        """
        import torch

        peak = centred.abs().max()
        if not float(peak) > 0:
            return None
        rows = (centred / peak).float()
        some = rows[:: max(1, len(rows) // _ROWS_OF_SPECTRUM)]
        products = some @ some.T
        participating = products.diagonal().sum().square() / products.square().sum()
        if float(participating) > _FLAT / (1 / rows.shape[1] + 1 / len(some)):
            return None
        basis = rows[:: len(rows) // count][:count].T
        for _ in range(2):
            basis = torch.linalg.qr(rows.T @ (rows @ basis))[0]
        projected = (rows @ basis).double()
        try:
            rotation = torch.linalg.eigh(projected.T @ projected)[1].flip(1).float()
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined] # LAPACK does not converge for every matrix
            return None
        directions = torch.linalg.qr((basis @ rotation).double())[0]
        gram = directions.T @ directions
        gram.diagonal().sub_(1)
        # The entries of the product are within (D + 1) 2^-53 of the exact ones.
        slack = float(gram.norm()) + count * (len(directions) + 1) * 2.0**-53
        return cls(directions, slack)
