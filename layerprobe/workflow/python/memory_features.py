"""Features of a model's layers in memory, searched and scored as those of runs are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe import store
from layerprobe.data.splits import IN_GALLERY, Dataset, Split
from layerprobe.hooks import Hook
from layerprobe.measure import extraction
from layerprobe.measure.analysis import Features, InapplicablePostProcessing, Scored, search_sha256
from layerprobe.measure.extraction import side_by_side
from layerprobe.post_processing.chain import parse_chain
from layerprobe.store import FeatureKey
from layerprobe.system.errors import DataError, NotFiniteError
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer, members_of
from layerprobe.values.scores import Score
from layerprobe.workflow.probe.identical_images import row_contents
from layerprobe.workflow.probe.measures import Measures
from layerprobe.workflow.probe.scoring import Scorer, Searches, with_intervals
from layerprobe.workflow.probe.selection import interval_units
from layerprobe.workflow.python.loaders import EPOCH, Batch, ProbeInputs, Track, image_digests
from layerprobe.workflow.run.references import draws_of
from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True, eq=False)
class SearchResults:
    """What was measured of every split and layer.

    Args:
        scores: by split, then in the order of the layers.
        entries: split -> layer -> its ranks; of a mean over draws those of each draw.
        post_processed: split or gallery -> layer -> (N, D') its features, where they are post-processed.
    """

    scores: Sequence[Score]
    entries: Mapping[str, Mapping[RankedLayer, store.RankEntry]]
    post_processed: Mapping[str, Mapping[RankedLayer, NDArray[Any]]]
    inapplicable: Sequence[InapplicablePostProcessing]


def search(
    searches: Searches,
    measures: Measures,
    layers: Sequence[RankedLayer],
    track: Track[RankedLayer],
    *,
    epoch: int = EPOCH,
) -> SearchResults:
    """Rank and score layers on every split but galleries."""
    dataset = searches.features.dataset
    scorer = Scorer(searches, measures)
    entries: dict[str, dict[RankedLayer, store.RankEntry]] = {split: {} for split in dataset.searched}
    scored: dict[str, list[Scored]] = {split: [] for split in dataset.searched}
    post_processed: dict[str, dict[RankedLayer, NDArray[Any]]] = {split: {} for split in dataset.splits}
    inapplicable: dict[InapplicablePostProcessing, None] = {}
    scored_layers = scorer.score_splits(epoch, entries, layers)
    for ranked, scored_by_split in zip(track(layers, "ranking"), scored_layers, strict=True):
        for split, layer_scores in scored_by_split.items():
            if layer_scores.inapplicable:
                inapplicable[layer_scores.inapplicable] = None
                continue
            scored[split].append(layer_scores)
            for name in dict.fromkeys((split, searches.gallery(split))):
                post_processed[name] |= _read_post_processed(searches, epoch, name, ranked)
    units = interval_units(dataset, dataset.searched, None)
    scores: list[Score] = []
    for split, split_layers in scored.items():
        scores += with_intervals(split_layers, units=units[split], kind=IntervalKind())
    return SearchResults(scores, entries, post_processed, list(inapplicable))


def _read_post_processed(
    searches: Searches, epoch: int, split: str, ranked: RankedLayer
) -> dict[RankedLayer, NDArray[Any]]:
    """The post-processed features of a layer, or of its draws; none where a map cannot be fitted on NaN or Inf."""
    features: dict[RankedLayer, NDArray[Any]] = {}
    for draw in draws_of(ranked) if ranked.post_processing != NO_POST_PROCESSING else ():
        with contextlib.suppress(NotFiniteError):
            values = torch.as_tensor(searches.post_processed.layer(epoch, split, draw).values).cpu().numpy()
            number = parse_chain(draw.post_processing).number
            features[draw] = values if number == "bit" else values.astype(number, copy=False)
    return features


TRANSFORM = "as the loader gave it"


@dataclass(frozen=True, eq=False)
class SplitFeatures:
    """The features of a split's N images, in the order of the loader.

    Args:
        labels: (N,) the loader's: int64, or texts.
        features: layer -> (N, D)
        batch_size: of the largest batch.
        digests: hash of each image and its label; none where nothing is stored.
        contents: (N, 2) hash of each image; None where it is not known.
    """

    labels: NDArray[Any]
    features: Mapping[LayerKey, NDArray[np.float32]]
    batch_size: int
    digests: tuple[str, ...] = ()
    contents: NDArray[np.int64] | None = None

    def layer(self, layer: LayerKey) -> NDArray[np.float32]:
        """(N, D) features of a layer; of `A+B` those of its members side by side."""
        return side_by_side([self.features[member] for member in members_of(layer, self.features)])


def extract_features(
    module: nn.Module, hooks: Sequence[Hook], batches: Iterable[Batch], device: torch.device, *, hashed: bool
) -> SplitFeatures:
    """Run a split's batches through a module."""
    labels: list[NDArray[Any]] = []
    digests: list[str] = []
    contents: list[NDArray[np.int64]] = []

    def images() -> Iterator[Tensor]:
        for batch in batches:
            labels.append(batch.labels)
            digests.extend(image_digests(batch.images, batch.labels) if hashed else [])
            contents.append(row_contents(batch.images.detach().cpu().contiguous().view(torch.uint8).numpy()))
            yield batch.images

    feature_batches = list(extraction.extract(module, hooks, images(), device=device))
    features = {hook.key: np.concatenate([batch.pop(hook.key) for batch in feature_batches]) for hook in hooks}
    largest = max(map(len, labels))
    return SplitFeatures(np.concatenate(labels), features, largest, tuple(digests), np.concatenate(contents))


@dataclass(frozen=True, eq=False)
class MemoryFeatures:
    """The features of a model's layers on every split.

    Args:
        run: where they are stored; of a probe without a cache its folder is never made.
        splits: train, validation, test, gallery, in this order.
    """

    run: Run
    inputs: ProbeInputs
    splits: Mapping[str, SplitFeatures]

    @cached_property
    def dataset(self) -> Dataset:
        """The splits, with classes numbered from 0 and named by the loaders' labels; they have no images."""
        self._require_label_kind()
        classes = np.unique(np.concatenate([split.labels for split in self.splits.values()]))
        splits = {
            name: Split(
                name,
                np.searchsorted(classes, split.labels),
                tuple(f"{name}/{row}" for row in range(len(split.labels))),
                _no_image,
                digests=split.contents,
            )
            for name, split in self.splits.items()
        }
        search_in = {queries: gallery for queries, gallery in IN_GALLERY.items() if gallery in splits}
        return Dataset(splits, tuple(map(str, classes.tolist())), search_in)

    @property
    def labels(self) -> dict[str, NDArray[np.int64]]:
        """Split -> (N,) the loader's labels; of texts their numbers in sorted order over all splits."""
        return {
            name: split.labels if split.labels.dtype.kind == "i" else self.dataset.splits[name].labels
            for name, split in self.splits.items()
        }

    def _require_label_kind(self) -> None:
        """Check that labels are numbers in all splits, or texts in all."""
        by_kind = {split.labels.dtype.kind: name for name, split in self.splits.items()}
        if len(by_kind) > 1:
            problem = f"labels of the {by_kind['U']} loader are texts, those of the {by_kind['i']} loader numbers"
            raise DataError(problem, fix="Give the same in all loaders, as equal labels are one class")

    def precision(self, epoch: int, split: str) -> str:  # noqa: ARG002 - the caller's own
        """Float32, or what the caller's model computes in."""
        return ""

    def dtype(self, epoch: int, split: str) -> str:  # noqa: ARG002 - there is only one
        """As they are computed."""
        return ""

    def key(self, epoch: int, split: str) -> FeatureKey:
        """What the features of a split are made from."""
        inputs = self.inputs
        return FeatureKey(self.run.name, epoch, split, inputs.weights_sha256, TRANSFORM, inputs.in_order(split))

    def search_sha256(self, split: str) -> str:
        """Hash of what decides which items the images of a split may find."""
        queries, *gallery = map(self._relabel, dict.fromkeys((split, self.dataset.search_in.get(split, split))))
        return search_sha256(queries, gallery[0] if gallery else None)

    @contextlib.contextmanager
    def opened(
        self,
        epoch: int,  # noqa: ARG002 - there is only one
        split: str,
        layer: LayerKey,
        device: torch.device,
        memory: int | None,  # noqa: ARG002 - there is no disk to leave them on
    ) -> Iterator[Features]:
        """The features of a layer, on a device."""
        images = self._relabel(split)
        yield Features(torch.from_numpy(self.splits[split].layer(layer)).to(device), images.labels, images.ids)

    def _relabel(self, split: str) -> Split:
        """A split with the loader's labels: stored hashes and the draws of few-shot episodes depend on these."""
        return replace(self.dataset.splits[split], labels=self.labels[split])


def _no_image(_: int) -> NoReturn:
    raise ValueError("a probe from Python keeps no images")
