"""Count negatives: all pairs in low precision, then the undecided ones in float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.items import BLOCK_ROWS
from layerprobe.ranking.positives import Chosen
from layerprobe.ranking.rounded import Rounded
from layerprobe.ranking.tiles import Thresholds, count_columns, count_rows, cuts, mask_classes, places_between

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.products import Product
    from layerprobe.ranking.vectors import Form

# With more unclear pairs in a row, one float64 product of the tile is faster than computing each pair.
_PAIRS_PER_ROW = 16
_PAIRS_AT_ONCE = 4096
# Pairs computed together: their float64 vectors fit into the CPU's caches.
_PAIRS_TOGETHER = 512


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

    def rounded(self, form: Form, product: Product) -> Rounded:
        """All queries for a product."""
        blocks = (self.queries.vectors(rows) for rows in cuts(len(self.nearest), BLOCK_ROWS))
        return Rounded.of(blocks, len(self.nearest), form, product)

    def thresholds(self, rounded: Rounded, gallery: Rounded, form: Form, product: Product) -> Thresholds:
        """Bounds between which a product leaves the comparison with the nearest positive unclear."""
        margin = self.windows
        if form.similarity != "hamming":  # sums of -1 and 1 are exact
            margin = margin + rounded.tolerance(gallery, form, product)
        return Thresholds.of(self.nearest - form.constants(rounded.biases), margin, product)


def count_symmetric(targets: Targets, form: Form, product: Product, share: slice, *, exactly: bool) -> Tensor:
    """Count among the queries themselves, each pair of tiles once for its rows and once for its columns.

    Args:
        targets: all items.
        form: of the vectors.
        product: how the similarities are computed.
        share: which of the pairs of tiles to take.
        exactly: compute undecided pairs in float64.

    Returns:
        int64 (2, Q): negatives that surely are closer than the nearest positive; negatives tied with it, or where not
        `exactly` all that may be tied or closer.
    """
    rounded, labels = targets.rounded(form, product), targets.queries.labels
    thresholds = targets.thresholds(rounded, rounded, form, product)
    found = _Counts(targets, thresholds, form, exactly)
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
        found.add(rows, columns, similarities, targets.queries)
        if i != j:
            found.add_columns(columns, rows, similarities, targets.queries)
    return found.finished(targets.queries)


def count_blocks(targets: Targets, gallery: Iterable[Chosen], form: Form, product: Product, *, exactly: bool) -> Tensor:
    """Count in a gallery that comes in blocks; arguments and result of `count_symmetric`."""
    rounded, labels = targets.rounded(form, product), targets.queries.labels
    rounded.swap(form.dim, product.parts)
    found = _Counts(targets, Thresholds(targets.nearest, targets.nearest), form, exactly)
    for block in gallery:
        searched = Rounded.of([block.vectors(slice(None))], len(block.labels), form, product)
        found.thresholds = targets.thresholds(rounded, searched, form, product)
        for rows in cuts(len(labels), product.tile):
            for columns in cuts(len(block.labels), product.tile):
                similarities = product.multiply(rounded.values[rows], searched.values[columns])
                if mask_classes(similarities, labels[rows], block.labels[columns]):
                    found.add(rows, columns, similarities, block)
        found.finished(block)
    return found.finished(targets.queries)


class _Counts:
    """What tiles have counted so far, and the unclear pairs that wait to be computed in float64.

    Args:
        targets: the queries.
        thresholds: of all queries.
        form: of the vectors.
        exactly: whether unclear pairs are computed.
    """

    def __init__(self, targets: Targets, thresholds: Thresholds, form: Form, exactly: bool) -> None:
        import torch

        self.targets, self.thresholds, self.form, self.exactly = targets, thresholds, form, exactly
        self.closer = torch.zeros(len(targets.nearest), dtype=torch.int64, device=targets.nearest.device)
        self.tied = torch.zeros_like(self.closer)
        self.waiting: list[Tensor] = []  # (2, P) places of queries and of items of the gallery

    def add(self, rows: slice, columns: slice, similarities: Tensor, gallery: Chosen) -> None:
        """Count a tile (A, B) for the queries of its rows."""
        possible, closer = count_rows(similarities, self.thresholds[rows])
        self.closer[rows] += closer
        if self._all_counted(rows, possible, closer):
            return
        unclear = (possible != closer).nonzero()[:, 0]
        if len(unclear):
            self._settle(unclear + rows.start, columns, similarities.index_select(0, unclear), gallery)

    def add_columns(self, columns: slice, rows: slice, similarities: Tensor, gallery: Chosen) -> None:
        """Count a tile (A, B) for the queries of its columns."""
        possible, closer = count_columns(similarities, self.thresholds[columns])
        self.closer[columns] += closer
        if self._all_counted(columns, possible, closer):
            return
        unclear = (possible != closer).nonzero()[:, 0]
        if len(unclear):
            part = similarities.index_select(1, unclear).T.contiguous()
            self._settle(unclear + columns.start, rows, part, gallery)

    def _all_counted(self, queries: slice, possible: Tensor, closer: Tensor) -> bool:
        """Count all that is possible and not surely closer as tied: exact for bits, an upper bound if not `exactly`."""
        if self.exactly and self.form.similarity != "hamming":
            return False
        self.tied[queries] += possible - closer
        return True

    def _settle(self, queries: Tensor, columns: slice, similarities: Tensor, gallery: Chosen) -> None:
        """Compute the unclear pairs among similarities (R, B) of the queries at places (R,), now or later."""
        import torch

        rows, others = places_between(similarities, self.thresholds[queries])
        if len(rows) > _PAIRS_PER_ROW * len(queries):
            exact = self.form.similarities(self._vectors(queries), gallery.vectors(columns))
            inside = torch.zeros_like(exact, dtype=torch.bool)
            inside[rows, others] = True
            self._count(queries, exact.masked_fill_(~inside, -torch.inf))
            return
        self.waiting.append(torch.stack([queries[rows], others + columns.start]))
        if sum(pairs.shape[1] for pairs in self.waiting) > _PAIRS_AT_ONCE:
            self.finished(gallery)

    def finished(self, gallery: Chosen) -> Tensor:
        """Both counts, including the pairs that waited for items of this gallery."""
        import torch

        if self.waiting:
            waiting = torch.cat(self.waiting, 1)
            self.waiting = []
            for queries, others in (pairs.unbind() for pairs in waiting.split(_PAIRS_TOGETHER, 1)):
                items = gallery.vectors(others.cpu().numpy())
                exact = self.form.of_pairs(self._vectors(queries), items)
                self._count(queries, exact[:, None])
        return torch.stack([self.closer, self.closer + self.tied if not self.exactly else self.tied])

    def _vectors(self, queries: Tensor) -> Tensor:
        return self.targets.queries.vectors(queries.cpu().numpy())

    def _count(self, queries: Tensor, similarities: Tensor) -> None:
        """Add exact similarities (R, B) of the queries at places (R,), which may repeat."""
        nearest, windows = self.targets.nearest[queries], self.targets.windows[queries]
        closer = (similarities > (nearest + windows)[:, None]).sum(1)
        self.closer.index_add_(0, queries, closer)
        self.tied.index_add_(0, queries, (similarities >= (nearest - windows)[:, None]).sum(1) - closer)
