"""Comparison of layers after each of their kinds of post-processing, and each after its best, without test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from layerprobe.statistics.bootstrap import RESAMPLES, differences, indistinguishable_from_best
from layerprobe.statistics.units import intervals
from layerprobe.summary.cells import Cells
from layerprobe.values.best import Best, best_layer
from layerprobe.values.intervals import Difference, Interval
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer
from layerprobe.values.scores import SEEN

_SHOWN = ("test", "validation", "train")  # the first that is measured is shown


@dataclass(frozen=True, order=True)
class Processing:
    """Post-processing of a layer's features, and the similarity by which they are then searched.

    Args:
        dim: numbers, or bits, of any layer afterwards; None where that depends on the layer.
        needs_labels: whether it is fitted with the classes of train.
    """

    post_processing: str
    similarity: str
    dim: int | None = None
    draws: int = 1
    on_gallery: bool = False
    needs_labels: bool = False

    def of(self, layer: LayerKey) -> RankedLayer:
        """A layer after it."""
        return RankedLayer(layer, self.post_processing, self.similarity)


@dataclass(frozen=True)
class PostProcessedSection:
    """Layers after post-processing that are compared with each other.

    Args:
        dim: numbers, or bits, of all layers afterwards; None for the post-processing where that depends on the layer.
        epoch: of all values; the last one at which a post-processed layer is measured.
        processings: in the order of columns; those without post-processing first.
        values: split -> layer -> its Recall@1.
        indistinguishable: processing -> layers not significantly different from the best one, on the choice's split;
            None if unknown.
    """

    dim: int | None
    epoch: int
    split: str
    layers: tuple[LayerKey, ...]
    processings: tuple[Processing, ...]
    values: Mapping[str, Mapping[RankedLayer, float]]
    intervals: Mapping[RankedLayer, Interval]
    indistinguishable: Mapping[Processing, tuple[LayerKey, ...] | None]

    @property
    def post_processed(self) -> tuple[Processing, ...]:
        """The processings with post-processing."""
        return tuple(processing for processing in self.processings if processing.post_processing != NO_POST_PROCESSING)

    def best(self, processing: Processing) -> Best | None:
        """The best layer after post-processing, on validation or test."""
        return best_layer(self.column(processing))

    def column(self, processing: Processing) -> dict[str, list[float | None]]:
        """Validation and test -> the values of all layers after post-processing."""
        return {
            split: [self.values.get(split, {}).get(processing.of(layer)) for layer in self.layers]
            for split in ("validation", "test")
        }


def post_processed_sections(
    layers: Sequence[RankedLayer], processings: Sequence[Processing], splits: Mapping[str, Cells]
) -> tuple[PostProcessedSection, ...]:
    """Compare the layers after each post-processing: those of one equal dimension with each other, and all others.

    Returns:
        By dimension, ascending, and the post-processing without an equal one at the end.
    """
    post_processed = [processing for processing in processings if processing.post_processing != NO_POST_PROCESSING]
    raw = [processing for processing in processings if processing.post_processing == NO_POST_PROCESSING]
    dims = sorted({processing.dim for processing in post_processed if processing.dim is not None})
    groups = [(dim, [processing for processing in post_processed if processing.dim == dim]) for dim in (*dims, None)]
    sections = (_section(layers, dim, raw, group, splits) for dim, group in groups if group)
    return tuple(section for section in sections if section)


def _section(
    layers: Sequence[RankedLayer],
    dim: int | None,
    raw: Sequence[Processing],
    post_processed: Sequence[Processing],
    splits: Mapping[str, Cells],
) -> PostProcessedSection | None:
    """None where no post-processed layer has a value."""
    names = {(processing.post_processing, processing.similarity) for processing in post_processed}
    post_processed_layers = [ranked for ranked in layers if (ranked.post_processing, ranked.similarity) in names]
    split = next(
        (name for name in _SHOWN if name in splits and any(map(splits[name].epochs, post_processed_layers))), None
    )
    if split is None:
        return None
    epoch = max(epoch for ranked in post_processed_layers for epoch in splits[split].epochs(ranked))
    processings = [*raw, *post_processed]
    keys = list(dict.fromkeys(ranked.layer for ranked in post_processed_layers))
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
    section = PostProcessedSection(dim, epoch, split, tuple(keys), tuple(processings), values, ends, {})
    return replace(
        section,
        indistinguishable={
            processing: _indistinguishable_layers(section, processing, splits) for processing in processings
        },
    )


def _indistinguishable_layers(
    section: PostProcessedSection, processing: Processing, splits: Mapping[str, Cells]
) -> tuple[LayerKey, ...] | None:
    best = section.best(processing)
    if best is None:
        return None
    measured = [layer for layer in section.layers if processing.of(layer) in section.values[best.split]]
    cells = splits[best.split].of([(processing.of(layer), section.epoch) for layer in measured])
    indices = indistinguishable_from_best(cells, measured.index(section.layers[best.place]))
    return None if indices is None else tuple(measured[index] for index in indices)


@dataclass(frozen=True)
class ProcessedLayer:
    """A layer after the post-processing chosen for it.

    Args:
        value: Recall@1 on the split of the choice.
        test: Recall@1 on test; None where it is not measured.
        gain: on test, over the raw layer; None where one of them is not measured.
    """

    ranked: RankedLayer
    value: float
    test: float | None = None
    interval: Interval | None = None
    gain: Difference | None = None


@dataclass(frozen=True)
class BestProcessing:
    """Each layer after its best post-processing, chosen without test.

    Args:
        split: on which it was chosen; None where none can be chosen.
        indistinguishable: the layers not significantly different from the best one there; None if unknown.
    """

    split: str | None = None
    epoch: int = 0
    layers: tuple[ProcessedLayer, ...] = ()
    indistinguishable: tuple[LayerKey, ...] | None = None
    notes: tuple[str, ...] = ()


def best_post_processings(values: Mapping[RankedLayer, float]) -> dict[LayerKey, RankedLayer]:
    """Each layer after the post-processing with its highest value, possibly none; the first of equals.

    Args:
        values: `eligible_layers`, post-processed and raw -> Recall@1 on the split to choose on.
    """
    best: dict[LayerKey, RankedLayer] = {}
    for ranked in values:
        if ranked.layer not in best or values[ranked] > values[best[ranked.layer]]:
            best[ranked.layer] = ranked
    return best


def eligible_layers(
    layers: Iterable[RankedLayer], processings: Iterable[Processing], choose_on: str | None
) -> list[RankedLayer]:
    """The layers whose post-processing may be chosen on a split.

    Means over random draws are skipped: they cannot be used. So is what is fitted with the classes of this split, of
    which its recall is in-sample.
    """
    eligible = {
        (processing.post_processing, processing.similarity)
        for processing in processings
        if processing.draws == 1 and not (processing.needs_labels and choose_on == SEEN)
    }
    return [ranked for ranked in layers if (ranked.post_processing, ranked.similarity) in eligible]


def post_processing(
    layers: Iterable[RankedLayer], processings: Sequence[Processing], splits: Mapping[str, Cells], choose_on: str
) -> BestProcessing | None:
    """The best post-processing of each layer on a split, with its Recall@1 on test; None without any there."""
    cells, usable = splits.get(choose_on, Cells()), eligible_layers(layers, processings, choose_on)
    epochs = [
        epoch for ranked in usable if ranked.post_processing != NO_POST_PROCESSING for epoch in cells.epochs(ranked)
    ]
    if not epochs:
        return None
    epoch = max(epochs)
    means = {ranked: value for ranked in usable if (value := cells.mean((ranked, epoch))) is not None}
    chosen = list(best_post_processings(means).values())
    ends = _test_values(chosen, splits.get("test", Cells()), epoch)
    processed = [ProcessedLayer(ranked, means[ranked], *ends[ranked]) for ranked in chosen]
    values = [layer.value for layer in processed]
    near_indices = indistinguishable_from_best(
        cells.of([(ranked, epoch) for ranked in chosen]), values.index(max(values))
    )
    indistinguishable = None if near_indices is None else tuple(chosen[index].layer for index in near_indices)
    return BestProcessing(choose_on, epoch, tuple(processed), indistinguishable)


def _test_values(
    chosen: Sequence[RankedLayer], test: Cells, epoch: int
) -> dict[RankedLayer, tuple[float | None, Interval | None, Difference | None]]:
    """Layer -> Recall@1 on test, its interval, and the gain over the raw layer."""
    measured = [ranked for ranked in chosen if (ranked, epoch) in test]
    ends = dict(zip(measured, intervals(test.of([(r, epoch) for r in measured])) if measured else [], strict=True))
    all_raw = sorted(
        ranked for ranked, row_epoch in test.rows if row_epoch == epoch and ranked.post_processing == NO_POST_PROCESSING
    )
    raw: dict[RankedLayer, RankedLayer] = {}
    for ranked in measured:
        raw_layers = [other for other in all_raw if other.layer == ranked.layer]
        # by the same similarity where that was measured: bits have a similarity of their own
        raw |= {ranked: min(raw_layers, key=lambda other: other.similarity != ranked.similarity)} if raw_layers else {}
    gains: dict[RankedLayer, Difference] = {}
    if raw:
        chosen_sums, raw_sums = test.of([(r, epoch) for r in raw]), test.of([(r, epoch) for r in raw.values()])
        gains = dict(zip(raw, differences(chosen_sums.minus(raw_sums), resamples=RESAMPLES), strict=True))
    return {ranked: (test.mean((ranked, epoch)), ends.get(ranked), gains.get(ranked)) for ranked in chosen}
