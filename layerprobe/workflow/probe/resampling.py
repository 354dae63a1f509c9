"""Intervals of scores: the units on each split, and notes on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import Dataset
from layerprobe.measure.analysis import Scored
from layerprobe.statistics.units import intervals, unit_sums
from layerprobe.values.intervals import FEWEST_UNITS, IntervalKind, SamplingUnits
from layerprobe.values.scores import Score
from layerprobe.workflow.run.units import units_of_splits


@dataclass(frozen=True, eq=False)
class Resampling:
    """How the intervals of scores are made.

    Args:
        units: split -> (Q,) the unit of each of its images; of galleries too.
    """

    units: Mapping[str, NDArray[np.int64]]
    kind: IntervalKind = field(default_factory=IntervalKind)

    def scores(self, split: str, layers: Sequence[Scored]) -> list[Score]:
        """The scores of some layers with their intervals: over units.

        Returns:
            In the order given. Scores that are no means over the queries are unchanged.
        """
        layer_scores = [(layer, score) for layer in layers for score in layer.scores]
        scores = [score for _, score in layer_scores]
        means = [row for row, (layer, score) in enumerate(layer_scores) if score.metric in layer.values]
        if not means:
            return scores
        cells = unit_sums([layer_scores[row][0].values[scores[row].metric] for row in means], self.units[split])
        counts = (cells.counts > 0).sum(1).tolist()
        for row, count, interval in zip(means, counts, intervals(cells), strict=True):
            # The number of units is the reason why a score of too few has no interval.
            if interval is not None or count < FEWEST_UNITS:
                scores[row] = replace(scores[row], interval=interval, units=SamplingUnits(self.kind, count))
        return scores


def resampling_of(dataset: Dataset, splits: Sequence[str], kind: IntervalKind) -> Resampling:
    """The units of some splits and of their galleries."""
    names = list(dict.fromkeys([*splits, *(dataset.search_in.get(name, name) for name in splits)]))
    images = {name: (dataset.splits[name].labels, dataset.splits[name].ids) for name in names}
    return Resampling(units_of_splits(dataset, images, kind.cluster), kind)
