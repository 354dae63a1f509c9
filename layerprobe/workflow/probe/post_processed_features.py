"""Stored features of layers: opened, post-processed by maps that are fitted once, and checked."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.analysis import Features
from layerprobe.post_processing.applying import Blocks, PostProcessedRows, process_blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.system.errors import BusyError, DataError
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer, members_of
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.classifiers import RunClassifier, fit_chain
from layerprobe.workflow.run.memory_run import MemoryRun
from layerprobe.workflow.run.opened_run import table_of, values_of
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    import torch

_ON_DISK = 0  # bytes of features that are read at once: none, they are post-processed block by block
_MAPS = 8  # that are kept: the draws of post-processing, which take turns on each split

# Epoch, split, layer, and the bytes above which features stay on disk (None: none do) -> the raw features.
OpenLayer = Callable[[int, str, LayerKey, int | None], contextlib.AbstractContextManager[Features]]


@dataclass(frozen=True, eq=False)
class PostProcessedFeatures:
    """The post-processed features of a run's layers.

    A map that is fitted on training features is fitted once for all splits, and one that is fitted on a gallery once
    for each gallery, as long as the splits of a layer are requested in a row.

    Args:
        gallery_of: split -> the split that its images are searched in.
        fitted_on: the split that maps are fitted on, unless on a gallery.
        permuted: whether maps are fitted with the classes permuted over the images: see `permuted_labels`.
        query_rows: epoch and split -> rows of its images that are searched for; None for all.
        post_processed: whether `open_layer` gives features that are post-processed already.
    """

    open_layer: OpenLayer
    gallery_of: Callable[[str], str]
    seed: int
    device: torch.device
    trained: RunClassifier | None = None
    fitted_on: str = FITTED_ON
    permuted: bool = False
    query_rows: Callable[[int, str], NDArray[np.int64] | None] = lambda *_: None
    post_processed: bool = False

    @contextlib.contextmanager
    def opened(
        self, epoch: int, split: str, ranked: RankedLayer, memory: int | None = None
    ) -> Iterator[tuple[Features, Features | None]]:
        """The features of the queries and of the gallery; None for the queries themselves.

        Args:
            memory: bytes of features above which they stay on disk, and are post-processed as they are read; None: none
                do.
        """
        names, rows = dict.fromkeys((split, self.gallery_of(split))), self.query_rows(epoch, split)
        with contextlib.ExitStack() as stack:
            opened = [self._open(epoch, split, name, ranked, memory) for name in names]
            queries, *gallery = [stack.enter_context(features) for features in opened]
            if rows is None:
                yield queries, gallery[0] if gallery else None
            else:
                yield queries.of_rows(rows), gallery[0] if gallery else queries

    def layer(self, epoch: int, split: str, ranked: RankedLayer, *, searched: str | None = None) -> Features:
        """A layer's features of a split, in memory.

        Args:
            searched: another split, whose features take the map that those of `split` are searched by.
        """
        with self._open(epoch, split, searched or split, ranked, None) as features:
            return features

    def _open(
        self, epoch: int, split: str, name: str, ranked: RankedLayer, memory: int | None
    ) -> contextlib.AbstractContextManager[Features]:
        """The features of a split, or of its gallery, by the map that its images are searched by."""
        if self.post_processed or not parse_chain(ranked.post_processing).parts:
            return self.open_layer(epoch, name, ranked.layer, memory)
        return self._post_process(self.map_of(epoch, split, ranked), epoch, name, ranked.layer, memory)

    def map_of(self, epoch: int, split: str, ranked: RankedLayer) -> FittedStep:
        """The fitted map that the images of a split, and those of its gallery, are searched by."""
        chain = parse_chain(ranked.post_processing)
        # What is not fitted takes only the dimensions, and no training features need be there.
        fitted_on = self.fitted_on if chain.fits_on_train else self.gallery_of(split)
        return self._fit_once(chain.text, epoch, fitted_on, ranked.layer)

    @functools.cached_property
    def _fit_once(self) -> Callable[[str, int, str, LayerKey], FittedStep]:
        return functools.lru_cache(maxsize=_MAPS)(self._fit)

    def _fit(self, post_processing: str, epoch: int, fitted_on: str, layer: LayerKey) -> FittedStep:
        chain = parse_chain(post_processing)
        with self.open_layer(epoch, fitted_on, layer, _ON_DISK) as features:
            if self.permuted:
                features = replace(features, labels=permuted_labels(features.labels, self.seed))
            return fit_chain(
                chain, features, self.device, seed=self.seed, epoch=epoch, layer=layer, trained=self.trained
            )

    @contextlib.contextmanager
    def _post_process(
        self, post_process: FittedStep, epoch: int, split: str, layer: LayerKey, memory: int | None
    ) -> Iterator[Features]:
        with self.open_layer(epoch, split, layer, _ON_DISK) as features:
            rows = PostProcessedRows(features.values, post_process, self.device)
            if memory is not None and rows.dtype.itemsize * math.prod(rows.shape) > memory:
                yield replace(features, values=rows)
            else:
                values = process_blocks(Blocks(features.values, self.device), post_process, len(features.labels))
                yield replace(features, values=values)


def stored_features(  # noqa: PLR0913 - the run, and how its maps are fitted
    run: Run,
    gallery_of: Callable[[str], str],
    device: torch.device,
    trained: RunClassifier | None = None,
    *,
    fitted_on: str = FITTED_ON,
    permuted: bool = False,
) -> PostProcessedFeatures:
    """The features in a run's files, with the labels and ids that stand there; no data set is read."""
    open_layer, seed = functools.partial(_open_stored, run, device), run.read().seed
    rows = functools.partial(query_rows, run)
    return PostProcessedFeatures(open_layer, gallery_of, seed, device, trained, fitted_on, permuted, rows)


