"""labels: the images of a run's splits by several layers -> the labels that look wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import IN_GALLERY
from layerprobe.measure.label_errors import (
    NEIGHBOURS,
    LayerNeighbours,
    divided_classes,
    duplicates_of,
    estimate_wrong,
    neighbours_out_of_fold,
    recall_of,
    suspects_of,
)
from layerprobe.statistics.choice import folds_of
from layerprobe.store.features import FeatureHead
from layerprobe.system.computing import with_float64
from layerprobe.system.errors import DataError, NotFiniteError, NumericError, RecipeError, UnknownNameError
from layerprobe.system.progress import Listener
from layerprobe.values.labels import DividedLabel, Duplicates, LabelledImage, ReviewedLabels, SuspectedLabel
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer, layer_names, matching_layers
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import SPLITS
from layerprobe.workflow.labels.label_tables import labels_csv
from layerprobe.workflow.labels.request import LabelsRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.class_names import class_name
from layerprobe.workflow.run.image_paths import image_path
from layerprobe.workflow.run.metric_values import metric_values
from layerprobe.workflow.run.opened_run import equal_layers, read_layer
from layerprobe.workflow.run.outputs import require_output, write_output
from layerprobe.workflow.run.references import open_ranked_split
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import has_seen_train

_LAYERS = 6
_QUERIES = SPLITS[-1]
_GALLERY = IN_GALLERY[_QUERIES]
_SPLITS = (*SPLITS, _GALLERY)


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """The images of some splits of an epoch.

    Args:
        splits: split -> rows of its stored images that are taken.
        labels: (N,) indices of `names`.
        images: N of them.
    """

    run: Run
    epoch: int
    splits: dict[str, NDArray[np.int64]]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    images: tuple[LabelledImage, ...]

    def read(self, layer: LayerKey) -> NDArray[np.float32]:
        """(N, D) features of a layer."""
        parts = [read_layer(self.run, self.epoch, split, layer)[rows] for split, rows in self.splits.items()]
        return np.concatenate(parts)


def review_labels(run: Run, request: LabelsRequest, listener: Listener) -> ReviewedLabels:
    """List the labels of a run's images that look wrong, by the neighbours of each image in several layers.

    Raises:
        DataError: features that are gone; too few images.
        NumericError: NaN or Inf in the features of a layer that is named, or no layer that tells images apart.
        RecipeError: images have several labels; a name with post-processing; no layer is ranked without it.
        UnknownNameError: a layer, or a split, that is not stored.
    """
    if request.csv is not None:
        require_output(request.csv, "csv")
    record = run.read()
    _require_single_labels(run, record)
    epoch = record.epochs_done if request.epoch is None else request.epoch
    heads = _heads(run, record, epoch, request.splits)
    layers = _choose_layers(run, epoch, heads, request.layers)
    images = _gather(run, epoch, heads)
    if len(images.labels) <= NEIGHBOURS:
        message = f"{len(images.labels)} images at epoch {epoch}: each is compared with {NEIGHBOURS} others"
        raise DataError(message, file=run.folder, fix="Probe more images")
    layers, by_layer, left_out = _search(images, layers, int(record.seed), listener, may_skip=request.layers is None)
    reviewed = _review(images, layers, by_layer, (*left_out, *_notes(record, epoch, heads, by_layer)))
    if request.csv is not None:
        path_of = partial(image_path, record.data.get("root"))
        write_output(request.csv, labels_csv(reviewed, path_of).encode(errors="surrogateescape"))
    return reviewed


def _require_single_labels(run: Run, record: RunRecord) -> None:
    """Check that an image has one label: of several, neighbours that share one would count as of another class."""
    rules = [run.stored_rules(split) for split in _SPLITS]
    if record.data.get("label_separator") or any(x is not None and x.label_sets is not None for x in rules):
        message = f"{run.name}: images have several labels, and labels that look wrong are of images with one"
        raise RecipeError(message, fix="Take a run without data.label_separator")


def _heads(run: Run, record: RunRecord, epoch: int, names: Sequence[str] | None) -> dict[str, FeatureHead]:
    """The splits that are asked for, or all that are stored, of an epoch."""
    stored = [split for split in _SPLITS if run.has_features(epoch, split)]
    if not stored:
        fix = (
            f"Run {run.command('probe', '--epochs', str(epoch))}" if epoch in record.epochs else "Choose another epoch"
        )
        raise DataError(f"no features of epoch {epoch} are stored", file=run.folder, fix=fix)
    for name in names or ():
        if name not in stored:
            raise UnknownNameError(f"split of {run.name} at epoch {epoch}:", name, stored)
    return {split: run.feature_head(epoch, split) for split in (names or stored)}


def _choose_layers(run: Run, epoch: int, heads: dict[str, FeatureHead], names: Sequence[str] | None) -> list[LayerKey]:
    """The layers that are named, of those that every split has; without names the best."""
    stored = [key for key in next(iter(heads.values())).dims if all(key in head.dims for head in heads.values())]
    if names is None:
        return _best_layers(run, epoch, stored)
    raw = [RankedLayer(key, NO_POST_PROCESSING, "") for key in stored]
    chosen: dict[LayerKey, None] = {}
    for name in names:
        matches = [ranked.layer for ranked in matching_layers(name, raw)]
        if not matches and matching_layers(name.partition("/")[0], raw):
            message = f"--layers {name}: layers are compared by learned whitening, not by other post-processing"
            raise RecipeError(message, fix=f"Write {name.partition('/')[0]}")
        if not matches:
            raise UnknownNameError("layer", name, map(str, stored))
        chosen |= dict.fromkeys(matches)
    return list(chosen)


def _best_layers(run: Run, epoch: int, stored: Sequence[LayerKey]) -> list[LayerKey]:
    """The six layers with the highest R@1, each by its best pool, on the split that is furthest from training."""
    split = next((name for name in reversed(SPLITS) if run.has_ranks(epoch, name)), _QUERIES)
    ranked_split = open_ranked_split(run, epoch, split)
    best: dict[str, tuple[float, LayerKey]] = {}
    for ranked in ranked_split.layers:
        layer = ranked.layer
        is_plain = (ranked.post_processing, ranked.similarity) == (NO_POST_PROCESSING, ranked_split.similarity)
        if is_plain and layer in stored and ranked_split.has_ranks(ranked):
            recall = float(metric_values(ranked_split, ranked, "R@1").mean())
            if layer.layer not in best or recall > best[layer.layer][0]:
                best[layer.layer] = recall, layer
    if not best:
        message = f"{run.name}: no layer is ranked as it is, with finite features, at epoch {epoch}"
        raise RecipeError(message, fix=f"Name some: --layers {','.join(map(str, stored))}")
    layers: list[LayerKey] = []
    for _, layer in sorted(best.values(), key=lambda x: -x[0]):
        if len(layers) < _LAYERS and equal_layers(run, epoch, split, layer.layer).isdisjoint(layers):
            layers.append(layer)
    return layers


def _gather(run: Run, epoch: int, heads: dict[str, FeatureHead]) -> LabelledImages:
    """The images of the splits, with labels that all splits share; those of the gallery without the queries."""
    rows_of, images = {}, list[LabelledImage]()
    for split, head in heads.items():
        labels, ids = head.rows
        queries = set(heads[_QUERIES].ids) if split == _GALLERY and _QUERIES in heads else set[str]()
        rows = [row for row, name in enumerate(ids) if name not in queries]
        names = {label: class_name(head.class_names, label) for label in np.unique(labels).tolist()}
        images += [LabelledImage(ids[row], split, names[label]) for row, label in zip(rows, labels[rows], strict=True)]
        rows_of[split] = np.array(rows, np.int64)
    names_of_all, places = np.unique([x.label for x in images], return_inverse=True)
    return LabelledImages(run, epoch, rows_of, places.astype(np.int64), tuple(names_of_all.tolist()), tuple(images))


def _search(
    images: LabelledImages, layers: Sequence[LayerKey], seed: int, listener: Listener, *, may_skip: bool
) -> tuple[list[LayerKey], list[LayerNeighbours], list[str]]:
    """The layers, their neighbours, and notes on layers that are left out, as all images have the same features.

    Args:
        may_skip: whether a layer with NaN or Inf is left out, too, or an error.
    """
    folds, device = folds_of(np.arange(len(images.labels)), seed=seed), with_float64(from_recipe.choose_device("auto"))
    by_layer: dict[LayerKey, LayerNeighbours] = {}
    notes = []
    with listener.task(f"labels of {images.run.name}", len(layers), "layers") as task:
        for layer in layers:
            try:
                neighbours = neighbours_out_of_fold(images.read(layer), images.labels, folds, device)
            except NotFiniteError as error:
                if not may_skip:
                    message = f"{images.run.name}, {layer}: {error.message}"
                    raise NumericError(message, fix="Choose layers whose features are finite") from error
                notes.append(f"{layer} is left out: {error.message}")
            else:
                if neighbours.is_collapsed:
                    notes.append(f"{layer} is left out: all images have the same features")
                else:
                    by_layer[layer] = neighbours
            task.advance()
    if not by_layer:
        raise NumericError(f"{images.run.name}: {'; '.join(notes)}", fix="Choose other layers, or another epoch")
    return list(by_layer), list(by_layer.values()), notes


def _review(
    images: LabelledImages,
    layers: Sequence[LayerKey],
    by_layer: Sequence[LayerNeighbours],
    notes: tuple[str, ...],
) -> ReviewedLabels:
    labels, names, of_row = images.labels, images.names, images.images
    suspects = suspects_of(labels, by_layer)
    wrong = estimate_wrong(suspects, labels, by_layer, images.read(layers[0]))
    duplicates = duplicates_of(labels, by_layer)
    divided, same = divided_classes(labels, by_layer), sum(x.is_same for x in duplicates)
    return ReviewedLabels(
        images.run.name,
        images.epoch,
        tuple(images.splits),
        tuple(layer_names([RankedLayer(layer, NO_POST_PROCESSING, "cosine") for layer in layers])),
        len(labels),
        NEIGHBOURS * len(layers),
        recall_of(labels, by_layer),
        tuple(SuspectedLabel(of_row[x.row], names[x.suggested], x.layers, x.votes) for x in suspects),
        wrong,
        tuple(Duplicates((of_row[x.rows[0]], of_row[x.rows[1]]), x.distance, x.is_same) for x in duplicates),
        tuple(
            DividedLabel(names[x.label], x.images, tuple(tuple(of_row[row] for row in group) for group in x.groups))
            for x in divided
        ),
        verdict_text(len(labels), len(suspects), wrong, (same, len(duplicates) - same), len(divided)),
        notes,
    )


def verdict_text(images: int, suspects: int, wrong: float | None, duplicates: tuple[int, int], divided: int) -> str:
    """`41 of 2,720 labels look wrong, and about 30 of these are, if ...`, in one sentence.

    Args:
        duplicates: how many pairs are the same by every layer, and how many nearly.
    """
    text = f"{suspects:,} of {images:,} labels look{'s' * (suspects == 1)} wrong"
    if suspects and wrong is not None:
        text += (
            f", and about {wrong:,.0f} of these {'is' if round(wrong) == 1 else 'are'}, if a wrong label is any other"
            " class with the same chance (one given for a similar class is not counted)"
        )
    elif suspects:
        text += " (how many are cannot be estimated: too few classes, or layers that mix them up)"
    same, near = duplicates
    pairs = f"{same:,} pair{'s' * (same != 1)} of equal images and {near:,} of nearly equal ones have different labels"
    return f"{text}; {pairs}; {divided:,} class{'es' * (divided != 1)} may be two."


def _notes(
    record: RunRecord, epoch: int, heads: dict[str, FeatureHead], by_layer: Sequence[LayerNeighbours]
) -> tuple[str, ...]:
    notes = []
    if not all(layer.is_fitted for layer in by_layer):
        notes.append(
            "some layers are compared as they are: learned whitening needs more classes, or features that vary more"
        )
    if SPLITS[0] in heads and has_seen_train(record, epoch):
        notes.append(
            "the network was, or may have been, trained on the labels of train: wrong ones are harder to notice there"
        )
    return tuple(notes)
