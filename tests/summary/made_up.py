"""Recalls of two layers, made up class by class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layerprobe.summary.cells import Cells, Faults, SplitCells
from layerprobe.values.layers import LayerKey, RankedLayer

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
POOL5 = RankedLayer(LayerKey("pool5", "max"), "none", "cosine")
CLASSES = 40
SPREAD = np.tile([-0.05, 0.05], CLASSES // 2)  # of the classes around a mean: an interval of about +- 1.7 points

Curve = Mapping[int, float]  # epoch -> recall


def cells_of(curves: Mapping[RankedLayer, Curve], first_class: int = 0) -> Cells:
    """Cells of 40 classes with one query each."""
    found = Cells()
    units = np.arange(first_class, first_class + CLASSES)
    for epoch in sorted({epoch for curve in curves.values() for epoch in curve}):
        values = {ranked: curve[epoch] + SPREAD for ranked, curve in curves.items() if epoch in curve}
        found = found.with_epoch(epoch, values, units)
    return found


def split_of(
    curves: Mapping[RankedLayer, Curve], thinned: Mapping[RankedLayer, Curve] | None = None, first_class: int = 0
) -> SplitCells:
    raw = cells_of(curves, first_class)
    units = frozenset(range(first_class, first_class + CLASSES))
    of_thinned = cells_of(thinned or {}, first_class)
    return SplitCells(raw, of_thinned, dict.fromkeys(raw.rows, Faults()), units)
