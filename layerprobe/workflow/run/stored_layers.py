"""The features of a layer in a feature file; those of `A+B` are concatenated when they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from layerprobe import store
from layerprobe.measure.concatenated import SideBySide
from layerprobe.store.features import FeatureArray, StoredFeatures
from layerprobe.values.keys import LayerKey, members_of


@contextlib.contextmanager
def open_layer(path: Path, layer: LayerKey) -> Iterator[StoredFeatures | SideBySide]:
    """Open the features of a layer to read slices."""
    with contextlib.ExitStack() as stack:
        tables = [stack.enter_context(store.open_features(path, member)) for member in _members(path, layer)]
        yield tables[0] if len(tables) == 1 else SideBySide(tables)


def read_layer(path: Path, layer: LayerKey) -> FeatureArray:
    """The features of a layer, float32 (N, D)."""
    members = _members(path, layer)
    if len(members) == 1:
        return store.read_features(path, members[0])
    with open_layer(path, layer) as table:
        features: FeatureArray = table[:]
        return features


def _members(path: Path, layer: LayerKey) -> tuple[LayerKey, ...]:
    return members_of(layer, store.read_layers(path)) or (layer,)  # the store refuses one that is absent
