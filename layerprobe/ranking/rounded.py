"""Vectors rounded or in their leading directions, with a rigorous bound of the error of products.

For Q (D, P) with orthonormal columns, a = Q'u, b = Q'v, the residuals u - Qa and v - Qb are orthogonal to Q's columns:
u.v = a.b + (u - Qa).(v - Qb), and by Cauchy-Schwarz the last term is at most |u - Qa| |v - Qb|.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerprobe.ranking.products import Product
from layerprobe.ranking.vectors import Form

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


# Rows are padded with zeros to a multiple of this width: kernels are slower on odd widths.
_ALIGNED = 8
# Up to so many dimensions vectors are turned to the leading directions in float32.
_DIM_OF_FLOAT32 = 1024
# What the smallest products may lose where a processor flushes denormal numbers to zero.
_UNDERFLOW = 1e-30


@dataclass(frozen=True, eq=False)
class Rounded:
    """Rows as a product takes them, and how far each is from the exact vector.

    A row is [x - offset | parts of its bias | ones | zeros]. Its product with a row whose parts and ones are swapped is
    (x - offset).(y - offset) + b(x) + b(y): the similarity less the query's constant. With leading directions Q a row
    is [Q'(x - offset) | parts | ones | residual | zeros]; the product is at least that, and at most twice the product
    of the two residuals above it.

    Args:
        dim: numbers before the parts.
        parts: how many parts a bias has.
        values: (N, P) of the product's type.
        errors: (N,) float64 |(x - offset) - rounded|, or |Q'(x - offset) - rounded|.
        lengths: (N,) float64 |rounded|, with the residual.
        slips: (N,) float64 |bias - its parts|.
        biases: (N,) float64.
        slack: of the directions; 0 without.
    """

    dim: int
    parts: int
    values: Tensor
    errors: Tensor
    lengths: Tensor
    slips: Tensor
    biases: Tensor
    slack: float = 0

    @classmethod
    def of(cls, blocks: Iterable[Tensor], count: int, form: Form, product: Product) -> Rounded:
        """Round vectors that come in blocks (B, D), `count` rows in all."""
        return cls.round_stages(blocks, count, form, product, [None])[0]

    @classmethod
    def round_stages(
        cls, blocks: Iterable[Tensor], count: int, form: Form, product: Product, directions: Sequence[Leading | None]
    ) -> list[Rounded]:
        """Round vectors as `of`, once for each of the directions; None stands for all dimensions."""
        start, stages = 0, [cls._empty(count, form, product, leading) for leading in directions]
        memory = form.offset.new_empty(0)
        for vectors in blocks:
            rows = slice(start, start + len(vectors))
            # All blocks in one memory: new memory is slow at first.
            memory = memory if memory.numel() >= vectors.numel() else torch.empty_like(vectors).ravel()
            centred = torch.sub(vectors, form.offset, out=memory[: vectors.numel()].view_as(vectors))
            biases, numbers, norms = form.biases(vectors), centred.to(product.dtype), centred.norm(dim=1)
            for rounded, leading in zip(stages, directions, strict=True):
                rounded._fill(rows, centred, numbers, norms, biases, leading)
            start += len(vectors)
        if start != count:
            raise ValueError(f"{start} rows, not {count}")
        return stages

    @classmethod
    def _empty(cls, count: int, form: Form, product: Product, leading: Leading | None) -> Rounded:
        dim = leading.count if leading else form.dim
        width = dim + 2 * product.parts + (leading is not None)
        values = torch.empty((count, width + -width % _ALIGNED), dtype=product.dtype, device=form.offset.device)
        values[:, width:] = 0
        errors, lengths, slips, biases = torch.zeros(4, count, dtype=torch.float64, device=values.device)
        slack = leading.slack if leading else 0
        return cls(dim, product.parts, values, errors, lengths, slips, biases, slack)

    def swap(self) -> None:
        """Swap parts and ones in all rows, as one factor of every product needs them."""
        self._swap(self.values)

    def _swap(self, values: Tensor) -> None:
        dim, parts = self.dim, self.parts
        bias_columns = values[:, dim : dim + parts].clone()
        values[:, dim : dim + parts] = values[:, dim + parts : dim + 2 * parts]
        values[:, dim + parts : dim + 2 * parts] = bias_columns

    def _fill(  # noqa: PLR0913 - what all stages share of the vectors
        self, rows: slice, centred: Tensor, numbers: Tensor, norms: Tensor, biases: Tensor, leading: Leading | None
    ) -> None:
        dim, parts, values = self.dim, self.parts, self.values[rows]
        self.biases[rows] = biases
        if leading:
            # float64 takes twice the time, but the bound of float32 grows with D.
            exact = centred if centred.shape[1] > _DIM_OF_FLOAT32 else numbers
            low = exact @ leading.directions.to(exact.dtype)
            values[:, :dim] = low
            back = values[:, :dim].double()
            lengths = back.norm(dim=1)
            # gamma_D |x| |y| for each direction, its rounding and that of the vector; 1.1 as in `tolerance`.
            step = torch.finfo(exact.dtype).eps / 2
            errors = norms * ((1.1 * (centred.shape[1] + 2) * dim**0.5 + 1) * step) + (low.double() - back).norm(dim=1)
        else:
            values[:, :dim] = numbers
            if numbers.dtype == torch.float32:
                # A bound: to compute the error takes three more passes over all numbers.
                errors = norms * 2.0**-24
                lengths = norms + errors
            else:
                back = numbers.double()
                lengths, errors = back.norm(dim=1), (centred - back).norm(dim=1)
        for index in range(parts):
            values[:, dim + index] = biases
            biases = biases - values[:, dim + index].double()
        self.slips[rows] = biases.abs()
        values[:, dim + parts : dim + 2 * parts] = 1
        if leading:
            square_norms, unit = norms.square(), (centred.shape[1] + 8) * 2.0**-53
            # |u - Qa|^2 = |u|^2 - |a|^2 for the exact a; the rest is what a rounded a and directions that are not quite
            # orthonormal add, and the rounding of both squares.
            square_residuals = (square_norms - lengths.square()).clamp_(min=0)
            square_residuals += 2 * lengths * errors + self.slack * lengths.square() + 4 * unit * square_norms
            # One step of float32 up, so that it is no less when rounded.
            values[:, dim + 2 * parts] = square_residuals.sqrt() * (1 + 2.0**-22) + _UNDERFLOW
            lengths = (lengths.square() + values[:, dim + 2 * parts].double().square()).sqrt()
        self.lengths[rows], self.errors[rows] = lengths, errors

    def residuals(self) -> Tensor:
        """(N,) how long the rest of each vector is, at most; with leading directions."""
        return self.values[:, self.dim + 2 * self.parts].contiguous()

    def swapped(self, rows: slice) -> Tensor:
        """(B, P) a copy of some rows with parts and ones swapped."""
        values = self.values[rows].clone()
        self._swap(values)
        return values

    def tolerance(self, gallery: Rounded, form: Form, product: Product) -> Tensor:
        """(N,) float64: how far a product with any row of the gallery may be from the exact value.

        Cauchy-Schwarz for the rounding of the factors; gamma_P sum |x_k y_k| for that of the sum, in whatever order
        (Higham, Accuracy and Stability of Numerical Algorithms, chapter 3); and float64's own rounding of both sides.
        """
        longest, error = gallery.lengths.max(), gallery.errors.max()
        bias = gallery.biases.abs().max()
        steps = self.values.shape[1]
        if self.dim < form.dim:
            steps = form.dim + 16  # 16 for the subtraction of two residuals' product from a sum
        factors = self.errors * (longest + error) + self.lengths * (error + 3 * self.slack * longest)
        factors = factors + self.slips + gallery.slips.max()
        # 1.1 covers that a bias's parts may be larger than the bias, by their rounding, and gamma_P than P u.
        sums = 1.1 * steps * product.unit * (self.lengths * longest + self.biases.abs() + bias)
        offset = form.offset.norm()
        reach = (self.lengths + self.errors + offset) * (longest + error + offset) + self.biases.abs() + bias
        total: Tensor = factors + sums + 8 * (steps + 8) * 2.0**-53 * reach + _UNDERFLOW
        return total
