"""Scores of other layers."""

from __future__ import annotations

from dataclasses import replace

from layerprobe.values.intervals import IntervalKind, SamplingUnits
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score

CLASSES = SamplingUnits(IntervalKind(), 40)
TRAININGS = SamplingUnits(IntervalKind(trainings=True), 2)
CLUSTERS = SamplingUnits(IntervalKind(cluster="parent"), 40)


def with_layer(score: Score, **columns: str) -> Score:
    """The score of another layer, pool, post-processing or similarity."""
    cells = score.ranked.as_columns() | columns
    layer = LayerKey(cells["layer"], cells["pool"])
    return replace(score, ranked=RankedLayer(layer, cells["post_processing"], cells["similarity"]))
