"""The nearest neighbours of queries of a run, from its stored features, and the images of both.

opened = open_gallery(run, "test")
nearest = neighbours_of(opened, 16, layers, rows, k=5)
opened.items.ids[nearest.rows[0, 0, 0]]              # the item nearest to the first query by the first layer
opened.image(opened.queries.ids[rows[0]])            # uint8 (H, W, 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.data.image_files import read_with
from layerprobe.data.splits import Image, Split, manifest_sha256
from layerprobe.measure.nearest import nearest_items
from layerprobe.ranking.neighbours import nearest_neighbours
from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.system.errors import DataError, UnknownNameError
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer, members_of
from layerprobe.values.records import RunRecord
from layerprobe.values.views import Selected
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.post_processed_features import is_fitted_on, is_made_from
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.probe.scoring import Searches, searches_of_run
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.features import RunFeatures, features_of
from layerprobe.workflow.run.references import RankedSplit, layer_flags, probe_fix
from layerprobe.workflow.run.runs import Run

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NearestItems:
    """The items nearest to Q queries by L layers, nearest first.

    Args:
        rows: (L, Q, K) of the items; -1 at the end where the search rules leave a query fewer items.
        similarities: (L, Q, K) to the query, higher is closer; -inf where the row is -1.
        right: (L, Q, K) whether an item is a positive; False where the row is -1.
    """

    rows: Rows
    similarities: NDArray[np.float64]
    right: NDArray[np.bool_]

    def of_layer(self, layer: int) -> NearestItems:
        """The items nearest by a single layer."""
        row = slice(layer, layer + 1)
        return NearestItems(self.rows[row], self.similarities[row], self.right[row])


@dataclass(frozen=True, eq=False)
class RunGallery:
    """A split of a run with its search and its images.

    Args:
        originals: split -> its images in the data set, neither resized nor inverted.
    """

    run: Run
    record: RunRecord
    split: str
    searches: Searches
    features: RunFeatures
    originals: Mapping[str, Split]

    @property
    def queries(self) -> Split:
        """The queries."""
        return self.searches.features.dataset.search_of(self.split)[0]

    @property
    def items(self) -> Split:
        """The items searched: the same split, or its gallery."""
        return self.searches.features.dataset.splits[self.searches.gallery(self.split)]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class; the labels of queries and items index it."""
        return self.searches.features.dataset.class_names

    def image(self, name: str) -> Image:
        """The original image of a query or an item."""
        split, row = self._rows_by_id[name]
        return split.image(row)

    @cached_property
    def search_sha256(self) -> str:
        """Hash of the current search rules and classes."""
        return self.searches.features.search_sha256(self.split)

    @cached_property
    def _rows_by_id(self) -> dict[str, tuple[Split, int]]:
        # Classes held out for validation are training classes of the data set.
        names = dict.fromkeys([self.searches.gallery(self.split), self.split])
        splits = [self.originals.get(name) or self.originals[FITTED_ON] for name in names]
        return {name: (split, row) for split in splits for row, name in enumerate(split.ids)}


def open_gallery(run: Run, split: str) -> RunGallery:
    """Open the data set of a run, to find and show its images."""
    record = run.read()
    if record.from_python:
        fix = "Probe it by layerprobe probe --model python:FILE.py:FUNCTION --data folder:ROOT"
        raise DataError("measured from Python, which keeps no images", file=run.folder, fix=fix)
    recipe = recorded_recipe(record, run.record_file)
    loaded = from_recipe.load_dataset(recipe.data, run.folder.parent)
    dataset = from_recipe.build_dataset(recipe, loaded=loaded)
    if split not in dataset.searched:
        raise UnknownNameError(f"split of {run.name}:", split, dataset.searched)
    for name in dict.fromkeys([split, dataset.search_in.get(split, split)]):
        recorded = record.manifests.get(name)
        if recorded not in (None, manifest_sha256(dataset.splits[name], dataset.class_names)):
            raise DataError(
                f"the {name} images are not those of the run: other names, classes or sizes",
                file=recipe.data.root or recipe.data.name,
                fix="Restore the data set as it was when the run was probed",
            )
    features = features_of(run, recipe, dataset)
    searches = searches_of_run(features, recipe, lambda: from_recipe.choose_device("auto"))
    data = recipe.data
    originals = read_with(loaded, exif_rotation=data.exif_rotation, fast=False, white=data.white).splits
    return RunGallery(run, record, split, searches, features, originals)


def open_ranked_gallery(ranked_split: RankedSplit) -> RunGallery:
    """As `open_gallery`, of a split whose ranks are of the queries of the data set."""
    run = ranked_split.run
    opened = open_gallery(run, ranked_split.split)
    if ranked_split.stored.ids != opened.queries.ids:
        problem = f"its ranks are of other queries than those of {opened.split} now"
        fix = f"Run {run.command('probe')}"
        raise DataError(problem, file=run.rank_file(ranked_split.epoch, ranked_split.split), fix=fix)
    return opened


def neighbours_of(
    opened: RunGallery, epoch: int, layers: Sequence[RankedLayer], queries: Sequence[int] | Rows, k: int
) -> NearestItems:
    """The items nearest to some queries by some layers, as the run's searches find them.

    The query itself and the items that the search rules exclude are skipped. Tied items are in the order of their
    rows, as in `nearest_neighbours`.

    Args:
        epoch: 0 = before any step.
        queries: (Q,) rows of `opened.queries`, each once.
        k: at least 1, and at most the number of other items.
    """
    rows = np.asarray(queries, np.int64)
    _require_images(opened, epoch)
    for ranked in layers:
        _require_stored(opened, epoch, ranked)
    return _find_by_layers(opened, epoch, layers, rows, k)


