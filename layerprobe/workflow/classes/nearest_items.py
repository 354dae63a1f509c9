"""The nearest item of each test image by a layer of a run: in the whole gallery, or within folds of classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features, item_counts, rank
from layerprobe.measure.confusions import NearestItem
from layerprobe.measure.nearest import nearest_items
from layerprobe.system.computing import with_float64
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import FloatArray, SearchRules
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.metric_values import metric_values
from layerprobe.workflow.run.references import RankedSplit

_FINITE = "Choose a layer whose features are finite"


@dataclass(frozen=True)
class SplitLayer:
    """A layer of a ranked split, which may itself not be ranked."""

    ranked_split: RankedSplit
    ranked: RankedLayer

    @property
    def is_ranked(self) -> bool:
        """Whether its ranks are stored, or that its features were not finite."""
        return bool(self.ranked_split.ranked_as(self.ranked))

    @property
    def name(self) -> str:
        """The layer, with its similarity unless that is the run's."""
        return self.ranked_split.name(self.ranked)

    def search(self, fitted_on: str = FITTED_ON) -> StoredSearch:
        """Its stored features.

        Args:
            fitted_on: the split that its post-processing is fitted on.
        """
        device = with_float64(from_recipe.choose_device("auto"))
        return StoredSearch(self.ranked_split.run, self.ranked_split.epoch, self.ranked_split.split, device, fitted_on)


def require_searchable(layer: SplitLayer, fitted_on: str) -> None:
    """Check that a layer has one nearest item for each image, and features that it can be found by.

    Raises:
        DataError: features that are gone or have changed.
        NumericError: NaN or Inf.
        RecipeError: a layer that is the mean of several draws.
    """
    run, draws = layer.ranked_split.run, layer.ranked_split.ranked_as(layer.ranked)
    if len(draws) > 1:
        message = f"{layer.name} is a mean over {len(draws)} random draws, each of which finds other items"
        raise RecipeError(message, fix=f"Name one of them, such as {draws[0]}")
    if (reason := layer.ranked_split.stored.invalid.get(layer.ranked)) is not None:
        raise NumericError(f"{run.name}, {layer.name}: {reason}", fix=_FINITE)
    layer.search(fitted_on).require_stored(layer.ranked)


def nearest_by_layer(layer: SplitLayer, fitted_on: str) -> NearestItem:
    """The nearest items by a layer, as the run's search finds them; hits are of the stored ranks, if any.

    Raises:
        DataError: rules of the search that have changed.
        NumericError: NaN or Inf.
    """
    ranked_split, ranked, search = layer.ranked_split, layer.ranked, layer.search(fitted_on)
    if layer.is_ranked:
        hits = metric_values(ranked_split, ranked, "R@1")
    else:
        ranks = search.ranks(ranked)
        if isinstance(ranks, str):
            raise NumericError(f"{ranked_split.run.name}, {layer.name}: {ranks}", fix=_FINITE)
        hits = ranks.hits(1)
    with search.opened(ranked) as (queries, gallery):
        return _nearest_item(queries, gallery, ranked.similarity, search.rules, hits)


def nearest_within_folds(layer: SplitLayer, units: NDArray[np.int64]) -> NearestItem:
    """The nearest items by a layer in each fold of units, by post-processing fitted on the others.

    Args:
        units: (Q,) that the folds divide, each a class or several.

    Raises:
        DataError: the images are searched in a gallery or by groups or lists, or are some of the images.
    """
    stored, run = layer.ranked_split.stored, layer.ranked_split.run
    rows_by_id = {name: row for row, name in enumerate(stored.ids)}
    labels = stored.labels.astype(np.int64)
    hits, rows, right_items = np.zeros(len(labels)), np.full(len(labels), -1), np.zeros(len(labels), np.int64)
    for fold in layer.search().in_folds(layer.ranked, int(run.read().seed), units=units):
        if len(fold.ids) < 2:
            continue
        fold_rows = np.array([rows_by_id[name] for name in fold.ids])
        fold_hits = rank(fold, None, layer.ranked.similarity, ks=[1]).hits(1)
        nearest = _nearest_item(fold, None, layer.ranked.similarity, None, fold_hits)
        hits[fold_rows], right_items[fold_rows] = nearest.hits, nearest.right_items
        rows[fold_rows] = fold_rows[nearest.rows]
    return NearestItem(hits, rows, right_items, labels, labels)


def _nearest_item(
    queries: Features, gallery: Features | None, similarity: str, rules: SearchRules | None, hits: FloatArray
) -> NearestItem:
    rows, _, _ = nearest_items(queries, gallery, similarity, 1, rules)
    right_items, _ = item_counts(queries, gallery, rules)
    searched_labels = queries.labels if gallery is None else gallery.labels
    return NearestItem(hits, rows[:, 0], right_items, queries.labels, searched_labels)
