"""Extracted features of a model's layers -> ranks and scores, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.data.splits import IN_GALLERY
from layerprobe.measure.analysis import Features, Scored, layer_notes, score_recall, searched, without_value
from layerprobe.measure.concatenated import side_by_side
from layerprobe.reductions.applying import Blocks, reduced
from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.reduction import NotApplicableError, Reduce
from layerprobe.values.keys import LayerKey, RankedLayer, members_of
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import SPLITS, Score, Subject
from layerprobe.workflow.probe.measures import Measures
from layerprobe.workflow.probe.reducing import FITTED_ON, TRANSDUCTIVE, InapplicableReduction
from layerprobe.workflow.probe.resampling import Resampling
from layerprobe.workflow.probe.scoring import further_scores, mean_of_draws, ranks_for
from layerprobe.workflow.python.loaders import Track
from layerprobe.workflow.run.reduction_draws import draws_of

EPOCH, SEED = 0, 0  # in scores: nothing is trained, and reductions draw from this seed

Place = tuple[str, RankedLayer]  # a split, and a layer as it is searched
Fit = Callable[[LayerKey, str, str], Reduce]  # layer, reduction and the split that it is fitted on


@dataclass(frozen=True, eq=False)
class SplitFeatures:
    """A split's images as the layers see them, in the order in which they came.

    Args:
        features: layer -> (N, D)
        digests: hash of each image and its class; none where nothing is stored.
    """

    name: str
    labels: NDArray[np.int64]
    features: Mapping[LayerKey, NDArray[np.float32]]
    batch_size: int
    digests: tuple[str, ...] = ()

    @property
    def ids(self) -> list[str]:
        """N names: `test/0`, `test/1` ..."""
        return [f"{self.name}/{row}" for row in range(len(self.labels))]

    def values(self, layer: LayerKey) -> NDArray[np.float32]:
        """(N, D) features of a layer; of `A+B` those of its members side by side."""
        return side_by_side([self.features[member] for member in members_of(layer, self.features)])

    def on(self, device: torch.device, layer: LayerKey) -> Features:
        """A layer's features as they are searched where nothing is done to them."""
        return Features(torch.from_numpy(self.values(layer)).to(device), self.labels, self.ids)


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found, by split and layer as it is searched.

    Args:
        scores: in the order of rows.
        ranks: those that there are; of a mean over draws those of each draw.
        values: metric -> what each query adds to it, where it is their mean and not R@K.
        features: (N, D') what a reduction made; of galleries too.
        refused: the reductions that layers could not take, by what they were fitted on.
    """

    scores: Sequence[Score]
    ranks: Mapping[Place, Ranks]
    reasons: Mapping[Place, str]
    values: Mapping[Place, Mapping[str, NDArray[np.float64]]]
    features: Mapping[Place, NDArray[Any]]
    refused: Sequence[InapplicableReduction]


@dataclass(frozen=True, eq=False)
class _Hit:
    """What a search of a split by one layer found.

    Args:
        ranks: None where there are none.
        features: split -> (N, D') of the queries and the gallery, where they are reduced.
    """

    ranked: RankedLayer
    ranks: Ranks | None
    reason: str
    recalls: Scored
    further: Scored
    features: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class LayerSearch:
    """How layers are searched.

    Args:
        device: where features are reduced and ranked.
    """

    run: str
    experiment: str
    splits: Mapping[str, SplitFeatures]
    measures: Measures
    device: torch.device

    def found(self, layers: Sequence[RankedLayer], track: Track[RankedLayer]) -> Found:
        """Search all splits that are to be searched for."""
        scores: list[Score] = []
        hits: dict[Place, _Hit] = {}
        refused: dict[InapplicableReduction, None] = {}
        resampling = Resampling({name: split.labels for name, split in self.splits.items()})
        fit = cache(self._fitted)
        for split in (name for name in self.splits if name in SPLITS):
            scored = []
            for ranked in track(layers, f"ranking {split}"):
                try:
                    draws = self._search_each(split, draws_of(ranked), fit)
                except NotApplicableError as error:
                    refused[InapplicableReduction(ranked.layer, ranked.reduction, error.message, error.fix)] = None
                    continue
                hits |= {(split, hit.ranked): hit for hit in draws}
                scored.append(self._scored(split, ranked, draws))
            scores += resampling.scores(split, scored)
        return Found(
            scores,
            {place: hit.ranks for place, hit in hits.items() if hit.ranks is not None},
            {place: hit.reason for place, hit in hits.items() if hit.ranks is None},
            {place: hit.further.values for place, hit in hits.items()},
            {(split, hit.ranked): values for hit in hits.values() for split, values in hit.features.items()},
            list(refused),
        )

    def _fitted(self, layer: LayerKey, reduction: str, fitted_on: str) -> Reduce:
        values = self.splits[fitted_on].on(self.device, layer).values
        return parse_chain(reduction).fit(Blocks(values, self.device), values.shape[1], seed=SEED)

    def _features(self, split: str, ranked: RankedLayer, fit: Fit) -> dict[str, Features]:
        """Those of a split and, where that is another, of what it is searched in, reduced."""
        gallery, chain = gallery_of(split, self.splits), parse_chain(ranked.reduction)
        found = {name: self.splits[name].on(self.device, ranked.layer) for name in (split, gallery) if name}
        if not chain.parts:
            return found
        of_train = chain.fits_on_train
        reduce = fit(ranked.layer, ranked.reduction, FITTED_ON if of_train else gallery or split)
        return {
            name: replace(raw, values=reduced(Blocks(raw.values, self.device), reduce, len(raw.labels)))
            for name, raw in found.items()
        }

    def _search_each(self, split: str, draws: Sequence[RankedLayer], fit: Fit) -> list[_Hit]:
        # A mean of draws has what is a mean over the queries.
        measures = self.measures if len(draws) == 1 else self.measures.of_queries
        return [self._search(split, draw, fit, measures) for draw in draws]

    def _search(self, split: str, ranked: RankedLayer, fit: Fit, measures: Measures) -> _Hit:
        features = self._features(split, ranked, fit)
        queries, gallery = features[split], features.get(gallery_of(split, self.splits) or "")
        of_reduced = parse_chain(ranked.reduction).parts
        kept = {name: _array(each) for name, each in features.items()} if of_reduced else {}
        ranks, reason = ranks_for(measures, queries, gallery, ranked.similarity)
        if ranks is None:
            return _Hit(ranked, None, reason, Scored(), Scored(), kept)
        subject, given = self._subject(split, ranked), searched(queries, gallery, ranked.similarity, ranks)
        further = further_scores(measures, given, subject, layer_notes(ranks))
        return _Hit(ranked, ranks, "", score_recall(ranks, subject, measures.ks), further, kept)

    def _scored(self, split: str, ranked: RankedLayer, draws: Sequence[_Hit]) -> Scored:
        """The scores of a layer, from its draws or its only search."""
        subject, names = self._subject(split, ranked), self.measures.names
        for hit in draws:
            if hit.ranks is None:
                return Scored(without_value(names, subject, len(self.splits[split].labels), hit.reason))
        found = [hit.recalls + hit.further for hit in draws]
        return found[0] if len(found) == 1 else mean_of_draws(subject, found, names)

    def _subject(self, split: str, ranked: RankedLayer) -> Subject:
        notes = (TRANSDUCTIVE,) if parse_chain(ranked.reduction).on_gallery else ()
        return Subject(self.run, self.experiment, SEED, EPOCH, split, ranked, notes)


def _array(features: Features) -> NDArray[Any]:
    return torch.as_tensor(features.values).cpu().numpy()


def gallery_of(split: str, splits: Mapping[str, object]) -> str | None:
    """The split that a split is searched in, where that is another."""
    return gallery if (gallery := IN_GALLERY.get(split)) in splits else None
