"""Intervals of scores: the units on each split, and notes on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import Dataset
from layerprobe.measure.analysis import Scored
from layerprobe.statistics.means import intervals
from layerprobe.statistics.units import unit_sums
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
        scores = [(layer, score) for layer in layers for score in layer.scores]
        means = [place for place, (layer, score) in enumerate(scores) if score.metric in layer.values]
        found = [score for _, score in scores]
        if not means:
            return found
        cells = unit_sums([scores[place][0].values[found[place].metric] for place in means], self.units[split])
        units = (cells.counts > 0).sum(1).tolist()
        for place, count, ends in zip(means, units, intervals(cells), strict=True):
            score = found[place]
            if ends is not None or count < FEWEST_UNITS:
                score = replace(score, interval=ends, units=SamplingUnits(self.kind, count))
            found[place] = score
        return found


def resampling_of(dataset: Dataset, splits: Sequence[str], kind: IntervalKind) -> Resampling:
    """The units of some splits and of their galleries."""
    names = list(dict.fromkeys([*splits, *(dataset.search_in.get(name, name) for name in splits)]))
    images = {name: (part.labels, part.ids) for name in names for part in (dataset.splits[name],)}
    return Resampling(units_of_splits(dataset, images, kind.cluster), kind)
