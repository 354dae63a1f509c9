"""The difference of two layers before training, and what training adds to it: a difference of paired differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.facts import EPOCH_0
from layerprobe.values.layers import RankedLayer
from layerprobe.workflow.compare.evidence import Evidence, Measure, gather
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.metric_values import metric_flags
from layerprobe.workflow.run.references import (
    RankedSplit,
    open_ranked_split,
    probe_layers_fix,
    require_same_queries,
)

Pair = tuple[RankedLayer, RankedLayer]
SplitPair = tuple[RankedSplit, RankedSplit]


def before_training(
    trainings: Sequence[SplitPair],
    evidence: Sequence[Evidence],
    pairs: Sequence[Pair],
    measure: Measure,
    units: NDArray[np.int64],
) -> dict[Pair, tuple[list[Evidence], list[Evidence]]]:
    """Pair -> by training, its difference at epoch 0, and the change from there to the compared epochs.

    Pairs that are not measured at epoch 0 of every training are missing.

    Args:
        evidence: of the pairs, in each training.
        units: (Q,) the unit of each query.
    """
    starts = [(at_start(a), at_start(b)) for a, b in trainings]
    split_pairs = [(a, b) for a, b in starts if a is not None and b is not None]
    if len(split_pairs) < len(starts):
        return {}
    measured = [
        pair for pair in pairs if all(_is_measured(a, pair[0]) and _is_measured(b, pair[1]) for a, b in split_pairs)
    ]
    if not measured:
        return {}
    try:
        start_evidence = [gather(a, b, measured, measure, units) for a, b in split_pairs]
    except (DataError, RecipeError):  # the metric, or the features to draw classes anew, are not stored at epoch 0
        return {}
    indices = [pairs.index(pair) for pair in measured]
    effects = [later.rows(indices).minus(start) for later, start in zip(evidence, start_evidence, strict=True)]
    return {
        pair: (
            [pair_evidence.rows([index]) for pair_evidence in start_evidence],
            [pair_evidence.rows([index]) for pair_evidence in effects],
        )
        for index, pair in enumerate(measured)
    }


def at_start(ranked_split: RankedSplit) -> RankedSplit | None:
    """The same split at epoch 0; None for epoch 0 itself, and where that is not ranked on the same images."""
    if ranked_split.epoch == 0 or 0 not in ranked_split.run.ranked_epochs(ranked_split.split):
        return None
    start = open_ranked_split(ranked_split.run, 0, ranked_split.split)
    try:
        require_same_queries(ranked_split, start)
    except RecipeError:
        return None
    return start


def missing_note(layers: Sequence[tuple[RankedSplit, RankedLayer]], metric: str) -> list[str]:
    """The commands that measure layers before training; none for networks that have no such epoch."""
    for split, _ in layers:
        if split.epoch == 0 or split.record.from_python or data_facts(split.run, ()).start == EPOCH_0:
            return []
    starts = [(at_start(split), split, ranked) for split, ranked in layers]
    absent = [(split, ranked) for start, split, ranked in starts if start is None or not _is_measured(start, ranked)]
    flags = [] if metric == "R@1" else metric_flags(metric)
    fix = probe_layers_fix(absent or layers, *flags, epoch=0)
    return [f"the difference before training is not stored: {fix[0].lower()}{fix[1:]}"]


def _is_measured(ranked_split: RankedSplit, ranked: RankedLayer) -> bool:
    draws = ranked_split.ranked_as(ranked)
    return bool(draws) and all(draw in ranked_split.stored.ranks for draw in draws)
