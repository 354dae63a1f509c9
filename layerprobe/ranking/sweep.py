"""Counting of negatives: all pairs in low precision, then what that left unclear in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.items import BLOCK_ROWS
from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.rounded import Rounded
from layerprobe.ranking.tiles import Thresholds, count_columns, count_rows, cuts, mask_classes

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.products import Product
    from layerprobe.ranking.vectors import Form

# With more unclear pairs a row, one product for the tile is faster than each pair by itself.
_PAIRS_PER_ROW = 16
_PAIRS_AT_ONCE = 4096


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
        queries = self.queries
        some = Chosen(lambda part: queries.vectors(rows[part]), queries.labels[rows], queries.index[rows])
        return Targets(some, self.nearest[rows], self.windows[rows])

    def rounded(self, form: Form, product: Product) -> Rounded:
        """All queries for a product."""
        blocks = (self.queries.vectors(rows) for rows in cuts(len(self.nearest), BLOCK_ROWS))
        return Rounded.of(blocks, len(self.nearest), form, product)

    def thresholds(self, rounded: Rounded, gallery: Rounded, form: Form, product: Product) -> Thresholds:
        """Between which similarities of a product the truth may lie."""
        margin = self.windows
        if form.similarity != "hamming":  # sums of -1 and 1 are exact
            margin = margin + rounded.tolerance(gallery, form, product)
        return Thresholds.of(self.nearest - form.constants(rounded.biases), margin, product)


def count_symmetric(targets: Targets, form: Form, product: Product, share: slice) -> Tensor:
    """Count among the queries themselves, each pair of tiles once for its rows and once for its columns.

    Returns:
        int64 (2, Q): negatives that may be as close as the nearest positive, or closer; those that surely are closer.
    """
    import torch

    rounded, labels = targets.rounded(form, product), targets.queries.labels
    thresholds = targets.thresholds(rounded, rounded, form, product)
    counts = torch.zeros(2, len(labels), dtype=torch.int64, device=rounded.values.device)
    tiles = cuts(len(labels), product.tile)
    pairs = [(i, j) for i in range(len(tiles)) for j in range(i, len(tiles))][share]
    left, last = rounded.values, -1
    for i, j in pairs:
        rows, columns = tiles[i], tiles[j]
        if i != last:
            left, last = rounded.swapped(rows, form.dim, product.parts), i
        similarities = product.multiply(left, rounded.values[columns])
        if not mask_classes(similarities, labels[rows], labels[columns]):
            continue
        counts[:, rows] += count_rows(similarities, thresholds[rows])
        if i != j:
            counts[:, columns] += count_columns(similarities, thresholds[columns])
    return counts


def count_blocks(targets: Targets, gallery: Iterator[Chosen], form: Form, product: Product) -> Tensor:
    """Count in a gallery that comes in blocks; the result is as that of `count_symmetric`."""
    import torch

    rounded, labels = targets.rounded(form, product), targets.queries.labels
    rounded.swap(form.dim, product.parts)
    counts = torch.zeros(2, len(labels), dtype=torch.int64, device=rounded.values.device)
    for block in gallery:
        searched = Rounded.of([block.vectors(slice(None))], len(block.labels), form, product)
        thresholds = targets.thresholds(rounded, searched, form, product)
        for rows in cuts(len(labels), product.tile):
            for columns in cuts(len(block.labels), product.tile):
                similarities = product.multiply(rounded.values[rows], searched.values[columns])
                if mask_classes(similarities, labels[rows], block.labels[columns]):
                    counts[:, rows] += count_rows(similarities, thresholds[rows])
    return counts


def count_exactly(targets: Targets, gallery: Iterator[Chosen], form: Form, product: Product) -> Tensor:
    """Count in a gallery that comes in blocks; what a product leaves unclear is computed in float64.

    Returns:
        int64 (2, Q): negatives closer than the nearest positive; negatives tied with it.
    """
    import torch

    rounded, labels = targets.rounded(form, product), targets.queries.labels
    rounded.swap(form.dim, product.parts)
    counts = torch.zeros(2, len(labels), dtype=torch.int64, device=rounded.values.device)
    for block in gallery:
        vectors = block.vectors(slice(None))
        searched = Rounded.of([vectors], len(block.labels), form, product)
        thresholds = targets.thresholds(rounded, searched, form, product)
        for rows in cuts(len(labels), product.tile):
            for columns in cuts(len(block.labels), product.tile):
                similarities = product.multiply(rounded.values[rows], searched.values[columns])
                if not mask_classes(similarities, labels[rows], block.labels[columns]):
                    continue
                possible, closer = count_rows(similarities, thresholds[rows])
                counts[0, rows] += closer
                if form.similarity == "hamming":
                    counts[1, rows] += possible - closer
                    continue
                unclear = torch.nonzero(possible != closer)[:, 0]
                if len(unclear):
                    part, bounds = similarities[unclear], thresholds[rows][unclear]
                    inside = (part >= bounds.low[:, None]) & (part <= bounds.high[:, None])
                    places = unclear + rows.start
                    counts[:, places] += _settled(targets, places, vectors[columns], inside, form)
    return counts


def _settled(targets: Targets, places: Tensor, gallery: Tensor, inside: Tensor, form: Form) -> Tensor:
    """Closer and tied negatives (2, R) among the pairs marked in `inside` (R, B), of the queries at `places` (R,)."""
    import torch

    queries = targets.queries.vectors(places.cpu().numpy())
    high = targets.nearest[places] + targets.windows[places]
    low = targets.nearest[places] - targets.windows[places]
    if inside.sum() > _PAIRS_PER_ROW * len(places):
        similarities = form.similarities(queries, gallery).masked_fill_(~inside, -torch.inf)
        closer = (similarities > high[:, None]).sum(1)
        return torch.stack([closer, (similarities >= low[:, None]).sum(1) - closer])
    counts = torch.zeros(2, len(places), dtype=torch.int64, device=gallery.device)
    for pairs in torch.nonzero(inside).split(_PAIRS_AT_ONCE):
        rows, columns = pairs.unbind(1)
        similarities = form.of_pairs(queries[rows], gallery[columns])
        closer = similarities > high[rows]
        counts[0].index_add_(0, rows, closer.long())
        counts[1].index_add_(0, rows, ((similarities >= low[rows]) & ~closer).long())
    return counts
