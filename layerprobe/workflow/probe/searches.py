"""Each split of a run as it is searched: its gallery, rules, key and features."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from layerprobe import store
from layerprobe.data.splits import Dataset
from layerprobe.measure.analysis import Features, ItemCounts
from layerprobe.metrics.recall import chance_recall
from layerprobe.ranking.ranks import ENGINE
from layerprobe.ranking.vectors import TIE_WINDOW
from layerprobe.recipe.recipe import Recipe
from layerprobe.reductions.chain import parse_chain
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import SearchRules
from layerprobe.values.scores import Subject
from layerprobe.workflow.probe.classifiers import RunClassifier, classifier_of
from layerprobe.workflow.probe.identical_images import identical_images
from layerprobe.workflow.probe.measures import count_items
from layerprobe.workflow.probe.reduced_features import ReducedFeatures
from layerprobe.workflow.probe.reducing import AFTER_RELU, FITTED_ON, TRANSDUCTIVE, fit_text
from layerprobe.workflow.run.features import RunFeatures
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    import torch


class LayerFeatures(Protocol):
    """The features of layers by epoch and split: those in the files of a run, or in memory."""

    @property
    def run(self) -> Run:
        """Where ranks are stored."""

    @property
    def dataset(self) -> Dataset:
        """The images of the splits."""

    def key(self, epoch: int, split: str) -> store.FeatureKey:
        """What the features of an epoch and split must be made from."""

    def search_sha256(self, split: str) -> str:
        """Hash of what decides which items the images of a split may find."""

    def opened(
        self, epoch: int, split: str, layer: LayerKey, device: torch.device, memory: int | None
    ) -> contextlib.AbstractContextManager[Features]:
        """The features of a layer, on a device, or left on disk where they are larger than the memory."""


@dataclass(frozen=True, eq=False)
class Searches:
    """The searches of a run: its stored features, and the rank files that they fill.

    Args:
        device: gives where features are put, when the first are read.
        trained: the classifier of the run's loss; None if there is none.
    """

    features: LayerFeatures
    experiment: str
    seed: int
    device: Callable[[], torch.device]
    trained: RunClassifier | None = None

    def gallery(self, split: str) -> str:
        """The split that a split's images are searched in."""
        return self.features.dataset.search_in.get(split, split)

    def rules(self, split: str) -> SearchRules | None:
        """What is right for a split's images, or taken out, where the class does not say."""
        return self.features.dataset.search_rules.get(split)

    def items(self, split: str) -> ItemCounts:
        """How many items each image of a split may find that are right, and how many that are wrong."""
        return count_items(self.features.dataset, split)

    def subject(self, epoch: int, split: str, ranked: RankedLayer) -> Subject:
        """What is scored, with the notes that every number of it has."""
        chain = parse_chain(ranked.reduction)
        notes = [TRANSDUCTIVE] if chain.on_gallery else []
        if chain.needs_classifier and self.trained is not None and self.trained.relu:
            notes.append(AFTER_RELU)
        return Subject(
            run=self.features.run.name,
            experiment=self.experiment,
            seed=self.seed,
            epoch=epoch,
            split=split,
            ranked=ranked,
            notes=(*notes, *self.features.dataset.notes, *self.features.dataset.search_notes.get(split, ())),
        )

    def key_of(self, epoch: int, split: str) -> Callable[[RankedLayer], store.RankKey]:
        """What the ranks of a layer must be made from."""
        gallery = self.gallery(split)
        shared = store.RankKey(
            queries=self.features.key(epoch, split),
            gallery=None if gallery == split else self.features.key(epoch, gallery),
            search_sha256=self.features.search_sha256(split),
            tie_window=TIE_WINDOW,
            engine=ENGINE,
        )
        return lambda ranked: replace(shared, reduction=self._fit_text(epoch, split, ranked.reduction))

    def read(self, epoch: int, split: str) -> dict[RankedLayer, store.RankEntry]:
        """The stored ranks that hold; empty if their file is absent or unreadable."""
        with store.stale_passed():
            return self.features.run.ranks(epoch, split).holding(self.key_of(epoch, split))
        return {}

    def stale(self, epoch: int, split: str) -> set[RankedLayer]:
        """The layers whose stored ranks hold no longer, and leave the file when it is written; empty likewise."""
        with store.stale_passed():
            return self.features.run.ranks(epoch, split).stale(self.key_of(epoch, split))
        return set()

    def write(self, epoch: int, split: str, entries: Mapping[RankedLayer, store.RankEntry]) -> None:
        """Store ranks, in place of all that are stored."""
        images, path = self.features.dataset.splits[split], self.features.run.rank_file(epoch, split)
        store.write_ranks(
            path,
            store.Rows(images.labels, images.ids),
            entries,
            chance=self._chance(split),
            identical=identical_images(self.features.dataset, split),
        )

    @functools.cached_property
    def reduced(self) -> ReducedFeatures:
        """The reduced features of layers."""
        device = self.device()

        def open_layer(
            epoch: int, split: str, layer: LayerKey, memory: int | None
        ) -> contextlib.AbstractContextManager[Features]:
            return self.features.opened(epoch, split, layer, device, memory)

        return ReducedFeatures(open_layer, self.gallery, self.seed, device, self.trained)

    def _chance(self, split: str) -> float | None:
        """Recall@1 of a random order; None where it follows from the classes alone."""
        rules, queries = self.rules(split), self.features.dataset.splits[split]
        if rules is None:
            return None
        if self.gallery(split) == split:
            return chance_recall(queries.labels, 1, rules=rules)
        gallery = self.features.dataset.splits[self.gallery(split)]
        return chance_recall(queries.labels, 1, gallery.labels, ids=queries.ids, gallery_ids=gallery.ids, rules=rules)

    def _fit_text(self, epoch: int, split: str, reduction: str) -> str:
        """What a reduction is fitted on, and with which seed it draws; empty where it does neither."""
        chain = parse_chain(reduction)
        fitted_on = self.gallery(split) if chain.on_gallery else FITTED_ON
        return fit_text(chain, lambda: self.features.key(epoch, fitted_on), self.seed)


def searches_of_run(features: RunFeatures, recipe: Recipe, device: Callable[[], torch.device]) -> Searches:
    """The searches of a single run, with the classifier of its loss."""
    run, train = features.run, features.dataset.splits.get(FITTED_ON)
    record = run.read()
    classifier = classifier_of(run, recipe, None if train is None else train.labels, device)
    return Searches(features, record.experiment, record.seed, device, classifier)
