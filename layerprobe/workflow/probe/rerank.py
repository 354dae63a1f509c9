"""Layers ranked again from stored features, without images or checkpoints: concatenated, or with other fits.

stored = StoredSearch(run, epoch, "validation", torch.device("cpu"))
stored.ranks(ranked)                         # as the rank file would have them
stored.within_folds(ranked, seed)            # a fitted post-processing that has not seen the classes searched
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features, rank, search_sha256
from layerprobe.measure.selection_folds import FoldSearch, QueryValues, query_values_of
from layerprobe.post_processing.applying import Blocks
from layerprobe.post_processing.chain import Chain, parse_chain
from layerprobe.post_processing.pca import MOST_DIMENSIONS, FoldProjections, partial_whitening
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.post_processing.supervised import learned_whitening, parse_whitening
from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.statistics.choice import folds_of_queries
from layerprobe.system.errors import DataError, NotFiniteError
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks, SearchRules
from layerprobe.values.sections import RULE_KEYS
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.post_processed_features import (
    PostProcessedFeatures,
    are_stored,
    permuted_labels,
    query_index,
    query_rows,
    stored_features,
)
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.opened_run import read_layer
from layerprobe.workflow.run.references import probe_fix
from layerprobe.workflow.run.runs import Run

_MOST_FITS = 32  # fits of layers of a run that are kept: those of 2,048 dimensions take 13 MB, learned ones 19 MB
_GALLERY = "gallery"  # the split that another one is searched in


@dataclass(frozen=True, eq=False)
class StoredSearch:
    """The stored features of a run's epoch and split, and of their gallery.

    Args:
        epoch: 0 = before any step.
        fitted_on: the split that post-processing is fitted on, unless on the gallery.
        permuted: whether they are fitted with the classes permuted over the images.
        memory: bytes that a search may take; larger features stay on disk, unless they are searched within folds.
    """

    run: Run
    epoch: int
    split: str
    device: torch.device
    fitted_on: str = FITTED_ON
    permuted: bool = False
    memory: int | None = None

    @cached_property
    def _searches_itself(self) -> bool:
        return self.run.ranks(self.epoch, self.split).searched_itself

    @cached_property
    def _post_processed_features(self) -> PostProcessedFeatures:
        return stored_features(
            self.run, self._gallery_of, self.device, fitted_on=self.fitted_on, permuted=self.permuted
        )

    def _gallery_of(self, split: str) -> str:
        return split if self._searches_itself else _GALLERY

    @cached_property
    def _is_drawn(self) -> bool:
        return query_rows(self.run, self.epoch, self.split) is not None

    @cached_property
    def is_plain(self) -> bool:
        """Whether no groups or lists restrict the results of a query: these are not stored with features."""
        # The classes of what Python measures are numbered anew in the file, and it has no rules.
        if self.run.stored_rules(self.split) is not None:
            return False
        return self.run.read().from_python or self.rules_sha256 == self._search_sha256(None)

    def require_plain(self) -> None:
        """Check that no groups or lists restrict the results of a query; classes may be sets of labels."""
        if not self.is_plain and any(self.run.read().data.get(key) for key in RULE_KEYS):
            raise DataError(f"groups or lists decide what images of {self.split} may find")

    @cached_property
    def rules(self) -> SearchRules | None:
        """The groups, lists and sets of labels of the data set, which is read for them; None without any."""
        if self.is_plain:
            return None
        if (stored := self.run.stored_rules(self.split)) is not None:
            return stored
        record = self.run.read()
        rules = from_recipe.build_dataset(recorded_recipe(record, self.run.record_file)).search_rules.get(self.split)
        if self._search_sha256(rules) != self.rules_sha256:
            fix = probe_fix(self.run, record, self.epoch, self.split)
            raise DataError(
                "classes, groups or lists have changed since the probe",
                file=self.run.rank_file(self.epoch, self.split),
                fix=fix,
            )
        return rules

    @cached_property
    def rules_sha256(self) -> str:
        """Hash of what decided which items each query may find."""
        return self.run.ranks(self.epoch, self.split).search_sha256

    def _search_sha256(self, rules: SearchRules | None) -> str:
        queries, gallery = (
            Features(np.empty(0, np.float32), *index)
            for index in (
                query_index(self.run, self.epoch, self.split),
                self._read_index(self._gallery_of(self.split)),
            )
        )
        itself = self._searches_itself and not self._is_drawn
        return search_sha256(queries, None if itself else gallery, rules)

    @property
    def item_ids(self) -> tuple[str, ...]:
        """The names of the searched items."""
        _, ids = self._read_index(self._gallery_of(self.split))
        return ids

    def require_stored(self, ranked: RankedLayer) -> None:
        """Check that the ranks of a layer were made from its features."""
        if not are_stored(self.run, self.epoch, self.split, self._gallery_of(self.split), ranked):
            raise DataError(f"the features of {ranked.layer} at epoch {self.epoch} are gone")

    def ranks(self, ranked: RankedLayer) -> Ranks | str:
        """The ranks of a layer, or the reason why there are none: features that are not finite."""
        try:
            with self.opened(ranked) as (queries, gallery):
                return rank(queries, gallery, ranked.similarity, ks=[1], memory=self.memory, rules=self.rules)
        except NotFiniteError as error:
            return f"NaN ({error.rows} rows)"

    def opened(self, ranked: RankedLayer) -> contextlib.AbstractContextManager[tuple[Features, Features | None]]:
        """A layer's post-processed features, and those of the searched items; on disk if they exceed the memory."""
        return self._post_processed_features.opened(self.epoch, self.split, ranked, self.memory)

    def features(self, ranked: RankedLayer) -> tuple[Features, Features | None]:
        """The features of a layer, post-processed, in memory; and those of the searched items, None for itself."""
        with self._post_processed_features.opened(self.epoch, self.split, ranked) as features:
            return features

    def features_of(self, split: str, ranked: RankedLayer) -> Features:
        """The features of another split, in memory, by the map that this one is searched by."""
        return self._post_processed_features.layer(self.epoch, self.split, ranked, searched=split)

    def within_folds(
        self,
        ranked: RankedLayer,
        seed: int,
        metric: str = "R@1",
        *,
        rules: SearchRules | None = None,
        units: NDArray[np.int64] | None = None,
    ) -> QueryValues:
        """The values of all queries, searched within folds of classes, by post-processing fitted on the other folds.

        Args:
            seed: of the folds.
            rules: of the search, where they have been read; None: they are read if there are any.
            units: (Q,) that the folds divide, each a class or several; None for the classes.
        """
        search = replace(self._fold_search(ranked, seed, units), metric=metric, rules=rules or self.rules)
        chain = parse_chain(ranked.post_processing)
        return search.values(self._fits(search, ranked.layer, chain))

    def in_folds(self, ranked: RankedLayer, seed: int, *, units: NDArray[np.int64] | None = None) -> list[Features]:
        """The features of each fold of units, by post-processing fitted on the other folds, in memory.

        Args:
            seed: of the folds.
            units: (Q,) that the folds divide, each a class or several; None for the classes.

        Raises:
            DataError: the queries are searched in a gallery, by groups or lists, or are some of the images.
        """
        if not (self._searches_itself and self.is_plain) or self._is_drawn:
            raise DataError(f"{ranked} of {self.run.name} is not searched among classes alone")
        search = self._fold_search(ranked, seed, units)
        fit_without = self._fits(search, ranked.layer, parse_chain(ranked.post_processing))
        return [search.features_of(fold, fit_without(fold))[1] for fold in np.unique(search.folds).tolist()]

    def out_of_fold(
        self, ranked: RankedLayer, seed: int, *, units: NDArray[np.int64] | None = None
    ) -> tuple[Features, NDArray[np.int64]]:
        """The features of all queries, each by post-processing fitted on the other folds, and the fold of each.

        Args:
            seed: of the folds.
            units: as of `in_folds`.
        """
        search = self._fold_search(ranked, seed, units)
        fit_without = self._fits(search, ranked.layer, parse_chain(ranked.post_processing))
        parts = [search.features_of(fold, fit_without(fold)) for fold in np.unique(search.folds).tolist()]
        values = torch.cat([torch.as_tensor(features.values) for _, features in parts])
        in_order = torch.from_numpy(np.argsort(np.concatenate([rows for rows, _ in parts])))
        return Features(values[in_order.to(values.device)], search.queries.labels, search.queries.ids), search.folds

    def _fits(self, search: FoldSearch, layer: LayerKey, chain: Chain) -> Callable[[int], FittedStep | None]:
        """Fold -> a chain of post-processing steps, fitted without it."""
        whitening = None if self.permuted else parse_whitening(chain.text)
        if whitening is not None:
            learned, count, rest = whitening
            most = MOST_DIMENSIONS if count <= MOST_DIMENSIONS else sys.maxsize
            projections = whitening_fits(
                self.run, self.epoch, self.split, layer, search.folds, self.device, learned=learned, most=most
            )
            if projections is not None and count <= projections.dim:
                return projections.onto(
                    count, parse_chain(rest).fit((), count, seed=self._post_processed_features.seed)
                )
        return lambda fold: search.fit_without(chain, fold, self._post_processed_features.seed)

    def _fold_search(self, ranked: RankedLayer, seed: int, units: NDArray[np.int64] | None) -> FoldSearch:
        queries, gallery = self.features(replace(ranked, post_processing=NO_POST_PROCESSING))
        folds = folds_of_queries(queries.labels if units is None else units, seed=seed)
        options = self.run.read().recipe.get("metrics", {})
        fit_labels = permuted_labels(queries.labels, seed) if self.permuted else None
        return FoldSearch(
            queries, gallery, folds, ranked.similarity, self.device, options=options, fit_labels=fit_labels
        )

    def values(self, ranked: RankedLayer, metric: str = "R@1") -> QueryValues:
        """The values of all queries in the whole gallery."""
        options = self.run.read().recipe.get("metrics", {})
        with self.opened(ranked) as (queries, gallery):
            return query_values_of(
                queries,
                gallery,
                ranked.similarity,
                metric=metric,
                rules=self.rules,
                options=options,
                memory=self.memory,
            )

    def _read_index(self, split: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        labels, ids = self.run.feature_head(self.epoch, split).rows
        return labels.astype(np.int64), ids


def whitening_fits(  # noqa: PLR0913 - the features and their folds
    run: Run,
    epoch: int,
    split: str,
    layer: LayerKey,
    folds: NDArray[np.int64],
    device: torch.device,
    *,
    learned: bool,
    on_all: bool = False,
    most: int = MOST_DIMENSIONS,
) -> FoldProjections | None:
    """Partial or learned whitening of a layer's stored features, without each fold and on all, once for a run.

    Args:
        folds: (N,) the fold of each image that is searched for.
        learned: whether it is learned whitening.
        on_all: whether it is fitted on all images alone, which is not kept.
        most: axes; all where there are fewer.

    Returns:
        None where it does not suit the layer.
    """
    key, kept = (epoch, split, layer, folds.tobytes(), device, learned, most), run.fold_fits
    if not on_all and key in kept:
        stored: FoldProjections | None = kept[key]
        return stored
    rows, values = query_rows(run, epoch, split), read_layer(run, epoch, split, layer)
    blocks = Blocks(torch.from_numpy(values if rows is None else values[rows]), device)
    without = [None, *([] if on_all else np.unique(folds).tolist())]
    if learned:
        labels, _ = query_index(run, epoch, split)
        fits = learned_whitening(blocks, labels, folds, without, most)
    else:
        fits = partial_whitening(blocks, folds, without, most)
    if not on_all:
        # All axes of 2,048 dimensions take 34 MB a fit, and only candidates of one layer, in a row, share them.
        wide = [other for other in list(kept) if other[-1] > MOST_DIMENSIONS]
        outdated = wide[:-1] if most > MOST_DIMENSIONS else []
        for other in outdated or list(kept)[: len(kept) + 1 - _MOST_FITS]:
            kept.pop(other, None)
        kept[key] = fits
    return fits
