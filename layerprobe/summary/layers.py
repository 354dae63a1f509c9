"""The rows of a summary, one for each layer, from the recalls of a run's epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from layerprobe.statistics.bootstrap import RESAMPLES, between, indistinguishable_from_best
from layerprobe.statistics.units import intervals
from layerprobe.summary.cells import Cells, Faults, LayerEpoch, SplitCells
from layerprobe.summary.post_processed import BestProcessing, PostProcessedSection
from layerprobe.values.best import Agreement, best_layer
from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import Difference, Interval, IntervalKind
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer
from layerprobe.values.scores import SEEN, UNSEEN


@dataclass(frozen=True)
class Level:
    """Recall@1 of a layer on a split.

    Args:
        epoch: 0 = before any step.
        value: a fraction; None where the features have no valid one.
        thinned: the same in a gallery of the other split's size; None where it is not thinned.
    """

    epoch: int
    value: float | None
    interval: Interval | None = None
    thinned: float | None = None
    thinned_interval: Interval | None = None


@dataclass(frozen=True)
class GapOnset:
    """The epoch at which the gap began to exceed that of epoch 0.

    Args:
        epoch: the first measured one from which the difference keeps its interval above 0 to the end; None for never.
    """

    epoch: int | None


@dataclass(frozen=True)
class LayerSummary:
    """A layer's row of a summary.

    Args:
        levels: split -> its recall at the layer's last epoch.
        gap: train - test there, in galleries of `RunSummary.gap_metric`; None where one of them is missing.
        gap_over_start: that gap - the gap of epoch 0; None where epoch 0 is not measured, or not a start.
        opening: None where one of these differences is missing, or the last has no interval.
        best_epochs: split -> the epoch of its highest recall, the first of equals; on test it is chosen on test.
        faults: split -> caveats on the last epoch.
        broken: split -> number of earlier epochs that have collapsed or have no value.
    """

    ranked: RankedLayer
    levels: Mapping[str, Level]
    gap: Difference | None
    gap_over_start: Difference | None
    opening: GapOnset | None
    best_epochs: Mapping[str, int]
    epochs: int
    faults: Mapping[str, Faults]
    broken: Mapping[str, int]


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run.

    Args:
        units: split -> number of resampled units.
        indistinguishable: the layers not significantly different from the best of `main` at the end, on its split; None
            if unknown.
        sections: the layers after post-processing.
        processed: each layer after its best post-processing; None where no post-processing is measured.
        label_free: rank correlations of label-free metrics with recall, at the last epoch with any.
        gap_metric: the metric whose gaps they are: `R@1(G=200)` where a gallery is thinned to the other's size.
    """

    run: str
    kind: IntervalKind
    data: DataFacts
    units: Mapping[str, int]
    layers: tuple[LayerSummary, ...]
    indistinguishable: tuple[RankedLayer, ...] | None = None
    notes: tuple[str, ...] = ()
    sections: tuple[PostProcessedSection, ...] = ()
    processed: BestProcessing | None = None
    label_free: tuple[Agreement, ...] = ()
    metric: str = "R@1"
    gap_metric: str = "R@1"

    @property
    def main(self) -> tuple[LayerSummary, ...]:
        """The raw layers; all layers if every one is post-processed."""
        return raw_layers(self.layers)


def raw_layers(layers: Sequence[LayerSummary]) -> tuple[LayerSummary, ...]:
    """The raw layers; all of them if every one is post-processed."""
    return tuple(layer for layer in layers if layer.ranked.post_processing == NO_POST_PROCESSING) or tuple(layers)


def layer_summaries(
    layers: Sequence[RankedLayer], splits: Mapping[str, SplitCells], *, from_start: bool
) -> list[LayerSummary]:
    """Sum up the layers of a run.

    Gaps have intervals only if train and test share no units: their draws are then independent.

    Args:
        from_start: whether epoch 0 is the start of training, so that gaps are compared with its gap.
    """
    last_epochs = {ranked: max(_epochs(ranked, splits)) for ranked in layers}
    levels = {split: _levels(cells, last_epochs) for split, cells in splits.items()}
    gaps, over_start, openings = _gaps(splits, last_epochs, from_start=from_start)
    summaries = []
    for ranked in layers:
        key = ranked, last_epochs[ranked]
        summaries.append(
            LayerSummary(
                ranked,
                {split: split_levels[ranked] for split, split_levels in levels.items() if ranked in split_levels},
                gaps.get(key),
                over_start.get(key),
                openings.get(ranked),
                {split: best for split, cells in splits.items() if (best := best_epoch(cells.raw, ranked)) is not None},
                len(_epochs(ranked, splits)),
                {split: cells.faults[key] for split, cells in splits.items() if key in cells.faults},
                {split: broken for split, cells in splits.items() if (broken := _count_broken_epochs(cells, key))},
            )
        )
    return summaries


def indistinguishable_layers(
    layers: Sequence[LayerSummary], splits: Mapping[str, SplitCells], data: DataFacts
) -> tuple[RankedLayer, ...] | None:
    """The layers not significantly different from the best at their ends, on its split; None if unknown."""
    best = best_layer(end_values(layers, data))
    if best is None:
        return None
    ends = [(layer.ranked, layer.levels[best.split].epoch) for layer in layers if best.split in layer.levels]
    keys = [key for key in ends if key in splits[best.split].raw]
    names = [ranked for ranked, _ in keys]
    indices = indistinguishable_from_best(splits[best.split].raw.of(keys), names.index(layers[best.place].ranked))
    return None if indices is None else tuple(names[index] for index in indices)


