"""The search: nearest positives, a count in low precision, then an exact count of the queries that are still open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.items import BLOCK_ROWS, Items
from layerprobe.ranking.pairs import pair_similarities
from layerprobe.ranking.positives import Chosen, positive_similarities
from layerprobe.ranking.products import Product, bfloat16, float32
from layerprobe.ranking.relevance import Pairs, Relevance
from layerprobe.ranking.sweep import Targets, count_blocks, count_symmetric
from layerprobe.ranking.team import Team
from layerprobe.ranking.tiles import cuts

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.vectors import Form

# With fewer pairs bfloat16 saves no time.
_PAIRS_FOR_BFLOAT16 = 10**6
# With more pairs, many of them unclear, it is faster to count again only the queries that a K leaves open.
_PAIRS_FOR_INTERVALS = 10**8
# float32's extra cost over bfloat16 per query and number of the gallery, in units of one pair computed in float64.
_PAIRS_WORTH = 1e-6
_ITEMS_OF_A_SAMPLE = 512
_QUERIES_OF_A_SAMPLE = 128
_BLOCK_ROWS_OF_A_GPU = 2**13
# A set of no more numbers is kept as float64 vectors (32 MiB); a larger one is converted block by block each time.
_NUMBERS_HELD = 2**22
# The exact count takes so many queries at a time, to limit the rounded rows in memory.
_QUERIES_AT_ONCE = 2**14
# A query with no more unclear negatives is counted again in bfloat16: computing those in float64 is cheaper than a
# count in float32.
_FEW_UNCLEAR = 64


@dataclass(frozen=True, eq=False)
class Search:
    """Queries in memory against a gallery.

    Args:
        queries: not on disk.
        gallery: the same object where the queries are searched among themselves.
        relevance: of these queries, in the gallery. The labels of both are its marks.
        form: what makes both comparable.
        team: the processes that share the work; each has the same queries and gallery.
        in_order: read the gallery in its own order, block by block, as a disk likes it.
    """

    queries: Items
    gallery: Items
    relevance: Relevance
    form: Form
    team: Team
    in_order: bool = False

    def counts(self, ks: frozenset[int] | None) -> Tensor:
        """Count every query's closer negatives and ties.

        Args:
            ks: K of Recall@K for which the counts must be exact; None for all counts.

        Returns:
            int64 (4, Q): closer, closer_high, tied_negatives and tied_positives, as in `Ranks`.
        """
        import torch

        order = np.argsort(self.queries.labels, kind="stable")
        chosen = self._sorted_gallery if self._itself else self._chosen(self.queries, order)
        windows = self._windows(chosen)
        nearest, tied_positives = self._positives(chosen, windows)
        targets = Targets(chosen, nearest, windows)
        removed = self._removed(targets)
        low, high, tied = self._counted(targets, ks, removed)
        asked = torch.zeros_like(low, dtype=torch.bool)
        for k in ks or ():
            asked |= (low < k) & (k <= high)
        asked = (low != high if ks is None else asked) & nearest.isfinite()
        exact = float32(asked.device)
        # Similarities of bits are whole numbers, which bfloat16 does not hold exactly.
        fast = exact if self.form.similarity == "hamming" else bfloat16(asked.device) or exact
        few = high - low <= _FEW_UNCLEAR
        for product, which in ((fast, asked & few), (exact, asked & ~few)):
            for start in range(0, int(which.sum()), _QUERIES_AT_ONCE):
                rows = torch.nonzero(which)[start : start + _QUERIES_AT_ONCE, 0]
                some = targets[rows.cpu().numpy()]
                found = count_blocks(some, self._blocks(), self.form, product, exactly=True)
                low[rows], tied[rows] = self.team.total(found) - removed[:, rows]
                high[rows] = low[rows]
        lone = torch.from_numpy(self.relevance.counts()[1][order]).to(low.device)
        counts = torch.stack([low, high, tied, tied_positives])
        counts[:2] = counts[:2].where(nearest.isfinite(), lone)
        back = torch.from_numpy(np.argsort(order, kind="stable")).to(low.device)
        return counts[:, back]

    def _chosen(self, items: Items, order: NDArray[np.intp]) -> Chosen:
        """Items in memory in the given order; kept as vectors if they are few."""
        import torch

        def made(part: Any) -> Tensor:
            return self.form.vectors(items.take(order[part]))

        if len(order) * self.form.dim > _NUMBERS_HELD:
            return Chosen(made, items.labels[order], order)
        vectors = torch.cat([made(rows) for rows in cuts(len(order), BLOCK_ROWS)])
        return Chosen(vectors.__getitem__, items.labels[order], order)

    @cached_property
    def _sorted_gallery(self) -> Chosen:
        return self._chosen(self.gallery, np.argsort(self.gallery.labels, kind="stable"))

    def _windows(self, queries: Chosen) -> Tensor:
        import torch

        if self.form.window is None:
            return torch.cat(
                [self.form.windows(queries.vectors(rows)) for rows in cuts(len(queries.labels), BLOCK_ROWS)]
            )
        return self.form.origin.new_full((len(queries.labels),), self.form.window)

    @property
    def _itself(self) -> bool:
        return self.gallery is self.queries and not self.in_order

    def _blocks(self) -> Iterator[Chosen]:
        """This process's share of the gallery, each block sorted by class."""
        return self._every_block(self.team.share)

    def _every_block(self, share: slice = slice(None)) -> Iterator[Chosen]:
        rows = BLOCK_ROWS if self.queries.device.type == "cpu" else _BLOCK_ROWS_OF_A_GPU
        for block in cuts(len(self.gallery), rows)[share]:
            if self.in_order:
                local = np.argsort(self.gallery.labels[block], kind="stable")
                vectors = self.form.vectors(self.gallery.take(block)[local])
                index = block.start + local
                yield Chosen(vectors.__getitem__, self.gallery.labels[index], index)
            else:
                whole = self._sorted_gallery
                vectors = whole.vectors(block)
                yield Chosen(vectors.__getitem__, whole.labels[block], whole.index[block])

    def _positives(self, queries: Chosen, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Similarity to the nearest positive, -inf without one, and how many positives tie there."""
        import torch

        nearest = torch.full_like(windows, -torch.inf)
        tied = torch.zeros_like(windows, dtype=torch.int64)
        if self.relevance.positives is not None:
            places, listed = self._of_pairs(queries, self.relevance.positives)
            self.team.maximum(nearest.scatter_reduce_(0, places, listed, "amax"))
            tied.index_add_(0, places, (listed >= (nearest - windows)[places]).long())
            return nearest, self.team.total(tied)
        if not self.in_order:
            gallery = queries if self._itself else self._sorted_gallery
            for rows, similarities in positive_similarities(
                queries, gallery, self.relevance, self.form, self.team.share
            ):
                nearest[rows] = similarities.amax(1)
                tied[rows] = self._at(similarities, nearest[rows], windows[rows])
            return self.team.maximum(nearest), self.team.total(tied)
        whole = slice(None)
        for block in self._blocks():
            for rows, similarities in positive_similarities(queries, block, self.relevance, self.form, whole):
                nearest[rows] = torch.maximum(nearest[rows], similarities.amax(1))
        self.team.maximum(nearest)
        for block in self._blocks():
            for rows, similarities in positive_similarities(queries, block, self.relevance, self.form, whole):
                tied[rows] += self._at(similarities, nearest[rows], windows[rows])
        return nearest, self.team.total(tied)

    @staticmethod
    def _at(similarities: Tensor, nearest: Tensor, windows: Tensor) -> Tensor:
        # The query itself and other classes are at -inf, where a lone query's nearest is too.
        return ((similarities >= (nearest - windows)[:, None]) & similarities.isfinite()).sum(1)

    def _of_pairs(self, queries: Chosen, pairs: Pairs) -> tuple[Tensor, Tensor]:
        return pair_similarities(queries, self.gallery, pairs, self.form, self.team.share)

    def _counted(self, targets: Targets, ks: frozenset[int] | None, removed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The lowest and highest possible count of closer negatives, and the ties where the two are equal."""
        import torch

        product, exactly = self._way(targets, ks)
        if self._itself:
            found = count_symmetric(targets, self.form, product, self.team.share, exactly=exactly)
        else:
            found = count_blocks(targets, self._blocks(), self.form, product, exactly=exactly)
        closer, others = self.team.total(found) - removed
        if exactly:
            return closer, closer.clone(), others
        # Those that may be closer include those that surely are. A removed one may be no more than possible.
        return closer.clamp_(min=0), others - removed[0], torch.zeros_like(closer)

    def _way(self, targets: Targets, ks: frozenset[int] | None) -> tuple[Product, bool]:
        """The product that makes the whole count fastest, and whether pairs that it leaves unclear are computed now."""
        exact, fast = float32(self.queries.device), bfloat16(self.queries.device)
        pairs = len(self.queries) * len(self.gallery)
        if fast is None or self.form.similarity == "hamming" or pairs < _PAIRS_FOR_BFLOAT16:
            return exact, True
        worth = _PAIRS_WORTH * len(self.gallery) * self.form.dim / (2 if self._itself else 1)
        if self._unclear(targets, fast) < worth:
            return fast, True
        if self._itself and ks is not None and pairs >= _PAIRS_FOR_INTERVALS:
            return fast, False
        return exact, True

    def _unclear(self, targets: Targets, product: Product) -> float:
        """About how many negatives of a query a product leaves unclear, by some queries in part of the gallery."""
        if self.in_order:
            block = next(self._every_block())
        else:
            whole = self._sorted_gallery
            places = np.arange(0, len(whole.labels), max(1, len(whole.labels) // _ITEMS_OF_A_SAMPLE))
            block = whole.some(places)
        some = targets[np.linspace(0, len(targets.nearest) - 1, _QUERIES_OF_A_SAMPLE).astype(np.intp)]
        closer, possible = count_blocks(some, [block], self.form, product, exactly=False)
        return float((possible - closer).double().mean()) * len(self.gallery) / len(block.labels)

    def _removed(self, targets: Targets) -> Tensor:
        """int64 (2, Q): items of other marks that are no negatives: closer than the nearest positive, and tied."""
        import torch

        removed = torch.zeros(2, len(targets.nearest), dtype=torch.int64, device=targets.nearest.device)
        pairs = self.relevance.no_negatives()
        pairs = pairs.where(self.queries.labels[pairs.queries] != self.gallery.labels[pairs.items])
        if not len(pairs):
            return removed
        places, similarities = self._of_pairs(targets.queries, pairs)
        above = similarities - targets.nearest[places]
        closer = above > targets.windows[places]
        removed[0].index_add_(0, places, closer.long())
        removed[1].index_add_(0, places, ((above >= -targets.windows[places]) & ~closer).long())
        return self.team.total(removed)
