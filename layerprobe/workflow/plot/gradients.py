"""The gradient of a run's softmax loss with respect to its stored features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from layerprobe.losses.vectors import LinearClassifier
from layerprobe.measure.gradients import Classified, kinds_of
from layerprobe.plots.drawn_layers import resolve_epoch
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.registry import LOSSES, load
from layerprobe.system.errors import DataError, NumericError, RecipeError
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.scores import Score, shared_notes
from layerprobe.values.views import GradientSizes
from layerprobe.workflow.probe.classifiers import classifier_of, why_no_classifier
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.runs import Run, require_kept

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
    path = run.feature_file(epoch, SPLIT)
    if embedding is None or not embedding_scores or not path.exists():
        fix = f"Run {run.command('probe', '--epochs', str(epoch), '--splits', SPLIT)}"
        raise DataError(f"{run.name}: no features of its embedding on {SPLIT} at epoch {epoch}", fix=fix)
    features, labels = read_layer(run, epoch, SPLIT, embedding.layer), run.feature_head(epoch, SPLIT).rows[0]
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
