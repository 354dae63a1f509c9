"""Which way to count the negatives costs least, by what it leaves unclear of a sample of the pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.products import Product, seconds_per_number
from layerprobe.ranking.rounded import Leading
from layerprobe.ranking.sweep import FEW, Targets, Way, count_blocks
from layerprobe.ranking.vectors import Form

if TYPE_CHECKING:
    from torch import Tensor

# A query with no more unclear negatives is counted again in 16 bits: computing those in float64 is cheaper than a
# count in float32.
FEW_UNCLEAR = 64
# With more pairs, many of them unclear, it is faster to count again only the queries that a K leaves open.
_PAIRS_FOR_INTERVALS = 10**8
# What takes as long as so many numbers of a product in float32: to compare a pair with thresholds and count it, or only
# with one of them; to list one that may be closer; to compute a number of one in float32, and one in float64; the
# product of a vector's number with a direction, in float64, and the rest of the rounding of a number; for the basis of
# P directions of D numbers P^2 D times the last.
_NUMBERS_OF_A_COUNT = 50
_NUMBERS_OF_A_COMPARISON = 18
_NUMBERS_OF_A_LISTED_PAIR = 1000
_NUMBERS_OF_AN_UNCLEAR_NUMBER = 13
_NUMBERS_OF_A_PAIR = 10**5
_NUMBERS_OF_A_FLOAT64 = 2.5
_NUMBERS_OF_A_ROW = 80
_NUMBERS_OF_A_BASIS = 50
# The basis is limited to this share of the time of the whole product.
_SHARE_OF_A_BASIS = 0.015
# Rows and columns of a tile whose pairs are listed, and how many such tiles a row must have at least.
_TILE_OF_LISTS, _TILES_OF_LISTS = 1536, 16
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
        enough: closer negatives after which a query is listed no further; None without a limit.
    """

    some: Targets
    block: Chosen
    form: Form
    queries: int
    gallery: int
    itself: bool
    enough: int | None = None

    def cost(self, numbers: float, beside: float = 0, count: float = _NUMBERS_OF_A_COUNT) -> float:
        """Of a computed pair, in numbers of its product in float32.

        Args:
            numbers: of the product.
            beside: what else each query of the pair costs.
            count: what it costs to compare it.
        """
        return numbers + (2 if self.itself else 1) * (count + beside)

    def half_precision_ways(self, fast: Product, exact: Product, ks: frozenset[int] | None) -> list[tuple[float, Way]]:
        """Ways that count in 16 bits, with their costs.

        Args:
            fast: of 16 bits.
            exact: float32.
            ks: K of Recall@K whose counts must be exact; None for all counts.
        """
        import torch

        dim, counts = self.form.dim, count_blocks(self.some, [self.block], self.form, Way(fast, exactly=False))
        low, high, _ = counts.double() * (self.gallery / len(self.block.labels))
        unclear, ratio = float((high - low).mean()) / self.gallery, 0.5
        if counts.device.type == "cpu":
            ratio = seconds_per_number(fast) / seconds_per_number(exact)
        ways = [(self.cost(dim * ratio, unclear * _NUMBERS_OF_A_PAIR), Way(fast))]
        if ks is not None and self.queries * self.gallery >= _PAIRS_FOR_INTERVALS:
            unresolved = torch.zeros_like(low, dtype=torch.bool)
            for k in ks:
                unresolved |= (low < k) & (k <= high)
            recounted_share = float((unresolved & (high - low > FEW_UNCLEAR)).double().mean())
            recount_numbers = (
                recounted_share * dim + (float(unresolved.double().mean()) - recounted_share) * dim * ratio
            )
            ways.append((self.cost(dim * ratio, recount_numbers), Way(fast, exactly=False)))
        return ways

    def listing_ways(self, product: Product, *, leading: bool) -> list[tuple[float, Way]]:
        """Ways that list the pairs that may be closer, with their costs.

        Args:
            product: float32.
            leading: count fewer dimensions first, too.
        """
        import torch

        if self.gallery >= _TILES_OF_LISTS * _TILE_OF_LISTS:
            product = replace(product, tile=_TILE_OF_LISTS)
        low, high, _ = count_blocks(self.some, [self.block], self.form, Way(product, exactly=False)).double()
        compared_share = torch.ones_like(low)
        if self.enough is not None:  # a query is listed up to the end of the tile that has the last of these
            compared_share = self.enough * len(self.block.labels) / (low * self.gallery) + product.tile / self.gallery
        compared_share = compared_share.clamp(max=1)
        beside = self._listing(high / len(self.block.labels), compared_share, 0)
        beside += float(((high - low) * compared_share).mean()) / len(self.block.labels) * _NUMBERS_OF_A_PAIR
        ways = [(self.cost(self.form.dim, beside, _NUMBERS_OF_A_COMPARISON), Way(product, listed=True))]
        return ways + (self._leading(product, compared_share) if leading else [])

    def _listing(self, possible: Tensor, compared_share: Tensor, recount_numbers: float) -> float:
        """What it costs each query of a pair to list those that may be closer.

        Args:
            possible: (Q,) their share.
            compared_share: (Q,) the share of the items that each query is compared with.
            recount_numbers: cost, for one query of the pair, of computing it again where a list is too long.
        """
        cost = float((possible * compared_share).mean()) * _NUMBERS_OF_A_LISTED_PAIR
        if float(possible.mean()) * (2 if self.itself else 1) < 1 / FEW:
            return cost
        return cost + float(compared_share.mean()) * (recount_numbers + _NUMBERS_OF_A_COUNT)

    def _leading(self, product: Product, compared_share: Tensor) -> list[tuple[float, Way]]:
        """Ways that count fewer dimensions first, with their costs.

        Args:
            product: float32.
            compared_share: (Q,) the share of the items that each query is compared with.
        """
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
        negatives = some.nearest.isfinite()[:, None] & torch.from_numpy(some.queries.labels[:, None] != block.labels)
        query_residuals, gallery_residuals = queries.square().sum(1), centred.square().sum(1)
        ways, start = [], 0
        for count in counts:
            directions = leading.directions[:, start:count]
            mine, theirs = queries @ directions, centred @ directions
            gaps += mine @ theirs.T
            query_residuals, gallery_residuals = (
                query_residuals - mine.square().sum(1),
                gallery_residuals - theirs.square().sum(1),
            )
            bounds = query_residuals.clamp(min=0).sqrt()[:, None] * gallery_residuals.clamp(min=0).sqrt()
            possible, unclear = (
                (which & negatives).double().mean(1) for which in (gaps >= -bounds, gaps.abs() <= bounds)
            )
            beside = self._listing(possible, compared_share, dim / 2 if self.itself else dim)
            pair_numbers = _NUMBERS_OF_A_LISTED_PAIR + _NUMBERS_OF_AN_UNCLEAR_NUMBER * dim
            beside += float((unclear * compared_share).mean()) * pair_numbers
            turned = rows * dim * (_NUMBERS_OF_A_FLOAT64 * count + _NUMBERS_OF_A_ROW) / computed
            way = Way(product, leading.take(count), listed=True)
            ways.append((self.cost(count + turned, beside, _NUMBERS_OF_A_COMPARISON), way))
            start = count
        return ways


def cheapest(ways: list[tuple[float, Way]]) -> Way:
    """The way of the lowest cost."""
    return min(ways, key=lambda way: way[0])[1]
