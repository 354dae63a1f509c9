"""Layers after their reductions, beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from layerprobe.statistics.best_of_many import indistinguishable_from_best
from layerprobe.statistics.bootstrap import intervals
from layerprobe.summary.cells import Cells
from layerprobe.values.best import Best, best_layer
from layerprobe.values.intervals import Interval
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer

_SHOWN = ("test", "validation", "train")  # the first that is measured is shown


@dataclass(frozen=True, order=True)
class PostProcessing:
    """What is done to a layer's features, and how they are then compared.

    Args:
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
class Reduced:
    """Layers after reductions that are compared with each other.

    Args:
        dim: numbers, or bits, that all layers have afterwards; None for the reductions where that depends on the layer.
        epoch: of all values; the last one at which a reduced layer is measured.
        ways: in the order of columns; those without a reduction first.
        values: split -> layer -> its Recall@1.
        alike: way -> layers that are not significantly different from the best one, on the split on which that is
            chosen; None where that is unknown.
    """

    dim: int | None
    epoch: int
    split: str
    layers: tuple[LayerKey, ...]
    ways: tuple[PostProcessing, ...]
    values: Mapping[str, Mapping[RankedLayer, float]]
    intervals: Mapping[RankedLayer, Interval]
    alike: Mapping[PostProcessing, tuple[LayerKey, ...] | None]

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
    section = Reduced(dim, epoch, split, tuple(keys), tuple(ways), values, ends, {})
    return replace(section, alike={way: _alike(section, way, splits) for way in ways})


def _alike(section: Reduced, way: PostProcessing, splits: Mapping[str, Cells]) -> tuple[LayerKey, ...] | None:
    best = section.best(way)
    if best is None:
        return None
    there = [layer for layer in section.layers if way.of(layer) in section.values[best.split]]
    cells = splits[best.split].of([(way.of(layer), section.epoch) for layer in there])
    found = indistinguishable_from_best(cells, there.index(section.layers[best.place]))
    return None if found is None else tuple(there[place] for place in found)