def end_values(layers: Sequence[LayerSummary], data: DataFacts) -> dict[str, list[float | None]]:
    """The splits on which layers are chosen -> the layers' values at their ends."""
    return {
        split: [level.value if (level := layer.levels.get(split)) else None for layer in layers]
        for split in data.chosen_on(layer.ranked.post_processing for layer in layers)
    }


def best_epoch(cells: Cells, ranked: RankedLayer) -> int | None:
    """The epoch of a layer's highest recall, the first of equals; None without a recall."""
    epochs = cells.epochs(ranked)
    if not epochs:
        return None
    means = cells.of([(ranked, epoch) for epoch in epochs]).means
    return epochs[int(means.argmax())]


def _epochs(ranked: RankedLayer, splits: Mapping[str, SplitCells]) -> set[int]:
    return {epoch for cells in splits.values() for layer, epoch in cells.faults if layer == ranked}


def _levels(cells: SplitCells, last_epochs: Mapping[RankedLayer, int]) -> dict[RankedLayer, Level]:
    raw, thinned = _ends(cells.raw, last_epochs), _ends(cells.thinned, last_epochs)
    return {
        key[0]: Level(key[1], *raw.get(key, (None, None)), *thinned.get(key, (None, None)))
        for key in last_epochs.items()
        if key in cells.faults
    }


def _ends(cells: Cells, last_epochs: Mapping[RankedLayer, int]) -> dict[LayerEpoch, tuple[float, Interval | None]]:
    """The means at the layers' last epochs, with their intervals."""
    keys = [key for key in last_epochs.items() if key in cells]
    if not keys:
        return {}
    sums = cells.of(keys)
    return dict(zip(keys, zip(sums.means.tolist(), intervals(sums), strict=True), strict=True))


def _count_broken_epochs(cells: SplitCells, last_key: LayerEpoch) -> int:
    """Number of epochs before the last at which a layer has collapsed or has no value."""
    earlier = [
        fault for (ranked, epoch), fault in cells.faults.items() if ranked == last_key[0] and epoch < last_key[1]
    ]
    return sum(bool(fault.invalid or fault.tied) for fault in earlier)


def _gaps(
    splits: Mapping[str, SplitCells], last_epochs: Mapping[RankedLayer, int], *, from_start: bool
) -> tuple[dict[LayerEpoch, Difference], dict[LayerEpoch, Difference], dict[RankedLayer, GapOnset]]:
    """The gaps at the last epochs; those at every later epoch than 0, minus the gap of epoch 0; the known onsets."""
    seen, unseen = splits.get(SEEN), splits.get(UNSEEN)
    if seen is None or unseen is None:
        return {}, {}, {}
    seen_cells, unseen_cells, is_independent = seen.compared, unseen.compared, not seen.units & unseen.units
    ends = [key for key in last_epochs.items() if key in seen_cells and key in unseen_cells]
    later = _later_epochs(seen_cells, unseen_cells) if from_start else []
    over_start = _differences(
        _subtract_start(seen_cells, later), _subtract_start(unseen_cells, later), later, is_independent
    )
    openings = {}
    comparable = _later_epochs(seen.raw, unseen.raw)
    for ranked, last_epoch in last_epochs.items():
        epochs = [epoch for layer, epoch in comparable if layer == ranked]
        curve = {epoch: over_start[ranked, epoch] for epoch in epochs if (ranked, epoch) in over_start}
        # Unknown for the last epoch, or where the difference of an epoch is missing.
        if last_epoch in curve and curve[last_epoch].interval is not None and len(curve) == len(epochs):
            openings[ranked] = GapOnset(opens_at(curve))
    return _differences(seen_cells, unseen_cells, ends, is_independent), over_start, openings


def _later_epochs(seen_cells: Cells, unseen_cells: Cells) -> list[LayerEpoch]:
    """The layers and later epochs that both splits have, of layers that both have at epoch 0."""
    shared_keys = [key for key in seen_cells.rows if key in unseen_cells]
    return [key for key in shared_keys if key[1] > 0 and (key[0], 0) in shared_keys]


def opens_at(curve: Mapping[int, Difference]) -> int | None:
    """The first epoch from which a difference keeps its interval above 0 to the end; None for never."""
    onset = None
    for epoch in sorted(curve, reverse=True):
        low = curve[epoch].low
        if low is None or low <= 0:
            break
        onset = epoch
    return onset


def _subtract_start(cells: Cells, keys: Sequence[LayerEpoch]) -> Cells:
    if not keys:
        return Cells()
    changed = cells.of(keys).minus(cells.of([(ranked, 0) for ranked, _ in keys]))
    return Cells({key: row for row, key in enumerate(keys)}, changed)


def _differences(
    seen_cells: Cells, unseen_cells: Cells, keys: Sequence[LayerEpoch], is_independent: bool
) -> dict[LayerEpoch, Difference]:
    if not keys:
        return {}
    if is_independent:
        return dict(zip(keys, between(seen_cells.of(keys), unseen_cells.of(keys), resamples=RESAMPLES), strict=True))
    values = seen_cells.of(keys).means - unseen_cells.of(keys).means
    return {key: Difference(float(value)) for key, value in zip(keys, values, strict=True)}