def _find_by_layers(opened: RunGallery, epoch: int, layers: Sequence[RankedLayer], rows: Rows, k: int) -> NearestItems:
    """The nearest items by each layer; the caller has checked that the features are stored."""
    with opened.features.kept_open(epoch, (opened.items.name, opened.split)):
        by_layer = [_find_by_layer(opened, epoch, ranked, rows, k) for ranked in layers]
    return NearestItems(*(np.stack([layer[array] for layer in by_layer]) for array in range(3)))  # type: ignore[arg-type] # of three types


def selected_neighbours(opened: RunGallery, selected: Selected, queries: Rows, k: int) -> NearestItems:
    """The items nearest to some queries by the selected candidate; within folds of classes if its score is of folds."""
    epoch, ranked = selected.score.epoch, selected.score.ranked
    _require_images(opened, epoch)
    # Post-processing that is not ranked is fitted anew, on the features that the layer itself was ranked by.
    is_ranked = ranked in opened.run.ranks(epoch, opened.split).stored.ranks
    raw = replace(ranked, post_processing=NO_POST_PROCESSING, similarity=opened.record.similarity)
    _require_stored(opened, epoch, ranked if is_ranked else raw)
    if not selected.within_folds:
        return _find_by_layers(opened, epoch, [ranked], queries, k)
    search = StoredSearch(opened.run, epoch, opened.split, torch.device("cpu"))
    rows, similarities = np.full((1, len(queries), k), -1), np.full((1, len(queries), k), -np.inf)
    rows_by_id = {name: row for row, name in enumerate(opened.items.ids)}
    for fold in search.in_folds(ranked, int(opened.record.seed)):
        fold_rows = np.array([rows_by_id[name] for name in fold.ids])
        in_fold = np.flatnonzero(np.isin(queries, fold_rows))
        if not len(in_fold) or len(fold_rows) < 2:
            continue
        values = torch.as_tensor(fold.values)
        fold_queries = [int(np.flatnonzero(fold_rows == query)[0]) for query in queries[in_fold]]
        nearest = nearest_neighbours(
            values[fold_queries],
            min(k, len(fold_rows) - 1),
            values,
            similarity=ranked.similarity,  # type: ignore[arg-type] # text from a file, checked there
            ids=[fold.ids[row] for row in fold_queries],
            gallery_ids=fold.ids,
        )
        width = nearest.indices.shape[1]
        rows[0, in_fold, :width] = np.where(nearest.indices < 0, -1, fold_rows[nearest.indices])
        similarities[0, in_fold, :width] = nearest.similarities
    right = (rows >= 0) & (opened.items.labels[rows] == opened.queries.labels[queries][None, :, None])
    return NearestItems(rows, similarities, right)


def _find_by_layer(
    opened: RunGallery, epoch: int, ranked: RankedLayer, rows: Rows, k: int
) -> tuple[Rows, NDArray[np.float64], NDArray[np.bool_]]:
    """(Q, K) rows, similarities, and which are right, by one layer."""
    rules = opened.searches.rules(opened.split)
    with opened.searches.post_processed.opened(epoch, opened.split, ranked, None) as (features, gallery):
        return nearest_items(
            features.of_rows(rows),
            features if gallery is None else gallery,
            ranked.similarity,
            k,
            None if rules is None else rules.of_rows(rows),
        )


def _require_images(opened: RunGallery, epoch: int) -> None:
    """Check that the stored features of an epoch are of the images of the data set."""
    splits = opened.searches.features.dataset.splits
    for split in (splits[name] for name in dict.fromkeys([opened.split, opened.items.name])):
        path = opened.run.feature_file(epoch, split.name)
        if not opened.run.has_features(epoch, split.name):
            raise DataError(
                f"no features of {split.name} at epoch {epoch} are stored",
                file=opened.run.folder,
                fix=probe_fix(opened.run, opened.record, epoch, opened.split),
            )
        if opened.run.feature_head(epoch, split.name).ids != tuple(split.ids):
            fix = probe_fix(opened.run, opened.record, epoch, opened.split)
            raise DataError("the features are of other images than those of the data set", file=path, fix=fix)
    ranks = opened.run.rank_file(epoch, opened.split)
    if opened.run.ranks(epoch, opened.split).search_sha256 not in ("", opened.search_sha256):
        fix = probe_fix(opened.run, opened.record, epoch, opened.split)
        raise DataError("classes, groups, lists or queries have changed since the probe", file=ranks, fix=fix)


def _require_stored(opened: RunGallery, epoch: int, ranked: RankedLayer) -> None:
    """Check that the ranks of a layer were made from its stored features."""
    run = opened.run
    fix = probe_fix(run, opened.record, epoch, opened.split, *layer_flags(opened.record, [ranked]))
    for split in dict.fromkeys((opened.items.name, opened.split)):
        path = run.feature_file(epoch, split)
        if not members_of(ranked.layer, tuple(run.feature_head(epoch, split).columns)):
            message = f"no features of {ranked.layer} at epoch {epoch} are stored of the {split} split"
            raise DataError(message, file=run.folder, fix=fix)
        if not is_made_from(run, epoch, opened.split, split, ranked):
            raise DataError(f"the ranks of {ranked.layer} were made from other features", file=path, fix=fix)
    if not is_fitted_on(run, epoch, opened.split, FITTED_ON, ranked):
        message = f"the training features that {ranked.post_processing} was fitted on are missing or have changed"
        raise DataError(message, file=run.folder, fix=probe_fix(run, opened.record, epoch, FITTED_ON))
