"""Comparison of layers after each of their reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from layerprobe.statistics.bootstrap import indistinguishable_from_best
from layerprobe.statistics.units import intervals
from layerprobe.summary.cells import Cells
from layerprobe.values.best import Best, best_layer
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import NO_REDUCTION, LayerKey, RankedLayer

_SHOWN = ("test", "validation", "train")  # the first that is measured is shown


@dataclass(frozen=True, order=True)
class PostProcessing:
    """A reduction of a layer's features, and the similarity by which they are then searched.

    Args:
        dim: numbers, or bits, of any layer afterwards; None where that depends on the layer.
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
class ReducedSection:
    """Layers after reductions that are compared with each other.

    Args:
        dim: numbers, or bits, of all layers afterwards; None for the reductions where that depends on the layer.
        epoch: of all values; the last one at which a reduced layer is measured.
        processings: in the order of columns; those without a reduction first.
        values: split -> layer -> its Recall@1.
        indistinguishable: processing -> layers not significantly different from the best one, on the choice's split;
            None if unknown.
    """

    dim: int | None
    epoch: int
    split: str
    layers: tuple[LayerKey, ...]
    processings: tuple[PostProcessing, ...]
    values: Mapping[str, Mapping[RankedLayer, float]]
    intervals: Mapping[RankedLayer, Interval]
    indistinguishable: Mapping[PostProcessing, tuple[LayerKey, ...] | None]

    @property
    def reduced(self) -> tuple[PostProcessing, ...]:
        """The processings with a reduction."""
        return tuple(processing for processing in self.processings if processing.reduction != NO_REDUCTION)

    def best(self, processing: PostProcessing) -> Best | None:
        """The best layer after a reduction, on validation or test."""
        return best_layer(self.column(processing))

    def column(self, processing: PostProcessing) -> dict[str, list[float | None]]:
        """Validation and test -> the values of all layers after a reduction."""
        return {
            split: [self.values.get(split, {}).get(processing.of(layer)) for layer in self.layers]
            for split in ("validation", "test")
        }


def reduced_sections(
    layers: Sequence[RankedLayer], processings: Sequence[PostProcessing], splits: Mapping[str, Cells]
) -> tuple[ReducedSection, ...]:
    """Compare the layers after each reduction: those of one equal dimension with each other, and all others.

    Returns:
        By dimension, ascending, and the reductions without an equal one at the end.
    """
    reduced = [processing for processing in processings if processing.reduction != NO_REDUCTION]
    raw = [processing for processing in processings if processing.reduction == NO_REDUCTION]
    dims = sorted({processing.dim for processing in reduced if processing.dim is not None})
    groups = [(dim, [processing for processing in reduced if processing.dim == dim]) for dim in (*dims, None)]
    sections = (_section(layers, dim, raw, group, splits) for dim, group in groups if group)
    return tuple(section for section in sections if section)


def _section(
    layers: Sequence[RankedLayer],
    dim: int | None,
    raw: Sequence[PostProcessing],
    reduced: Sequence[PostProcessing],
    splits: Mapping[str, Cells],
) -> ReducedSection | None:
    """None where no reduced layer has a value."""
    names = {(processing.reduction, processing.similarity) for processing in reduced}
    reduced_layers = [ranked for ranked in layers if (ranked.reduction, ranked.similarity) in names]
    split = next((name for name in _SHOWN if name in splits and any(map(splits[name].epochs, reduced_layers))), None)
    if split is None:
        return None
    epoch = max(epoch for ranked in reduced_layers for epoch in splits[split].epochs(ranked))
    processings = [*raw, *reduced]
    keys = list(dict.fromkeys(ranked.layer for ranked in reduced_layers))
    rankings = [processing.of(layer) for processing in processings for layer in keys]
    values = {
        name: {ranked: value for ranked in rankings if (value := cells.mean((ranked, epoch))) is not None}
        for name, cells in splits.items()
    }
    processings = [
        processing for processing in processings if any(processing.of(layer) in values[split] for layer in keys)
    ]
    sums = splits[split].of([(ranked, epoch) for ranked in values[split]])
    ends = {ranked: interval for ranked, interval in zip(values[split], intervals(sums), strict=True) if interval}
    section = ReducedSection(dim, epoch, split, tuple(keys), tuple(processings), values, ends, {})
    return replace(
        section,
        indistinguishable={
            processing: _indistinguishable_layers(section, processing, splits) for processing in processings
        },
    )


def _indistinguishable_layers(
    section: ReducedSection, processing: PostProcessing, splits: Mapping[str, Cells]
) -> tuple[LayerKey, ...] | None:
    best = section.best(processing)
    if best is None:
        return None
    measured = [layer for layer in section.layers if processing.of(layer) in section.values[best.split]]
    cells = splits[best.split].of([(processing.of(layer), section.epoch) for layer in measured])
    indices = indistinguishable_from_best(cells, measured.index(section.layers[best.place]))
    return None if indices is None else tuple(measured[index] for index in indices)
