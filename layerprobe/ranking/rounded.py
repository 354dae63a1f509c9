"""Vectors rounded for a product of low precision, with a rigorous bound of the error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.products import Product
    from layerprobe.ranking.vectors import Form

# Rows are padded with zeros to a multiple of this width: kernels are slower on odd widths.
_ALIGNED = 8
# What the smallest products may lose where a processor flushes denormal numbers to zero.
_UNDERFLOW = 1e-30


@dataclass(frozen=True, eq=False)
class Rounded:
    """Rows as a product takes them, and how far each is from the exact vector.

    A row is [x - offset | parts of its bias | ones | zeros]. Its product with a row whose parts and ones are swapped is
    (x - offset).(y - offset) + b(x) + b(y): the similarity less the query's constant.

    Args:
        values: (N, P) of the product's type.
        errors: (N,) float64 |(x - offset) - rounded|.
        lengths: (N,) float64 |rounded|.
        slips: (N,) float64 |bias - its parts|.
        biases: (N,) float64.
    """

    values: Tensor
    errors: Tensor
    lengths: Tensor
    slips: Tensor
    biases: Tensor

    @classmethod
    def of(cls, blocks: Iterable[Tensor], count: int, form: Form, product: Product) -> Rounded:
        """Round vectors that come in blocks (B, D), `count` rows in all."""
        import torch

        start, rounded = 0, None
        for vectors in blocks:
            if rounded is None:
                width = vectors.shape[1] + 2 * product.parts
                shape = (count, width + -width % _ALIGNED)
                values = torch.zeros(shape, dtype=product.dtype, device=vectors.device)
                rounded = cls(values, *torch.zeros(4, count, dtype=torch.float64, device=vectors.device))
            rounded._fill(slice(start, start + len(vectors)), vectors, form, product.parts)
            start += len(vectors)
        if rounded is None or start != count:
            raise ValueError(f"{start} rows, not {count}")
        return rounded

    def swap(self, dim: int, parts: int) -> None:
        """Swap parts and ones in all rows, as one factor of every product needs them."""
        first = self.values[:, dim : dim + parts].clone()
        self.values[:, dim : dim + parts] = self.values[:, dim + parts : dim + 2 * parts]
        self.values[:, dim + parts : dim + 2 * parts] = first

    def _fill(self, rows: slice, vectors: Tensor, form: Form, parts: int) -> None:
        dim, values = vectors.shape[1], self.values[rows]
        biases = form.biases(vectors)
        self.biases[rows] = biases
        centred = vectors - form.offset
        values[:, :dim] = centred
        back = values[:, :dim].double()
        self.lengths[rows] = back.norm(dim=1)
        self.errors[rows] = centred.sub_(back).norm(dim=1)
        for part in range(parts):
            values[:, dim + part] = biases
            biases = biases - values[:, dim + part].double()
        self.slips[rows] = biases.abs()
        values[:, dim + parts : dim + 2 * parts] = 1

    def swapped(self, rows: slice, dim: int, parts: int) -> Tensor:
        """(B, P) a copy of some rows with parts and ones swapped."""
        none = self.errors[:0]
        some = Rounded(self.values[rows].clone(), none, none, none, none)
        some.swap(dim, parts)
        return some.values

    def tolerance(self, gallery: Rounded, form: Form, product: Product) -> Tensor:
        """(N,) float64: how far a product with any row of the gallery may be from the exact value.

        Cauchy-Schwarz for the rounding of the factors; gamma_P sum |x_k y_k| for that of the sum, in whatever order
        (Higham, Accuracy and Stability of Numerical Algorithms, chapter 3); and float64's own rounding of both sides.
        """
        longest, error = gallery.lengths.max(), gallery.errors.max()
        bias = gallery.biases.abs().max()
        steps = self.values.shape[1]
        factors = self.errors * (longest + error) + self.lengths * error + self.slips + gallery.slips.max()
        # 1.1 covers that a bias's parts may be larger than the bias, by their rounding, and gamma_P than P u.
        sums = 1.1 * steps * product.unit * (self.lengths * longest + self.biases.abs() + bias)
        offset = form.offset.norm()
        reach = (self.lengths + self.errors + offset) * (longest + error + offset) + self.biases.abs() + bias
        total: Tensor = factors + sums + 8 * (steps + 8) * 2.0**-53 * reach + _UNDERFLOW
        return total
