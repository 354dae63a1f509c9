"""CKA from stored features: of the layers of a run, of each at different epochs, and of two runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.cka import EpochFeatures, epoch_cka, layer_cka, run_cka
from layerprobe.system.errors import DataError
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey
from layerprobe.values.scores import Matrix, Score
from layerprobe.workflow.run.experiments import have_other_images
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import weights_text

COMPARED = "test"  # the split whose features CKA compares


def comparable_scores(run: Run, scores: Sequence[Score]) -> list[Score]:
    """The scores of a run whose layers CKA can compare: on test, raw, and not `A+B`."""
    key = (run.name, COMPARED, NO_POST_PROCESSING)
    return [s for s in scores if (s.run, s.split, s.ranked.post_processing) == key and "+" not in s.ranked.layer.layer]


@dataclass(frozen=True, eq=False)
class RunLayers:
    """The layers of a run to compare.

    Args:
        layers: epoch -> those measured then, in network order.
    """

    run: Run
    layers: Mapping[int, Sequence[LayerKey]]
    notes: tuple[str, ...]

    @property
    def last(self) -> int:
        """The last epoch, which is compared with others."""
        return max(self.layers)

    @property
    def at_last(self) -> EpochFeatures:
        """The features of the last epoch."""
        weights = ""
        with contextlib.suppress(DataError):  # without a record nothing is known
            weights = weights_text(self.run.read())
        return EpochFeatures(self.run.name, self.last, self.layers[self.last], partial(self.read, self.last), weights)

    def images(self, epoch: int) -> tuple[list[int], tuple[str, ...]]:
        """The classes and ids of the stored features of an epoch."""
        labels, ids = self.run.feature_head(epoch, COMPARED).rows
        return labels.tolist(), ids

    def read(self, epoch: int, layer: LayerKey) -> NDArray[np.float32]:
        """(N, D) features of a layer."""
        return read_layer(self.run, epoch, COMPARED, layer)


def layers_of(run: Run, scores: Sequence[Score], notes: Sequence[str]) -> RunLayers:
    """The layers of a run by epoch, in the order of the scores."""
    layers: dict[int, dict[LayerKey, None]] = {}
    for score in scores:
        layers.setdefault(score.epoch, {})[score.ranked.layer] = None
    if not layers:
        raise DataError(
            f"no layer was probed on the {COMPARED} split",
            file=run.folder,
            fix=f"Run {run.command('probe', '--splits', COMPARED)}",
        )
    return RunLayers(run, {epoch: list(layers[epoch]) for epoch in sorted(layers)}, tuple(notes))


def matrices_of(runs: Sequence[RunLayers]) -> list[Matrix]:
    """CKA of every two layers of each run at its last epoch, of each with its earlier epochs, and of every two runs.

    Two runs are compared at their last epochs if they have the same test images; else there is a note.
    """
    matrices = [matrix for layers in runs for matrix in _run_matrices(layers)]
    images = [layers.images(layers.last) for layers in runs]
    for (first, first_images), (second, second_images) in combinations(zip(runs, images, strict=True), 2):
        others = first_images != second_images
        with contextlib.suppress(DataError):  # without a record nothing is known
            others = others or have_other_images(first.run.read(), second.run.read(), COMPARED)
        if others:
            note = f"not compared with {second.run.name}, which has other {COMPARED} images"
            matrices = [
                replace(matrix, notes=(*matrix.notes, note)) if matrix.run == first.run.name else matrix
                for matrix in matrices
            ]
        else:
            matrix = run_cka(first.at_last, second.at_last, split=COMPARED)
            shared = (note for note in first.notes if note in second.notes)
            matrices.append(replace(matrix, notes=(*shared, *matrix.notes)))
    return matrices


def _run_matrices(run_layers: RunLayers) -> list[Matrix]:
    images = run_layers.images(run_layers.last)
    stored = {e: layers for e, layers in run_layers.layers.items() if run_layers.run.has_features(e, COMPARED)}
    for epoch in stored:
        if run_layers.images(epoch) != images:
            path = run_layers.run.feature_file(epoch, COMPARED)
            raise DataError(
                f"other images than those of epoch {run_layers.last}",
                file=path,
                fix=f"Run {run_layers.run.command('probe')} again",
            )
    matrices = [layer_cka(run_layers.at_last, split=COMPARED)]
    if len(stored) > 1:  # else each layer would only be compared with itself
        matrices.append(epoch_cka(stored, run_layers.read, run=run_layers.run.name, split=COMPARED))
    return [replace(matrix, notes=(*run_layers.notes, *matrix.notes)) for matrix in matrices]
