"""The features of a layer in a feature file; those of `A+B` are concatenated when they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from layerprobe import store
from layerprobe.measure.extraction import SideBySide
from layerprobe.ranking.items import Table
from layerprobe.store.features import FeatureArray
from layerprobe.system.errors import BusyError, DataError
from layerprobe.values.layers import LayerKey, members_of
from layerprobe.workflow.run.runs import Run

_ROWS = 512  # compared at once


@contextlib.contextmanager
def open_layer(run: Run, epoch: int, split: str, layer: LayerKey) -> Iterator[Table]:
    """Open the features of a layer to read slices."""
    with run.open_features(epoch, split) as file:
        yield table_of(file, layer)


def read_layer(run: Run, epoch: int, split: str, layer: LayerKey) -> FeatureArray:
    """The features of a layer, float32 (N, D)."""
    with run.open_features(epoch, split) as file:
        return values_of(file, layer)


def table_of(file: store.LayerTables, layer: LayerKey) -> Table:
    """The features of a layer in an open file, to read slices."""
    tables = [file.table(member) for member in _members(file, layer)]
    return tables[0] if len(tables) == 1 else SideBySide(tables)


def values_of(file: store.LayerTables, layer: LayerKey) -> FeatureArray:
    """The features of a layer in an open file, float32 (N, D)."""
    members = _members(file, layer)
    if len(members) == 1:
        return file.read(members[0])
    features: FeatureArray = table_of(file, layer)[:]
    return features


def _members(file: store.LayerTables, layer: LayerKey) -> tuple[LayerKey, ...]:
    return members_of(layer, file.layers) or (layer,)  # the store refuses one that is absent


def equal_layers(run: Run, epoch: int, split: str, layer: str) -> frozenset[LayerKey]:
    """The stored layers that are another one by a second name; empty where no features can be read."""
    with contextlib.suppress(DataError, BusyError):
        dims = run.feature_head(epoch, split).dims
        same_dims = {dim for key, dim in dims.items() if key.layer == layer}
        candidates = [key for key, dim in dims.items() if key.layer != layer and dim in same_dims]
        if candidates:  # else the features need not be opened
            with run.open_features(epoch, split) as file:
                tables = [file.table(key) for key in dims if key.layer == layer]
                return frozenset(key for key in candidates if any(_are_equal(file.table(key), x) for x in tables))
    return frozenset()


def _are_equal(table: Table, other_table: Table) -> bool:
    chunks = (slice(start, start + _ROWS) for start in range(0, len(table), _ROWS))
    return table.shape == other_table.shape and all(np.array_equal(table[rows], other_table[rows]) for rows in chunks)