def query_rows(run: Run, epoch: int, split: str) -> NDArray[np.int64] | None:
    """Rows of a split's stored features whose images were searched for by its ranks; None for all, or without ranks."""
    with contextlib.suppress(DataError, BusyError):
        ids, every = run.ranks(epoch, split).rows[1], run.feature_head(epoch, split).ids
        if len(ids) < len(every):
            searched = {*ids}
            places = {name: row for row, name in enumerate(every) if name in searched}
            if len(places) == len(searched):
                return np.array([places[name] for name in ids], np.int64)
    return None


def query_index(run: Run, epoch: int, split: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Classes and names of the images of a split's stored features that were searched for."""
    (labels, ids), rows = run.feature_head(epoch, split).rows, query_rows(run, epoch, split)
    if rows is None:
        return labels.astype(np.int64), ids
    return labels[rows].astype(np.int64), tuple(ids[row] for row in rows.tolist())


def permuted_labels(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The classes of images in a random order: each keeps its number of images."""
    return np.random.default_rng(seed).permutation(labels)


@contextlib.contextmanager
def _open_stored(  # noqa: PLR0913 - as OpenLayer, of a run
    run: Run, device: torch.device, epoch: int, split: str, layer: LayerKey, memory: int | None
) -> Iterator[Features]:
    import torch

    labels, ids = run.feature_head(epoch, split).rows
    with run.open_features(epoch, split) as file:
        table = table_of(file, layer)
        if memory is not None and 4 * math.prod(table.shape) > memory:
            yield Features(table, labels.astype(np.int64), ids)
        else:
            values = torch.from_numpy(values_of(file, layer))
            yield Features(values.to(device), labels.astype(np.int64), ids)


def are_stored(run: Run, epoch: int, split: str, gallery: str, ranked: RankedLayer) -> bool:
    """Whether the features that a layer's ranks were made from and its map was fitted on are stored.

    Args:
        gallery: the split that `split` is searched in.
    """
    if isinstance(run, MemoryRun):  # its ranks, if any, are of its features
        return bool(members_of(ranked.layer, run.feature_head(epoch, split).dims))
    with contextlib.suppress(DataError, BusyError):
        if ranked not in run.ranks(epoch, split).groups:  # `choose` fitted it within folds: the layer itself is ranked
            ranked = replace(ranked, post_processing=NO_POST_PROCESSING, similarity=run.read().similarity)
    chain = parse_chain(ranked.post_processing)
    fitted_on = gallery if chain.on_gallery else FITTED_ON
    if chain.needs_classifier and not (run.checkpoint_file(epoch).exists() and run.has_features(epoch, fitted_on)):
        return False
    return (
        is_made_from(run, epoch, split, split, ranked)
        and (gallery == split or is_made_from(run, epoch, split, gallery, ranked))
        and is_fitted_on(run, epoch, split, fitted_on, ranked)
    )


def is_made_from(run: Run, epoch: int, split: str, feature_split: str, ranked: RankedLayer) -> bool:
    """Whether ranks of a layer were made from the stored features of `feature_split`: the split, or its gallery."""
    with contextlib.suppress(DataError, BusyError):
        side: Literal["queries", "gallery"] = "queries" if feature_split == split else "gallery"
        return store.is_made_from(run.ranks(epoch, split), run.feature_head(epoch, feature_split), ranked, side)
    return False


def is_fitted_on(run: Run, epoch: int, split: str, fitted_on: str, ranked: RankedLayer) -> bool:
    """Whether the map by which a layer was ranked was fitted on the stored features of a split, or on nothing."""
    training = None
    with contextlib.suppress(DataError, BusyError):
        training = run.feature_head(epoch, fitted_on)
    with contextlib.suppress(DataError, BusyError):
        return store.is_fitted_on(run.ranks(epoch, split), training, ranked)
    return False
