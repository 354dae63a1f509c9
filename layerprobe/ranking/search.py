"""The search: nearest positives, a count in the cheapest way, then exactly; processes share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.ranking.items import Items, block_rows, cuts
from layerprobe.ranking.levels import Levels, count_levels
from layerprobe.ranking.positives import Chosen, nearest_positives, pair_similarities, positive_similarities
from layerprobe.ranking.products import Product, float32, half_precision, seconds_per_number
from layerprobe.ranking.relevance import Pairs, Relevance
from layerprobe.ranking.rounded import Leading
from layerprobe.ranking.sweep import (
    FEW,
    Targets,
    Way,
    count_blocks,
    count_symmetric,
    sweep_blocks,
    sweep_symmetric,
    works_in_one_pass,
)
from layerprobe.ranking.vectors import Form

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup  # which not every torch has


@dataclass(frozen=True, eq=False)
class Team:
    """This process and the others of its group; None for this process alone."""

    group: ProcessGroup | None = None

    @property
    def share(self) -> slice:
        """Which of a list's elements are this process's."""
        return slice(self.group.rank(), None, self.group.size()) if self.group else slice(None)

    def maximum(self, values: Tensor) -> Tensor:
        """The maximum over all processes, element by element."""
        return self._all_reduce(values, "MAX")

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, element by element."""
        return self._all_reduce(values, "SUM")

    def _all_reduce(self, values: Tensor, operation: str) -> Tensor:
        if self.group:
            import torch.distributed as dist

            dist.all_reduce(values, getattr(dist.ReduceOp, operation), group=self.group)
        return values


# With fewer pairs nothing is faster than float32, and no kernel is worth being compiled.
_PAIRS_FOR_A_SAMPLE = 10**6
_ITEMS_OF_A_SAMPLE = 512
_QUERIES_OF_A_SAMPLE = 128
# A collapse is looked for in so many queries and items before all.
_ROWS_BEFORE_ALL = 64
# On a GPU a set of no more numbers is kept as float64 vectors (256 MiB); others are converted block by block each time,
# which is no slower on a CPU.
_NUMBERS_HELD_ON_A_GPU = 2**25
# The exact count takes so many queries at a time, to limit the rounded rows in memory.
_QUERIES_AT_ONCE = 2**14
# Where every pair is computed in float64, so many similarities are held at once: 64 MiB.
CELLS = 2**23


