"""What needs a loss's classifier: features of two dimensions, or directions of three, and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.losses.vectors import LinearClassifier
from layerprobe.measure.gradients import Classified, kinds_of
from layerprobe.plots.drawn_scores import resolve_epoch
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.registry import LOSSES, load
from layerprobe.system.errors import DataError, NumericError, RecipeError
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.scores import Score, shared_notes
from layerprobe.values.views import GradientSizes, PlaneFeatures
from layerprobe.workflow.plot.feature_views import LayerSelection, ReadFeatures, open_stored, read_layers
from layerprobe.workflow.probe.classifiers import classifier_of, why_no_classifier, why_no_weight
from layerprobe.workflow.run.class_names import class_name
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.runs import Run, kept_epochs, require_kept


def plane_features_of(
    scores: Sequence[Score], read: ReadFeatures, selection: LayerSelection, names: Sequence[str] = ()
) -> Iterator[PlaneFeatures]:
    """The features of a run's layers of two dimensions, and the directions of those of three, layer by layer.

    Args:
        scores: of one run, at least one.
        names: of class 0, 1 ...; empty: the numbers are the names.
    """
    run, epoch = scores[0].run, resolve_epoch(scores, selection.options.epoch)
    for ranked, splits in read_layers(scores, read, selection):
        for split, labelled in splits.items():
            dims = labelled.features.shape[1]
            if dims not in (2, 3):
                message = f"{run}: {ranked} has {dims:,} dimension{'s' * (dims != 1)}, and features-2d draws 2 or 3"
                fix = "Name a layer of 2 by --layers, or train a toy network: net.name = lenet, net.fc = [84, 2]"
                raise RecipeError(message, fix=fix)
            if not np.isfinite(labelled.features).all():
                raise NumericError(f"{run}: NaN or Inf in the features of {ranked} on {split} at epoch {epoch}")
            notes, features, labels = [*labelled.notes], np.asarray(labelled.features), labelled.labels
            if dims == 3:
                has_direction = np.any(features != 0, axis=1)
                features, labels = directions(features[has_direction]), labels[has_direction]
                zeros = len(labelled.labels) - len(labels)
                notes += [f"{zeros:,} images are left out, whose feature is 0"] if zeros else []
            points = tuple((float(x), float(y)) for x, y in features)
            classes = tuple(class_name(names, label) for label in labels.tolist())
            yield PlaneFeatures(run, epoch, split, ranked, points, classes, notes=tuple(notes), directions=dims == 3)


def directions(features: FloatArray) -> NDArray[np.float64]:
    """(N, 3) not zero -> (N, 2) azimuth, from the first axis to the second, and elevation to the third, in degrees."""
    x, y, z = features.astype(np.float64).T
    angles: NDArray[np.float64] = np.degrees(np.stack([np.arctan2(y, x), np.arctan2(z, np.hypot(x, y))], 1))
    return angles


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
        _add_weights(run, split_features, names)
        if split_features.ranked == embedding and not split_features.directions
        else split_features
        for split_features in features
    ]


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
    labels = np.unique(run.feature_head(features.epoch, "train").labels)
    classifier = classifier_of(run, recipe, labels, lambda: torch.device("cpu"))
    loss = classifier.loss(features.epoch, 2, labels)
    weight: torch.Tensor = loss.classifier_weight  # type: ignore[assignment] # a Module's attribute
    origin: torch.Tensor | list[float] = getattr(loss, "classifier_origin", [0.0, 0.0])
    classes = [class_name(names, label) for label in labels.tolist()]
    rays = tuple((name, (float(x), float(y))) for name, (x, y) in zip(classes, weight.tolist(), strict=True))
    notes = ("the classifier takes the feature after a ReLU",) if classifier.relu else ()
    return replace(features, weights=rays, origin=(float(origin[0]), float(origin[1])), notes=(*features.notes, *notes))


SPLIT = "train"  # of whose classes the loss has weights
_FIX = "Name a run of softmax, norm_softmax or heated_softmax"
_PLACES = 61
_FACTORS = 30.0  # an axis reaches from the trained value over so many to so many times it


def stored_gradients(
    run: Run, scores: Sequence[Score], epoch: int | None, embedding: RankedLayer | None
) -> list[GradientSizes]:
    """The gradients of centroid, boundary and incorrect training images (`measure.gradients`), by alpha and by norm.

    Args:
        scores: of this run, at least one.
        epoch: None for the last.
        embedding: the layer that the loss takes; None if it is not measured.
    """
    record, epoch = run.read(), resolve_epoch(scores, epoch)
    if record.from_python:
        raise RecipeError(f"{run.name} was measured from Python, which keeps no loss", fix=_FIX)
    recipe = recorded_recipe(record, run.record_file)
    _require_softmax(run, recipe)
    require_kept(run, record, epoch)
    embedding_scores = [s for s in scores if (s.epoch, s.split, s.ranked) == (epoch, SPLIT, embedding)]
    if embedding is None or not embedding_scores or not run.has_features(epoch, SPLIT):
        fix = f"Run {run.command('probe', '--epochs', str(epoch), '--splits', SPLIT)}"
        raise DataError(f"{run.name}: no features of its embedding on {SPLIT} at epoch {epoch}", fix=fix)
    features, labels = read_layer(run, epoch, SPLIT, embedding.layer), run.feature_head(epoch, SPLIT).labels
    classes, targets = np.unique(labels, return_inverse=True)
    classifier = classifier_of(run, recipe, labels, lambda: torch.device("cpu"))
    loss = classifier.loss(epoch, features.shape[1], classes).double()
    if not np.isfinite(features).all():
        raise NumericError(f"{run.name}: NaN or Inf in the features of {embedding} on {SPLIT} at epoch {epoch}")
    linear: LinearClassifier = loss.linear(torch.from_numpy(features).double())  # type: ignore[operator] # of these losses
    classified, zeros = _drop_zero_features(linear, targets)
    if not len(classified.labels):
        raise NumericError(f"{run.name}: all features of {embedding} that reach its classifier are 0 at epoch {epoch}")
    notes = [*shared_notes(score.notes for score in embedding_scores)]
    notes += ["the feature is that after the loss's ReLU"] if classifier.relu else []
    notes += [f"{zeros:,} images are left out, whose feature is 0"] if zeros else []
    notes += ["label smoothing is left out"] if getattr(recipe.loss, "label_smoothing", 0) else []
    return [
        GradientSizes(
            run.name, epoch, embedding, kind, len(rows), axis, centre, tuple(map(float, places)), *lines, tuple(notes)
        )
        for kind, rows in kinds_of(classified.margins()).items()
        for axis, centre, places, lines in _quartiles(classified, classified.of(rows))
    ]


def _require_softmax(run: Run, recipe: Recipe) -> None:
    reason = why_no_classifier(recipe)
    if reason is None and not hasattr(load("loss", LOSSES, recipe.loss.name), "linear"):
        reason = f"{recipe.loss.name} is no plain softmax"
    if reason is not None:
        raise RecipeError(f"{run.name}: no gradient of a softmax loss: {reason}", fix=_FIX)


def _drop_zero_features(linear: LinearClassifier, labels: np.ndarray) -> tuple[Classified, int]:
    """The features that are not 0, and the number of the others."""
    x, weight, bias = (tensor.numpy().astype(np.float64) for tensor in (linear.features, linear.weight, linear.bias))
    nonzero = np.flatnonzero(np.linalg.norm(x, axis=1) > 0)
    classified = Classified(
        x[nonzero], labels[nonzero].astype(np.int64), weight, bias / linear.scale, linear.scale, linear.unit
    )
    return classified, len(x) - len(nonzero)


Line = tuple[float, ...]


def _quartiles(images: Classified, group: Classified) -> list[tuple[str, float, FloatArray, tuple[Line, Line, Line]]]:
    """Axis, trained value, places and the three quartiles of some images' gradients, for both axes."""
    norm = float(np.median(images.norms))
    lines = []
    for axis, centre, lengths in (("alpha", images.alpha, group.by_alpha), ("norm", norm, group.by_norm)):
        places = np.geomspace(centre / _FACTORS, centre * _FACTORS, _PLACES)
        low, middle, high = (tuple(map(float, q)) for q in np.quantile(lengths(places), [0.25, 0.5, 0.75], axis=1))
        lines.append((axis, centre, places, (middle, low, high)))
    return lines
