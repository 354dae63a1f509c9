"""Features of layers of two dimensions, with the weights of the loss's classifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from layerprobe.plots.drawn_layers import resolve_epoch
from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.system.errors import DataError, NumericError, RecipeError
from layerprobe.values.scores import Score
from layerprobe.values.views import PlaneFeatures
from layerprobe.workflow.plot.feature_views import LayerSelection, ReadFeatures, open_stored, read_layers
from layerprobe.workflow.probe.classifiers import classifier_of, why_no_weight
from layerprobe.workflow.run.runs import Run, kept_epochs


def plane_features_of(
    scores: Sequence[Score], read: ReadFeatures, selection: LayerSelection, names: Sequence[str] = ()
) -> Iterator[PlaneFeatures]:
    """The features of a run's layers of two dimensions, layer by layer.

    Args:
        scores: of one run, at least one.
        names: of class 0, 1 ...; empty: the numbers are the names.
    """
    run, epoch = scores[0].run, resolve_epoch(scores, selection.options.epoch)
    for ranked, splits in read_layers(scores, read, selection):
        for split, labelled in splits.items():
            dims = labelled.features.shape[1]
            if dims != 2:
                message = f"{run}: {ranked} has {dims:,} dimension{'s' * (dims != 1)}, and features-2d draws 2"
                fix = "Name a layer of 2 by --layers, or train a toy network: net.name = lenet, net.fc = [84, 2]"
                raise RecipeError(message, fix=fix)
            if not np.isfinite(labelled.features).all():
                raise NumericError(f"{run}: NaN or Inf in the features of {ranked} on {split} at epoch {epoch}")
            classes = tuple(_class_name(names, label) for label in labelled.labels.tolist())
            points = tuple((float(x), float(y)) for x, y in labelled.features)
            yield PlaneFeatures(run, epoch, split, ranked, points, classes, notes=tuple(labelled.notes))


def stored_plane_features(run: Run, scores: Sequence[Score], selection: LayerSelection) -> list[PlaneFeatures]:
    """The features of a run's layers of two dimensions, by default of its embedding, with the classifier's weights.

    Args:
        scores: of this run, at least one.
    """
    epoch = resolve_epoch(scores, selection.options.epoch)
    embedding = selection.embeddings.get(run.name)
    if selection.options.layers is None and (embedding is not None or not run.read().from_python):
        scores = [score for score in scores if score.ranked == embedding]
    if not any(score.epoch == epoch for score in scores):
        fix = f"Run {run.command('probe', '--epochs', str(epoch))}, or name a layer by --layers"
        raise DataError(f"{run.name}: its embedding was not probed at epoch {epoch}", fix=fix)
    scores, read = open_stored(run, scores, epoch)
    names = run.feature_head(epoch, scores[0].split).class_names
    features = list(plane_features_of(scores, read, selection, names))
    return [
        _add_weights(run, split_features, names) if split_features.ranked == embedding else split_features
        for split_features in features
    ]


def _class_name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else str(label)


def _add_weights(run: Run, features: PlaneFeatures, names: Sequence[str]) -> PlaneFeatures:
    """Add the weight of each training class, if the loss has weights and the checkpoint is kept."""
    record = run.read()
    if record.from_python or record.weights_files or record.members:
        return features
    recipe = recorded_recipe(record, run.record_file)
    if why_no_weight(recipe) is not None or not run.has_features(features.epoch, "train"):
        return features
    if features.epoch not in kept_epochs(run, record):
        note = f"the checkpoint of epoch {features.epoch} was removed, and the classifier's weights with it"
        return replace(features, notes=(*features.notes, note))
    labels = np.unique(run.feature_head(features.epoch, "train").rows[0])
    classifier = classifier_of(run, recipe, labels, lambda: torch.device("cpu"))
    loss = classifier.loss(features.epoch, 2, labels)
    weight: torch.Tensor = loss.classifier_weight  # type: ignore[assignment] # a Module's attribute
    origin: torch.Tensor | list[float] = getattr(loss, "classifier_origin", [0.0, 0.0])
    classes = [_class_name(names, label) for label in labels.tolist()]
    rays = tuple((name, (float(x), float(y))) for name, (x, y) in zip(classes, weight.tolist(), strict=True))
    notes = ("the classifier takes the feature after a ReLU",) if classifier.relu else ()
    return replace(features, weights=rays, origin=(float(origin[0]), float(origin[1])), notes=(*features.notes, *notes))