def _spread(size: int, count: int) -> NDArray[np.intp]:
    """Places from the first of so many rows to the last, each once."""
    return np.linspace(0, size - 1, min(count, size)).astype(np.intp)


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
        further: count on where a query misses at each K that is asked.
    """

    queries: Items
    gallery: Items
    relevance: Relevance
    form: Form
    team: Team
    in_order: bool = False
    further: bool = True

    def counts(self, ks: frozenset[int] | None) -> Tensor:
        """Count every query's closer negatives and ties.

        Args:
            ks: K of Recall@K for which the counts must be exact; None for all counts.

        Returns:
            int64 (4, Q): closer, closer_high, tied_negatives and tied_positives, as in `Ranks`.
        """
        if self.relevance.held_labels is not None:
            return self._counts_of_pairs()
        order = self.queries.by_class
        chosen = self._sorted_gallery if self._itself else self._chosen(self.queries, order)
        windows = self._windows(chosen)
        if self._all_tie(chosen, windows):
            right, wrong = (torch.from_numpy(some).to(self.queries.device) for some in self.relevance.counts())
            lone = wrong.where(right == 0, 0)
            return torch.stack([lone, lone, wrong - lone, right])
        nearest, tied_positives = self._positives(chosen, windows)
        targets = Targets(chosen, nearest, windows)
        removed = self._removed_counts(targets)
        negatives = self._negatives(order)
        low, high, tied = self._count_negatives(targets, ks, removed, negatives)
        unresolved = torch.zeros_like(low, dtype=torch.bool)
        for k in ks or ():
            unresolved |= (low < k) & (k <= high)
        unresolved = (low != high if ks is None else unresolved) & nearest.isfinite()
        exact = float32(unresolved.device)
        fast = self._fast or exact
        few_unclear = high - low <= _FEW_UNCLEAR
        for product, which in ((fast, unresolved & few_unclear), (exact, unresolved & ~few_unclear)):
            for start in range(0, int(which.sum()), _QUERIES_AT_ONCE):
                rows = torch.nonzero(which)[start : start + _QUERIES_AT_ONCE, 0]
                some = targets[rows.cpu().numpy()]
                exact_counts = self.team.total(count_blocks(some, self._blocks(), self.form, Way(product)))
                low[rows], tied[rows] = exact_counts[[0, 2]] - removed[:, rows]
                high[rows] = low[rows]
        counts = torch.stack([low, high, tied, tied_positives])
        counts[:2] = counts[:2].where(nearest.isfinite(), negatives)
        unsorted = torch.empty_like(counts)
        unsorted[:, torch.from_numpy(order).to(low.device)] = counts
        return unsorted

    def _counts_of_pairs(self) -> Tensor:
        """The counts from every pair in float64: rows that are sorted by class do not have the right items together."""
        counts = np.zeros((4, len(self.queries)), np.int64)
        for rows, queries, similarities, right in self.blocks_of_pairs(self._parts_of_pairs[self.team.share]):
            nearest = torch.where(right, similarities, -torch.inf).amax(1, keepdim=True)
            window = self.form.windows(queries)[:, None]
            above = similarities > nearest + window  # no right item; of a lone query all that are there
            through = (similarities >= nearest - window) & (nearest > -torch.inf)
            # NumPy counts Booleans in a fraction of torch's time.
            kinds = above, above, through & ~right & ~above, through & right
            counts[:, rows] = [np.count_nonzero(kind.cpu().numpy(), axis=1) for kind in kinds]
        return self.team.total(torch.from_numpy(counts).to(self.form.origin.device))

    @property
    def _parts_of_pairs(self) -> list[slice]:
        return cuts(len(self.queries), max(1, CELLS // len(self.gallery)))

    def blocks_of_pairs(self, parts: Iterable[slice]) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Some queries, their vectors, and their float64 similarities to all items, of which some are right.

        Excluded items are at -inf.

        Args:
            parts: the queries that are in memory at once, with about `CELLS` similarities.
        """
        held = None if self.in_order else [self.form.vectors(block) for block in self.gallery.blocks()]
        for rows in parts:
            queries, relevance = self.form.vectors(self.queries.take(rows)), self.relevance[rows]
            blocks = held or (self.form.vectors(block) for block in self.gallery.blocks())
            similarities = torch.cat([self.form.similarities(queries, block) for block in blocks], 1)
            relevance.take_out(similarities)
            yield rows, queries, similarities, relevance.right(similarities.device)

    def levels(self) -> Levels:
        """The positives of each query, and the negatives around them."""
        if self.relevance.held_labels is not None:
            return self._levels_of_pairs()
        order = self.queries.by_class
        queries = self._sorted_gallery if self._itself else self._chosen(self.queries, order)
        counter = count_levels(
            *self._every_positive(queries), queries, self._windows(queries), self.form, itself=self._itself
        )
        if self._itself:
            sweep_symmetric(counter, self.team.share)
        else:
            sweep_blocks(counter, self._every_block(self.team.share, counter.block_rows))
        counter.count(*self._of_pairs(queries, self._other_no_negatives()), -1)
        self.team.total(counter.passed)
        return counter.counts(self._negatives(order))[torch.from_numpy(np.argsort(order)).to(self.queries.device)]

    def _negatives(self, order: NDArray[np.intp] | slice = slice(None)) -> Tensor:
        """(Q,) int64 how many negatives the queries have, in some order."""
        return torch.from_numpy(self.relevance.counts()[1][order]).to(self.queries.device)

    def _every_positive(self, queries: Chosen) -> tuple[Tensor, Tensor]:
        """(P,) places of queries and (P,) their similarities to all positives."""
        if self.relevance.positives is not None:
            return pair_similarities(queries, self.gallery, self.relevance.positives, self.form, slice(None))
        places, similarities = [], []
        for block in self._every_block() if self.in_order else [queries if self._itself else self._sorted_gallery]:
            for rows, of_class in positive_similarities(queries, block, self.relevance, self.form):
                there = of_class.isfinite()
                places.append(rows.repeat_interleave(there.sum(1)))
                similarities.append(of_class[there])
        none = self.form.origin.new_zeros(0)
        return torch.cat([none.long(), *places]), torch.cat([none, *similarities])

    def _levels_of_pairs(self) -> Levels:
        """The same from every pair in float64."""
        places, positives = [], []
        for rows, _, similarities, right in self.blocks_of_pairs(self._parts_of_pairs):
            right &= similarities.isfinite()
            places.append(right.nonzero()[:, 0] + rows.start)
            positives.append(similarities[right])
        chosen = self._chosen(self.queries, np.arange(len(self.queries)))
        found = torch.cat(places), torch.cat(positives)
        counter = count_levels(*found, chosen, self._windows(chosen), self.form)
        for rows, _, similarities, right in self.blocks_of_pairs(self._parts_of_pairs):
            wrong = ~right & similarities.isfinite()
            counter.count(wrong.nonzero()[:, 0] + rows.start, similarities[wrong])
        return counter.counts(self._negatives())

    def _chosen(self, items: Items, order: NDArray[np.intp]) -> Chosen:
        """Items in memory in the given order."""

        def vectors_at(index: Any) -> Tensor:
            index = index.cpu().numpy() if hasattr(index, "cpu") else index
            return self.form.vectors(items.take(order[index]))

        if items.device.type == "cpu" or len(order) * self.form.dim > _NUMBERS_HELD_ON_A_GPU:
            return Chosen(vectors_at, items.labels[order], order)
        vectors = torch.cat([vectors_at(rows) for rows in cuts(len(order), block_rows(items.device, self.form.dim))])
        return Chosen(vectors.__getitem__, items.labels[order], order)

    @cached_property
    def _sorted_gallery(self) -> Chosen:
        return self._chosen(self.gallery, self.gallery.by_class)

    def _windows(self, queries: Chosen) -> Tensor:
        if self.form.window is None:
            blocks = cuts(len(queries.labels), block_rows(self.queries.device, self.form.dim))
            return torch.cat([self.form.windows(queries.vectors(rows)) for rows in blocks])
        return self.form.origin.new_full((len(queries.labels),), self.form.window)

    def _all_tie(self, queries: Chosen, windows: Tensor) -> bool:
        """Whether each query is equally similar to all items, as where the features have collapsed."""
        if self.in_order or self.form.similarity == "hamming":
            return False
        # A few tell where they are not.
        samples = [_spread(len(some.labels), _ROWS_BEFORE_ALL) for some in (queries, self._sorted_gallery)]
        return self._tie(
            queries.some(samples[0]), windows[samples[0]], self._sorted_gallery.some(samples[1])
        ) and self._tie(queries, windows, self._sorted_gallery)

    def _tie(self, queries: Chosen, windows: Tensor, gallery: Chosen) -> bool:
        """Whether the similarities of each query to the items differ by no more than its window.

        x.y = x.offset + y.offset - |offset|^2 + (x - offset).(y - offset), whose last term is at most the product of
        the two lengths; euclidean similarities likewise.
        """
        biases, lengths, size = [], [], block_rows(self.queries.device, self.form.dim)
        for rows in cuts(len(gallery.labels), size):
            vectors = gallery.vectors(rows)
            biases.append(self.form.biases(vectors))
            lengths.append((vectors - self.form.offset).norm(dim=1))
        lowest, highest = min(float(some.min()) for some in biases), max(float(some.max()) for some in biases)
        longest, offset = max(float(some.max()) for some in lengths), float(self.form.offset.norm())
        unit = 4 * (self.form.dim + 8) * 2.0**-53
        for rows in cuts(len(queries.labels), size):
            query_lengths = (queries.vectors(rows) - self.form.offset).norm(dim=1)
            reach = (query_lengths + offset) * (longest + offset) + max(-lowest, highest)
            if not bool((highest - lowest + 2 * query_lengths * longest + unit * reach <= windows[rows]).all()):
                return False
        return True

    @property
    def _itself(self) -> bool:
        return self.gallery is self.queries and not self.in_order

    def _blocks(self) -> Iterator[Chosen]:
        """This process's share of the gallery, each block sorted by class."""
        return self._every_block(self.team.share)

    def _every_block(self, share: slice = slice(None), size: int = 0) -> Iterator[Chosen]:
        for block in cuts(len(self.gallery), size or block_rows(self.queries.device, self.form.dim))[share]:
            if self.in_order:
                local = np.argsort(self.gallery.labels[block], kind="stable")
                vectors = self.form.vectors(self.gallery.take(block)[local])
                index = block.start + local
                yield Chosen(vectors.__getitem__, self.gallery.labels[index], index)
            else:
                gallery = self._sorted_gallery
                vectors = gallery.vectors(block)
                yield Chosen(vectors.__getitem__, gallery.labels[block], gallery.index[block])

    def _positives(self, queries: Chosen, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Similarity to the nearest positive, -inf without one, and how many positives tie there."""
        nearest = torch.full_like(windows, -torch.inf)
        tied = torch.zeros_like(windows, dtype=torch.int64)
        if self.relevance.positives is not None:
            places, listed = self._of_pairs(queries, self.relevance.positives)
            self.team.maximum(nearest.scatter_reduce_(0, places, listed, "amax"))
            tied.index_add_(0, places, (listed >= (nearest - windows)[places]).long())
            return nearest, self.team.total(tied)
        if not self.in_order:
            gallery = queries if self._itself else self._sorted_gallery
            for rows, best, ties in nearest_positives(
                queries, gallery, self.relevance, self.form, windows, self.team.share
            ):
                nearest[rows], tied[rows] = best, ties
            return self.team.maximum(nearest), self.team.total(tied)
        for block in self._blocks():
            for rows, similarities in positive_similarities(queries, block, self.relevance, self.form):
                nearest[rows] = torch.maximum(nearest[rows], similarities.amax(1))
        self.team.maximum(nearest)
        for block in self._blocks():
            for rows, similarities in positive_similarities(queries, block, self.relevance, self.form):
                # The query itself and other classes are at -inf, where a lone query's nearest is too.
                beside = similarities >= (nearest[rows] - windows[rows])[:, None]
                tied[rows] += (beside & similarities.isfinite()).sum(1)
        return nearest, self.team.total(tied)

    def _of_pairs(self, queries: Chosen, pairs: Pairs) -> tuple[Tensor, Tensor]:
        return pair_similarities(queries, self.gallery, pairs, self.form, self.team.share)

    def _count_negatives(
        self, targets: Targets, ks: frozenset[int] | None, removed: Tensor, negatives: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The lowest and highest possible count of closer negatives, and the ties where the two are equal."""
        pairs = len(self.queries) * len(self.gallery)
        if pairs >= _PAIRS_FOR_A_SAMPLE and works_in_one_pass(removed.device):
            way = Way(self._fast or float32(removed.device), fused=True)
        else:
            way = cheapest(self._ways(targets, ks))
        if self.team.group:  # by measured times, which differ between processes; they share tiles, and counts are added
            agreed = torch.tensor([int(way.exactly), way.product.tile], device=removed.device)
            exactly, tile = self.team.maximum(agreed).tolist()
            way = replace(way, exactly=bool(exactly), product=replace(way.product, tile=tile))
        deepest = self._deepest_count(ks) if way.listed else None
        enough = None if deepest is None else removed[0] + deepest
        if self._itself:
            counts = count_symmetric(targets, self.form, way, self.team.share, enough)
        else:
            counts = count_blocks(targets, self._blocks(), self.form, way, enough)
        low, high, tied = self.team.total(counts)
        # Where not all is exact, a removed item may be counted as no more than possibly closer.
        low, high = (low - removed[0]).clamp_(min=0), high - removed[0]
        tied = tied - removed[1]
        if deepest is not None:
            high, tied = high.where(low < deepest, negatives), tied.where(low < deepest, 0)  # some are not counted
        return low, high, tied.masked_fill_(low != high, 0)

    def _deepest_count(self, ks: frozenset[int] | None) -> int | None:
        """A query with so many closer negatives misses at each K, and need be counted no further."""
        return min(max(ks), len(self.gallery)) if ks and not self.further else None

    def _ways(self, targets: Targets, ks: frozenset[int] | None) -> list[tuple[float, Way]]:
        """Ways to count, with their costs."""
        exact, fast = float32(self.queries.device), self._fast
        if self.form.similarity == "hamming" or len(self.queries) * len(self.gallery) < _PAIRS_FOR_A_SAMPLE:
            return [(0, Way(exact))]
        some, block = self._sample(targets)
        sample = Sample(
            some, block, self.form, len(self.queries), len(self.gallery), self._itself, self._deepest_count(ks)
        )
        ways = [(sample.cost(self.form.dim), Way(exact))]
        if self.queries.device.type == "cpu":
            ways += sample.listing_ways(exact, leading=not self.in_order)
        return ways if fast is None else ways + sample.half_precision_ways(fast, exact, ks)

    @property
    def _fast(self) -> Product | None:
        """A faster product than float32. Similarities of bits are whole numbers, which 16 bits do not hold exactly."""
        return None if self.form.similarity == "hamming" else half_precision(self.queries.device, self.form.dim)

    def _sample(self, targets: Targets) -> tuple[Targets, Chosen]:
        """Some queries and part of the gallery."""
        if self.in_order:
            block = next(self._every_block())
        else:
            gallery = self._sorted_gallery
            places = np.arange(0, len(gallery.labels), max(1, len(gallery.labels) // _ITEMS_OF_A_SAMPLE))
            vectors = gallery.vectors(places)  # they are asked for several times
            block = Chosen(vectors.__getitem__, gallery.labels[places], gallery.index[places])
        return targets[_spread(len(targets.nearest), _QUERIES_OF_A_SAMPLE)], block

    def _other_no_negatives(self) -> Pairs:
        """Pairs of other marks that are no negatives."""
        pairs = self.relevance.no_negatives()
        return pairs.where(self.queries.labels[pairs.queries] != self.gallery.labels[pairs.items])

    def _removed_counts(self, targets: Targets) -> Tensor:
        """int64 (2, Q): items of other marks that are no negatives: closer than the nearest positive, and tied."""
        removed = torch.zeros(2, len(targets.nearest), dtype=torch.int64, device=targets.nearest.device)
        pairs = self._other_no_negatives()
        if not len(pairs):
            return removed
        places, similarities = self._of_pairs(targets.queries, pairs)
        above = similarities - targets.nearest[places]
        closer = above > targets.windows[places]
        removed[0].index_add_(0, places, closer.long())
        removed[1].index_add_(0, places, ((above >= -targets.windows[places]) & ~closer).long())
        return self.team.total(removed)


# A query with no more unclear negatives is counted again in 16 bits: computing those in float64 is cheaper than a
# count in float32.
_FEW_UNCLEAR = 64
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
            recounted_share = float((unresolved & (high - low > _FEW_UNCLEAR)).double().mean())
            in_16_bits = float(unresolved.double().mean()) - recounted_share
            recount_numbers = recounted_share * dim + in_16_bits * dim * ratio
            ways.append((self.cost(dim * ratio, recount_numbers), Way(fast, exactly=False)))
        return ways

    def listing_ways(self, product: Product, *, leading: bool) -> list[tuple[float, Way]]:
        """Ways that list the pairs that may be closer, with their costs.

        Args:
            product: float32.
            leading: count fewer dimensions first, too.
        """
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
            query_residuals = query_residuals - mine.square().sum(1)
            gallery_residuals = gallery_residuals - theirs.square().sum(1)
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
