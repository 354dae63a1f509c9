"""Count negatives: all pairs in low precision or few dimensions, then the unclear ones, at last in float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.items import block_rows
from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.products import pair_products
from layerprobe.ranking.rounded import Rounded
from layerprobe.ranking.tiles import (
    Thresholds,
    count_columns,
    count_rows,
    cuts,
    mask_classes,
    of_one_class,
    places_above,
    places_between,
)

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.leading import Leading
    from layerprobe.ranking.products import Product
    from layerprobe.ranking.vectors import Form

_PAIRS_AT_ONCE, _PAIRS_AT_ONCE_ON_A_GPU = 2**12, 2**15
# If more than 1 / _FEW of a tile's pairs are unclear, one product of the whole tile is faster.
_FEW = 16


@dataclass(frozen=True, eq=False)
class Way:
    """How pairs are counted.

    Args:
        product: how the similarities are computed.
        leading: the directions that the first product is limited to; None for all dimensions.
        exactly: compute unclear pairs at once.
    """

    product: Product
    leading: Leading | None = None
    exactly: bool = True


@dataclass(frozen=True, eq=False)
class Targets:
    """What the negatives of some queries are compared with.

    Args:
        queries: sorted by class.
        nearest: (Q,) float64 similarity to the nearest positive; -inf for lone queries.
        windows: (Q,) float64 tie windows.
    """

    queries: Chosen
    nearest: Tensor
    windows: Tensor

    def __getitem__(self, rows: NDArray[np.intp]) -> Targets:
        return Targets(self.queries.some(rows), self.nearest[rows], self.windows[rows])

    def rounded(self, form: Form, way: Way) -> list[Rounded]:
        """All queries for a product: whole, and after them their leading directions if these are counted first."""
        blocks = (
            self.queries.vectors(rows) for rows in cuts(len(self.nearest), block_rows(self.nearest.device, form.dim))
        )
        return Rounded.each(blocks, len(self.nearest), form, way.product, _stages(way))

    def thresholds(self, rounded: Rounded, gallery: Rounded, form: Form, product: Product) -> Thresholds:
        """Bounds between which a product leaves the comparison with the nearest positive unclear."""
        margin = self.windows
        if form.similarity != "hamming":  # sums of -1 and 1 are exact
            margin = margin + rounded.tolerance(gallery, form, product)
        return Thresholds.of(self.nearest - form.constants(rounded.biases), margin, product)


def _stages(way: Way) -> list[Leading | None]:
    return [None] if way.leading is None else [None, way.leading]


def count_symmetric(targets: Targets, form: Form, way: Way, share: slice) -> Tensor:
    """Count among the queries themselves, each pair of tiles once for its rows and once for its columns.

    Args:
        targets: all items.
        form: of the vectors.
        way: how.
        share: which of the pairs of tiles to take.

    Returns:
        int64 (2, Q): negatives that surely are closer than the nearest positive; negatives tied with it, or where not
        `way.exactly` all that may be tied or closer.
    """
    stages, labels = targets.rounded(form, way), targets.queries.labels
    found = _Counts(targets, form, way)
    found.search(stages, stages)
    tiles = cuts(len(labels), way.product.tile)
    pairs = [(i, j) for i in range(len(tiles)) for j in range(i, len(tiles))][share]
    left, last = [stage.values for stage in stages], -1
    for i, j in pairs:
        rows, columns = tiles[i], tiles[j]
        if i != last:
            left, last = [stage.swapped(rows) for stage in stages], i
        found.add(rows, columns, left, targets.queries, both=i != j)
    return found.finished(targets.queries)


def count_blocks(targets: Targets, gallery: Iterable[Chosen], form: Form, way: Way) -> Tensor:
    """Count in a gallery that comes in blocks; arguments and result of `count_symmetric`."""
    stages, labels = targets.rounded(form, way), targets.queries.labels
    for stage in stages:
        stage.swap()
    found = _Counts(targets, form, way)
    for block in gallery:
        whole = [block.vectors(slice(None))]
        found.search(stages, Rounded.each(whole, len(block.labels), form, way.product, _stages(way)))
        for rows in cuts(len(labels), way.product.tile):
            left = [stage.values[rows] for stage in stages]
            for columns in cuts(len(block.labels), way.product.tile):
                found.add(rows, columns, left, block)
        found.finished(block)
    return found.finished(targets.queries)


class _Counts:
    """What tiles have counted so far, and the unclear pairs that wait to be computed in float64.

    Args:
        targets: the queries.
        form: of the vectors.
        way: how they are counted.
    """

    def __init__(self, targets: Targets, form: Form, way: Way) -> None:
        import torch

        self.targets, self.form, self.way = targets, form, way
        self.nearest = targets.nearest.where(targets.nearest.isfinite(), torch.inf)  # nothing reaches a lone query's
        self.closer = torch.zeros(len(targets.nearest), dtype=torch.int64, device=targets.nearest.device)
        self.tied = torch.zeros_like(self.closer)
        self.waiting: list[Tensor] = []  # (2, P) places of queries and of items of the gallery
        self.number = 0  # of pairs that wait
        self.at_once = _PAIRS_AT_ONCE if self.closer.device.type == "cpu" else _PAIRS_AT_ONCE_ON_A_GPU

    def search(self, queries: list[Rounded], gallery: list[Rounded]) -> None:
        """Take up the stages of a gallery: the whole vectors, and their leading directions."""
        self.queries, self.gallery = queries, gallery
        if self.way.leading is not None:
            self.residuals = queries[-1].residuals(), gallery[-1].residuals()
        self.thresholds = [
            self.targets.thresholds(mine, searched, self.form, self.way.product)
            for mine, searched in zip(queries, gallery, strict=True)
        ]

    def add(self, rows: slice, columns: slice, left: list[Tensor], gallery: Chosen, *, both: bool = False) -> None:
        """Count a tile for the queries of its rows.

        Args:
            rows: (A,) of the queries.
            columns: (B,) of the gallery.
            left: each stage's factor for the rows.
            gallery: of the columns.
            both: count it for the queries of its columns, too.
        """
        labels = self.targets.queries.labels[rows], gallery.labels[columns]
        if of_one_class(*labels):
            return
        similarities = self.way.product.multiply(left[-1], self.gallery[-1].values[columns])
        mask_classes(similarities, *labels)
        if self.way.leading is not None:
            self._add_leading(rows, columns, similarities, left[0], gallery, both=both)
            return
        sides = (rows, columns) if both else (rows,)
        exactly = self.way.exactly and self.form.similarity != "hamming"
        unclear = []
        for count, queries in zip((count_rows, count_columns), sides, strict=False):
            possible, closer = count(similarities, self.thresholds[0][queries])
            self.closer[queries].add_(closer)
            unclear.append(possible.sub_(closer))
        if not exactly:
            # All that is possible and not surely closer is tied: exact for bits, else an upper bound.
            for queries, some in zip(sides, unclear, strict=True):
                self.tied[queries].add_(some)
            return
        if sum(int(some.sum()) for some in unclear) * _FEW > similarities.numel():
            self._recount(rows, columns, similarities, gallery, both=both)
            return
        for side, (queries, some) in enumerate(zip(sides, unclear, strict=True)):
            which = some.nonzero()[:, 0]
            if len(which):
                part = similarities.index_select(side, which)
                part = part.T.contiguous() if side else part
                self._settle(which + queries.start, rows if side else columns, part, gallery)

    def _recount(self, rows: slice, columns: slice, similarities: Tensor, gallery: Chosen, *, both: bool) -> None:
        """Count the pairs of a tile (A, B) that are unclear in float64, all at once."""
        mine, theirs = self.targets.queries.vectors(rows), gallery.vectors(columns)
        exact = self.form.similarities(mine, theirs)
        self._count_unclear(rows, similarities, exact)
        if both:
            turned = self.form.similarities(theirs, mine) if self.form.similarity == "euclidean" else exact.T
            self._count_unclear(columns, similarities.T, turned)

    def _count_unclear(self, queries: slice, similarities: Tensor, exact: Tensor) -> None:
        import torch

        bounds = self.thresholds[0][queries]
        clear = (similarities < bounds.low[:, None]) | (similarities > bounds.high[:, None])
        places = torch.arange(queries.start, queries.stop, device=exact.device)
        self._count(places, exact.masked_fill(clear, -torch.inf))

    def _add_leading(  # noqa: PLR0913 - as add
        self, rows: slice, columns: slice, highest: Tensor, left: Tensor, gallery: Chosen, *, both: bool
    ) -> None:
        """Count upper ends of similarities (A, B) and compute the unclear pairs from the whole vectors."""
        import torch

        whole, (fine, coarse) = self.gallery[0].values[columns], self.thresholds
        residuals = self.residuals[0][rows], self.residuals[1][columns]
        for side, queries in enumerate((rows, columns) if both else (rows,)):
            low = coarse.low[queries]
            first, second, ends = places_above(highest, low if side else low[:, None])
            mine = second if side else first
            rest = residuals[0].index_select(0, first) * residuals[1].index_select(0, second)
            closer = ends - 2 * rest > coarse.high[queries].index_select(0, mine)
            counted = torch.bincount(mine, closer, len(low))
            unclear = torch.nonzero(~closer)[:, 0]
            first, second, mine = (some.index_select(0, unclear) for some in (first, second, mine))
            if len(unclear) * _FEW > highest.numel():
                found = self.way.product.multiply(left, whole)[first, second]
            else:
                found = pair_products(left, whole, first, second)
            closer = found > fine.high[queries].index_select(0, mine)
            counted += torch.bincount(mine, closer, len(low))
            self.closer[queries] += counted.long()
            still = torch.nonzero((found >= fine.low[queries].index_select(0, mine)) & ~closer)[:, 0]
            places = first.index_select(0, still) + rows.start, second.index_select(0, still) + columns.start
            self._wait(torch.stack(places[::-1] if side else places), gallery)

    def _settle(self, queries: Tensor, columns: slice, similarities: Tensor, gallery: Chosen) -> None:
        """Compute the unclear pairs among similarities (R, B) of the queries at places (R,), now or later."""
        import torch

        rows, others = places_between(similarities, self.thresholds[0][queries])
        self._wait(torch.stack([queries[rows], others + columns.start]), gallery)

    def _wait(self, pairs: Tensor, gallery: Chosen) -> None:
        self.waiting.append(pairs)
        self.number += pairs.shape[1]
        if self.number > self.at_once:
            self.finished(gallery)

    def finished(self, gallery: Chosen) -> Tensor:
        """Both counts, including the pairs that waited for items of this gallery."""
        import torch

        if self.waiting:
            waiting = torch.cat(self.waiting, 1)
            self.waiting, self.number = [], 0
            for pairs in waiting.split(self.at_once, 1):
                queries, others = (torch.unique(places, return_inverse=True) for places in pairs)
                order = queries[1].argsort()
                mine = pairs[0][order]
                exact = self.form.of_places(
                    self._vectors(queries[0]),
                    gallery.vectors(others[0].cpu().numpy()),
                    queries[1][order],
                    others[1][order],
                )
                self._count(mine, exact[:, None])
        return torch.stack([self.closer, self.closer + self.tied if not self.way.exactly else self.tied])

    def _vectors(self, queries: Tensor) -> Tensor:
        return self.targets.queries.vectors(queries.cpu().numpy())

    def _count(self, queries: Tensor, similarities: Tensor) -> None:
        """Add exact similarities (R, B) of the queries at places (R,), which may repeat."""
        nearest, windows = self.nearest[queries], self.targets.windows[queries]
        closer = (similarities > (nearest + windows)[:, None]).sum(1)
        self.closer.index_add_(0, queries, closer)
        self.tied.index_add_(0, queries, (similarities >= (nearest - windows)[:, None]).sum(1) - closer)
