"""Which way to count the negatives costs least, by what it leaves unclear of a sample of the pairs."""

from __future__ import annotations

from dataclasses import dataclass

from layerprobe.ranking.leading import Leading
from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.products import Product, seconds_per_number
from layerprobe.ranking.sweep import Targets, Way, count_blocks
from layerprobe.ranking.vectors import Form

# A query with no more unclear negatives is counted again in bfloat16: computing those in float64 is cheaper than a
# count in float32.
FEW_UNCLEAR = 64
# With more pairs, many of them unclear, it is faster to count again only the queries that a K leaves open.
_PAIRS_FOR_INTERVALS = 10**8
# What takes as long as so many numbers of a product in float32: to compare a pair with thresholds and count it; to list
# one that may be closer; to compute one in float64; the product of a vector's number with a direction, in float64, and
# the rest of the rounding of a number; for the basis of P directions of D numbers P^2 D times the last.
_NUMBERS_OF_A_COUNT = 50
_NUMBERS_OF_A_LISTED_PAIR = 6000
_NUMBERS_OF_A_PAIR = 10**5
_NUMBERS_OF_A_FLOAT64 = 2.5
_NUMBERS_OF_A_ROW = 80
_NUMBERS_OF_A_BASIS = 50
# The basis is limited to this share of the time of the whole product.
_SHARE_OF_A_BASIS = 0.03
# Dimensions that are tried before all.
_DIRECTIONS = (32, 64, 96, 128, 192, 256)


@dataclass(frozen=True, eq=False)
class Sample:
    """Some of the pairs of a search.

    Args:
        some: queries.
        block: items.
        form: of the vectors.
        queries: how many the search has.
        gallery: how many items.
        itself: each pair is computed once for both of its queries.
    """

    some: Targets
    block: Chosen
    form: Form
    queries: int
    gallery: int
    itself: bool

    def cost(self, numbers: float, beside: float = 0) -> float:
        """Of a computed pair, in numbers of its product in float32.

        Args:
            numbers: of the product.
            beside: what else each query of the pair costs.
        """
        return numbers + (2 if self.itself else 1) * (_NUMBERS_OF_A_COUNT + beside)

    def bfloat16(self, fast: Product, exact: Product, ks: frozenset[int] | None) -> list[tuple[float, Way]]:
        """Ways that count in bfloat16, with their costs.

        Args:
            fast: bfloat16.
            exact: float32.
            ks: K of Recall@K whose counts must be exact; None for all counts.
        """
        import torch

        dim, counts = self.form.dim, count_blocks(self.some, [self.block], self.form, Way(fast, exactly=False))
        low, high = counts.double() * (self.gallery / len(self.block.labels))
        unclear, ratio = float((high - low).mean()) / self.gallery, 0.5
        if counts.device.type == "cpu":
            ratio = seconds_per_number(fast) / seconds_per_number(exact)
        found = [(self.cost(dim * ratio, unclear * _NUMBERS_OF_A_PAIR), Way(fast))]
        if ks is not None and self.queries * self.gallery >= _PAIRS_FOR_INTERVALS:
            asked = torch.zeros_like(low, dtype=torch.bool)
            for k in ks:
                asked |= (low < k) & (k <= high)
            many = float((asked & (high - low > FEW_UNCLEAR)).double().mean())
            again = many * dim + (float(asked.double().mean()) - many) * dim * ratio
            found.append((self.cost(dim * ratio, again), Way(fast, exactly=False)))
        return found

    def leading(self, product: Product) -> list[tuple[float, Way]]:
        """Ways that count fewer dimensions first, with their costs."""
        import torch

        dim, some, block = self.form.dim, self.some, self.block
        computed = self.queries * self.gallery / (2 if self.itself else 1)
        rows = self.gallery + (0 if self.itself else self.queries)
        most = min(dim // 2, len(block.labels) // 2, int((_SHARE_OF_A_BASIS * computed / _NUMBERS_OF_A_BASIS) ** 0.5))
        counts = [count for count in _DIRECTIONS if count <= most]
        centred = block.vectors(slice(None)) - self.form.offset
        leading = Leading.of(centred, counts[-1]) if counts else None
        if leading is None:
            return []
        queries = some.queries.vectors(slice(None))
        biases = self.form.biases(queries)
        gaps = self.form.biases(block.vectors(slice(None))) + biases[:, None]
        gaps += (self.form.constants(biases) - some.nearest)[:, None]
        queries -= self.form.offset
        others = some.nearest.isfinite()[:, None] & torch.from_numpy(some.queries.labels[:, None] != block.labels)
        rest, rests = queries.square().sum(1), centred.square().sum(1)
        found, start = [], 0
        for count in counts:
            directions = leading.directions[:, start:count]
            mine, theirs = queries @ directions, centred @ directions
            gaps += mine @ theirs.T
            rest, rests = rest - mine.square().sum(1), rests - theirs.square().sum(1)
            bounds = rest.clamp(min=0).sqrt()[:, None] * rests.clamp(min=0).sqrt()
            possible, unclear = (
                float((which & others).double().mean()) for which in (gaps >= -bounds, gaps.abs() <= bounds)
            )
            beside = possible * _NUMBERS_OF_A_LISTED_PAIR + unclear * (_NUMBERS_OF_A_LISTED_PAIR + 7 * dim)
            turned = rows * dim * (_NUMBERS_OF_A_FLOAT64 * count + _NUMBERS_OF_A_ROW) / computed
            found.append((self.cost(count + turned, beside), Way(product, leading.first(count))))
            start = count
        return found


def cheapest(ways: list[tuple[float, Way]]) -> Way:
    """The way of the lowest cost."""
    return min(ways, key=lambda way: way[0])[1]
