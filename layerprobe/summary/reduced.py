"""Layers after their reductions: what each does to the layers and to their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from layerprobe.statistics.best_of_many import not_told_apart
from layerprobe.statistics.bootstrap import bands, intervals
from layerprobe.statistics.units import UnitSums
from layerprobe.summary.cells import Cells
from layerprobe.values.best import Best, best_layer
from layerprobe.values.intervals import FEWEST_UNITS, Interval
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer

_SHOWN = ("test", "validation", "train")  # the first that is measured is shown
_MOST = 2**25  # numbers of a table of all pairs: 256 MiB


@dataclass(frozen=True, order=True)
class PostProcessing:
    """What is done to a layer's features, and how they are then compared.

    Args:
        reduction: none, or the chain of reductions.
        similarity: cosine, dot, euclidean or hamming.
        dim: numbers, or bits, that any layer has afterwards; None where that depends on the layer.
    """

    reduction: str
    similarity: str
    dim: int | None = None
    draws: int = 1
    on_gallery: bool = False

    def of(self, layer: LayerKey) -> RankedLayer:
        """A layer after it."""
        return RankedLayer(layer, self.reduction, self.similarity)


@dataclass(frozen=True)
class Side:
    """Two layers after one reduction.

    Args:
        first: Recall@1 of the first layer.
    """

    way: PostProcessing
    first: float
    second: float
    apart: bool


@dataclass(frozen=True)
class Swap:
    """Two layers that change places: the first is better after one reduction, the second after another.

    Args:
        above: where the first is better by most, told apart where that is so after any reduction.
        below: where the second is, likewise.
    """

    first: LayerKey
    second: LayerKey
    above: Side
    below: Side

    @property
    def apart(self) -> int:
        """On how many of both sides the layers are told apart."""
        return self.above.apart + self.below.apart


@dataclass(frozen=True)
class Reduced:
    """Layers after reductions that are compared with each other.

    Args:
        dim: numbers, or bits, that all layers have afterwards; None for the reductions where that depends on the layer.
        epoch: of all values; the last one at which a reduced layer is measured.
        ways: in the order of columns; those without a reduction first.
        values: split -> layer -> its Recall@1.
        alike: way -> layers that are not told apart from the best one, on the split on which that is chosen; None where
            that is unknown.
        swaps: pairs of layers that change places, first those that are told apart on most sides, then by how far.
    """

    dim: int | None
    epoch: int
    split: str
    layers: tuple[LayerKey, ...]
    ways: tuple[PostProcessing, ...]
    values: Mapping[str, Mapping[RankedLayer, float]]
    intervals: Mapping[RankedLayer, Interval]
    alike: Mapping[PostProcessing, tuple[LayerKey, ...] | None]
    swaps: tuple[Swap, ...]
    pairs: int

    @property
    def reduced(self) -> tuple[PostProcessing, ...]:
        """The ways that reduce."""
        return tuple(way for way in self.ways if way.reduction != NO_REDUCTION)

    def best(self, way: PostProcessing) -> Best | None:
        """The best of the layers after a reduction, on validation or test."""
        return best_layer(self.column(way))

    def column(self, way: PostProcessing) -> dict[str, list[float | None]]:
        """The splits on which layers are chosen -> the values of all layers after a reduction."""
        return {
            split: [self.values.get(split, {}).get(way.of(layer)) for layer in self.layers]
            for split in ("validation", "test")
        }


def reduced_sections(
    layers: Sequence[RankedLayer], ways: Sequence[PostProcessing], splits: Mapping[str, Cells]
) -> tuple[Reduced, ...]:
    """Compare the layers after each reduction: those of one equal dimension with each other, and all others.

    Args:
        splits: split -> Recall@1.

    Returns:
        By dimension, ascending, and the reductions without an equal one at the end; empty without any reduction.
    """
    reduced = [way for way in ways if way.reduction != NO_REDUCTION]
    raw = [way for way in ways if way.reduction == NO_REDUCTION]
    dims = sorted({way.dim for way in reduced if way.dim is not None})
    groups = [(dim, [way for way in reduced if way.dim == dim]) for dim in (*dims, None)]
    found = (_section(layers, dim, raw, group, splits) for dim, group in groups if group)
    return tuple(section for section in found if section)


def _section(
    layers: Sequence[RankedLayer],
    dim: int | None,
    raw: Sequence[PostProcessing],
    reduced: Sequence[PostProcessing],
    splits: Mapping[str, Cells],
) -> Reduced | None:
    """None where no reduced layer has a value."""
    names = {(way.reduction, way.similarity) for way in reduced}
    ours = [ranked for ranked in layers if (ranked.reduction, ranked.similarity) in names]
    split = next((name for name in _SHOWN if name in splits and any(map(splits[name].epochs, ours))), None)
    if split is None:
        return None
    epoch = max(epoch for ranked in ours for epoch in splits[split].epochs(ranked))
    ways = [*raw, *reduced]
    keys = list(dict.fromkeys(ranked.layer for ranked in ours))
    every = [way.of(layer) for way in ways for layer in keys]
    values = {
        name: {ranked: value for ranked in every if (value := cells.mean((ranked, epoch))) is not None}
        for name, cells in splits.items()
    }
    ways = [way for way in ways if any(way.of(layer) in values[split] for layer in keys)]
    shown = splits[split].of([(ranked, epoch) for ranked in values[split]])
    ends = {ranked: found for ranked, found in zip(values[split], intervals(shown), strict=True) if found}
    pairs = list(combinations(keys, 2))
    swaps = _swaps(pairs, ways, list(values[split]), shown)
    section = Reduced(dim, epoch, split, tuple(keys), tuple(ways), values, ends, {}, swaps, len(pairs))
    return replace(section, alike={way: _alike(section, way, splits) for way in ways})


def _alike(section: Reduced, way: PostProcessing, splits: Mapping[str, Cells]) -> tuple[LayerKey, ...] | None:
    best = section.best(way)
    if best is None:
        return None
    there = [layer for layer in section.layers if way.of(layer) in section.values[best.split]]
    cells = splits[best.split].of([(way.of(layer), section.epoch) for layer in there])
    found = not_told_apart(cells, there.index(section.layers[best.place]))
    return None if found is None else tuple(there[place] for place in found)


def _swaps(
    pairs: Sequence[tuple[LayerKey, LayerKey]],
    ways: Sequence[PostProcessing],
    known: Sequence[RankedLayer],
    cells: UnitSums,
) -> tuple[Swap, ...]:
    """The pairs of layers of which each is better after some reduction.

    Whether two are told apart say bands of all pairs after all reductions: any of them could have been named.
    """
    rows = {ranked: row for row, ranked in enumerate(known)}
    compared = [
        (pair, way, rows[way.of(pair[0])], rows[way.of(pair[1])])
        for pair in pairs
        for way in ways
        if way.of(pair[0]) in rows and way.of(pair[1]) in rows
    ]
    if not compared:
        return ()
    first, second = [row for _, _, row, _ in compared], [row for _, _, _, row in compared]
    apart = _told_apart(UnitSums(cells.sums[first] - cells.sums[second], cells.counts[first]))
    sides: dict[tuple[LayerKey, LayerKey], list[Side]] = {}
    for (pair, way, one, other), told in zip(compared, apart, strict=True):
        sides.setdefault(pair, []).append(Side(way, float(cells.means[one]), float(cells.means[other]), told))
    found = []
    for pair, own in sides.items():
        above = [side for side in own if side.first > side.second]
        below = [side for side in own if side.first < side.second]
        if above and below:
            best, worst = (max(some, key=lambda side: (side.apart, _distance(side))) for some in (above, below))
            found.append(Swap(*pair, best, worst))
    return tuple(sorted(found, key=lambda swap: (-swap.apart, -_distance(swap.above) - _distance(swap.below))))


def _distance(side: Side) -> float:
    return abs(side.first - side.second)


def _told_apart(cells: UnitSums) -> list[bool]:
    """Which differences have a band that leaves out 0; none where too few units or too many pairs are compared."""
    if cells.units < FEWEST_UNITS or cells.sums.size > _MOST:
        return [False] * len(cells.sums)
    found = bands(cells, symmetric=True, bounds=(-np.inf, np.inf))
    return [band is not None and not band.low <= 0 <= band.high for band in found]
