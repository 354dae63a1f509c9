"""Linear CKA of stored features' unit vectors: between layers, epochs and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.cka import cka_vector
from layerprobe.system.errors import NumericError
from layerprobe.values.facts import DataFacts, at_epoch_text, weights_or_epoch
from layerprobe.values.layers import LayerKey
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.scores import Matrix

# The most images that are compared: linear CKA of these is within about 0.01 of that of all.
MAX_IMAGES = 4096
# Images in a batch of CKA; with the number above, a layer's vector takes 8 MB.
BATCH_SIZE = 256
MEASURE = "linear CKA"

Faults = dict[str, list[int]]  # reason why numbers are missing -> the epochs


@dataclass(frozen=True, eq=False)
class EpochFeatures:
    """The layers of a run at an epoch.

    Args:
        read: layer -> (N, D) features of the same images for every layer.
        weights: as in `DataFacts`.
    """

    run: str
    epoch: int
    layers: Sequence[LayerKey]
    read: Callable[[LayerKey], NDArray[np.float32]]
    weights: str = DataFacts.weights


def layer_cka(epoch_features: EpochFeatures, *, split: str) -> Matrix:
    """Linear CKA of every two layers of a run at an epoch.

    Returns:
        (L, L). Of more than 4096 images, 4096 are drawn at random, always the same. A layer with NaN, or whose features
        do not vary, has no values.
    """
    vectors: list[FloatArray | None] = []
    faults: Faults = {}
    count = 0
    names = _names(epoch_features.layers)
    for layer, name in zip(epoch_features.layers, names, strict=True):
        features = epoch_features.read(layer)
        count = len(features)
        vectors.append(_vector(features, name, epoch_features.epoch, faults))
    values = tuple(tuple(_product(row, column) for column in vectors) for row in vectors)
    title = f"{MEASURE} of the layers {at_epoch_text(epoch_features.epoch, epoch_features.weights)}"
    used, notes = min(count, MAX_IMAGES), _notes(count, faults, epoch_features.weights)
    return Matrix(epoch_features.run, split, MEASURE, title, "layer", "layer", names, names, values, used, notes)


def epoch_cka(
    stored: Mapping[int, Sequence[LayerKey]],
    read: Callable[[int, LayerKey], NDArray[np.float32]],
    *,
    run: str,
    split: str,
) -> Matrix:
    """Linear CKA of each layer at every epoch with itself at the last.

    Args:
        stored: epoch -> the layers whose features are stored, for E epochs in ascending order.
        read: epoch and layer -> (N, D) features of the same images for all.

    Returns:
        (L, E) for the L layers of the last epoch, whose column is 1; images are drawn as for `layer_cka`. There is no
        value where a layer was not stored, has NaN, or does not vary.
    """
    final_epoch = max(stored)
    names, faults, rows = _names(stored[final_epoch]), Faults(), []
    count = 0
    for layer, name in zip(stored[final_epoch], names, strict=True):
        features = read(final_epoch, layer)
        count = len(features)
        final = _vector(features, name, final_epoch, faults)
        row = []
        for epoch, layers in stored.items():
            vector = None
            if epoch == final_epoch or final is None:
                vector = final
            elif layer in layers:
                vector = _vector(read(epoch, layer), name, epoch, faults)
            else:
                faults.setdefault(f"{name}: not probed", []).append(epoch)
            row.append(_product(vector, final))
        rows.append(tuple(row))
    title = f"{MEASURE} of each layer with itself at epoch {final_epoch}"
    epochs, used = tuple(map(str, stored)), min(count, MAX_IMAGES)
    return Matrix(run, split, MEASURE, title, "layer", "epoch", names, epochs, tuple(rows), used, _notes(count, faults))


def run_cka(row_side: EpochFeatures, column_side: EpochFeatures, *, split: str) -> Matrix:
    """Linear CKA of every layer of one run with every layer of another.

    Returns:
        (L, M); images are drawn as for `layer_cka`, and values missing as there.
    """
    vectors: list[list[FloatArray | None]] = []
    notes: dict[str, None] = {}
    count = 0
    for side in (row_side, column_side):
        faults: Faults = {}
        vectors.append([])
        for layer, name in zip(side.layers, _names(side.layers), strict=True):
            features = side.read(layer)
            count = len(features)
            vectors[-1].append(_vector(features, name, side.epoch, faults))
        notes |= dict.fromkeys(f"{side.run}: {note}" for note in _notes(0, faults, side.weights))
    return Matrix(
        run=f"{row_side.run} and {column_side.run}",
        split=split,
        measure=MEASURE,
        title=f"{MEASURE} of the layers of two runs",
        row_axis=f"layer of {row_side.run}, {weights_or_epoch(row_side.weights, row_side.epoch)}",
        column_axis=f"layer of {column_side.run}, {weights_or_epoch(column_side.weights, column_side.epoch)}",
        rows=_names(row_side.layers),
        columns=_names(column_side.layers),
        values=tuple(tuple(_product(row, column) for column in vectors[1]) for row in vectors[0]),
        n=min(count, MAX_IMAGES),
        notes=(*_notes(count, {}), *notes),
    )


def _vector(features: NDArray[np.float32], name: str, epoch: int, faults: Faults) -> FloatArray | None:
    """The CKA vector of a layer's features; None, and an entry in `faults`, if they have none."""
    if len(features) > MAX_IMAGES:
        features = features[np.sort(np.random.default_rng(0).permutation(len(features))[:MAX_IMAGES])]
    try:
        return cka_vector(features, batch_size=BATCH_SIZE, name=name)
    except NumericError as error:
        faults.setdefault(error.message, []).append(epoch)
        return None


def _product(row: FloatArray | None, column: FloatArray | None) -> float | None:
    return None if row is None or column is None else min(float(row @ column), 1.0)


def _notes(count: int, faults: Faults, weights: str = "") -> tuple[str, ...]:
    notes = [f"{MAX_IMAGES} of {count} images, drawn at random"] if count > MAX_IMAGES else []
    for reason, epochs in faults.items():
        at = weights or f"epoch{'s' * (len(epochs) > 1)} {', '.join(map(str, epochs))}"
        notes.append(f"{reason} ({at})")
    return tuple(notes)


def _names(layers: Sequence[LayerKey]) -> tuple[str, ...]:
    return tuple(str(key) for key in layers)
