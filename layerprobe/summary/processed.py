"""Each layer after its best post-processing, chosen without test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from layerprobe.statistics.bootstrap import differences, indistinguishable_from_best
from layerprobe.statistics.units import intervals
from layerprobe.summary.cells import Cells
from layerprobe.summary.reduced import PostProcessing
from layerprobe.values.intervals import Difference, Interval
from layerprobe.values.layers import NO_REDUCTION, LayerKey, RankedLayer


@dataclass(frozen=True)
class ProcessedLayer:
    """A layer after the post-processing chosen for it.

    Args:
        value: Recall@1 on the split of the choice.
        test: Recall@1 on test; None where it is not measured.
        gain: on test, over the unreduced layer; None where one of them is not measured.
    """

    ranked: RankedLayer
    value: float
    test: float | None = None
    interval: Interval | None = None
    gain: Difference | None = None


@dataclass(frozen=True)
class BestPostProcessing:
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


def best_reductions(
    values: Mapping[RankedLayer, float], processings: Iterable[PostProcessing]
) -> dict[LayerKey, RankedLayer]:
    """Each layer after the reduction with its highest value, possibly none; the first of equals.

    Means over random draws are skipped: they cannot be used.

    Args:
        values: reduced and unreduced layers -> Recall@1 on the split to choose on.
    """
    best: dict[LayerKey, RankedLayer] = {}
    for ranked in _drop_means_of_draws(values, processings):
        if ranked.layer not in best or values[ranked] > values[best[ranked.layer]]:
            best[ranked.layer] = ranked
    return best


def _drop_means_of_draws(layers: Iterable[RankedLayer], processings: Iterable[PostProcessing]) -> list[RankedLayer]:
    single = {(processing.reduction, processing.similarity) for processing in processings if processing.draws == 1}
    return [ranked for ranked in layers if (ranked.reduction, ranked.similarity) in single]


def post_processing(
    layers: Iterable[RankedLayer], processings: Sequence[PostProcessing], splits: Mapping[str, Cells], choose_on: str
) -> BestPostProcessing | None:
    """The best reduction of each layer on a split, and its Recall@1 on test; None without reduced layers there."""
    cells, usable = splits.get(choose_on, Cells()), _drop_means_of_draws(layers, processings)
    epochs = [epoch for ranked in usable if ranked.reduction != NO_REDUCTION for epoch in cells.epochs(ranked)]
    if not epochs:
        return None
    epoch = max(epochs)
    means = {ranked: value for ranked in usable if (value := cells.mean((ranked, epoch))) is not None}
    chosen = list(best_reductions(means, processings).values())
    ends = _test_values(chosen, splits.get("test", Cells()), epoch)
    processed = [ProcessedLayer(ranked, means[ranked], *ends[ranked]) for ranked in chosen]
    values = [layer.value for layer in processed]
    near_indices = indistinguishable_from_best(
        cells.of([(ranked, epoch) for ranked in chosen]), values.index(max(values))
    )
    indistinguishable = None if near_indices is None else tuple(chosen[index].layer for index in near_indices)
    return BestPostProcessing(choose_on, epoch, tuple(processed), indistinguishable)


def _test_values(
    chosen: Sequence[RankedLayer], test: Cells, epoch: int
) -> dict[RankedLayer, tuple[float | None, Interval | None, Difference | None]]:
    """Layer -> Recall@1 on test, its interval, and the gain over the unreduced layer."""
    measured = [ranked for ranked in chosen if (ranked, epoch) in test]
    ends = dict(zip(measured, intervals(test.of([(r, epoch) for r in measured])) if measured else [], strict=True))
    unreduced = sorted(
        ranked for ranked, row_epoch in test.rows if row_epoch == epoch and ranked.reduction == NO_REDUCTION
    )
    raw: dict[RankedLayer, RankedLayer] = {}
    for ranked in measured:
        unreduced_layers = [other for other in unreduced if other.layer == ranked.layer]
        # by the same similarity where that was measured: bits have a similarity of their own
        raw |= (
            {ranked: min(unreduced_layers, key=lambda other: other.similarity != ranked.similarity)}
            if unreduced_layers
            else {}
        )
    gains: dict[RankedLayer, Difference] = {}
    if raw:
        chosen_sums, raw_sums = test.of([(r, epoch) for r in raw]), test.of([(r, epoch) for r in raw.values()])
        gains = dict(zip(raw, differences(chosen_sums.minus(raw_sums), resamples=2000), strict=True))
    return {ranked: (test.mean((ranked, epoch)), ends.get(ranked), gains.get(ranked)) for ranked in chosen}
