"""Features in memory -> ranks and scores of every layer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.analysis import Scored
from layerprobe.system.errors import NotFiniteError
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.layers import NO_REDUCTION, RankedLayer
from layerprobe.values.scores import Score
from layerprobe.workflow.probe.measures import Measures
from layerprobe.workflow.probe.reducing import InapplicableReduction
from layerprobe.workflow.probe.scoring import Scorer
from layerprobe.workflow.probe.searches import Searches
from layerprobe.workflow.probe.selection import resampling_of
from layerprobe.workflow.python.loaders import Track
from layerprobe.workflow.python.probe_inputs import EPOCH
from layerprobe.workflow.run.references import draws_of


@dataclass(frozen=True, eq=False)
class SearchResults:
    """What was measured of every split and layer.

    Args:
        scores: by split, then in the order of the layers.
        entries: split -> layer -> its ranks; of a mean over draws those of each draw.
        reduced: split or gallery -> layer -> (N, D') its features, where they are reduced.
    """

    scores: Sequence[Score]
    entries: Mapping[str, Mapping[RankedLayer, store.RankEntry]]
    reduced: Mapping[str, Mapping[RankedLayer, NDArray[Any]]]
    inapplicable: Sequence[InapplicableReduction]


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
    scorer = Scorer(searches, measures, resampling_of(dataset, dataset.searched, IntervalKind()))
    scored: dict[str, list[Scored]] = {split: [] for split in dataset.searched}
    entries: dict[str, dict[RankedLayer, store.RankEntry]] = {split: {} for split in dataset.searched}
    reduced: dict[str, dict[RankedLayer, NDArray[Any]]] = {split: {} for split in dataset.splits}
    inapplicable: dict[InapplicableReduction, None] = {}
    # One layer on all splits, then the next: a map fitted on train is fitted once.
    for ranked in track(layers, "ranking"):
        for split in dataset.searched:
            subject, key_of = searches.subject(epoch, split, ranked), searches.key_of(epoch, split)
            layer_scores, ranks = scorer.layer(subject, key_of, {})
            if error := layer_scores.refused:
                inapplicable[InapplicableReduction(ranked.layer, ranked.reduction, error.message, error.fix)] = None
                continue
            scored[split].append(layer_scores)
            entries[split] |= ranks
            for name in dict.fromkeys((split, searches.gallery(split))):
                reduced[name] |= _read_reduced(searches, epoch, name, ranked)
    scores = [score for split, analyses in scored.items() for score in scorer.resampling.scores(split, analyses)]
    return SearchResults(scores, entries, reduced, list(inapplicable))


def _read_reduced(searches: Searches, epoch: int, split: str, ranked: RankedLayer) -> dict[RankedLayer, NDArray[Any]]:
    """The reduced features of a layer, or of its draws; none where a map cannot be fitted on NaN or Inf."""
    features: dict[RankedLayer, NDArray[Any]] = {}
    for draw in draws_of(ranked) if ranked.reduction != NO_REDUCTION else ():
        with contextlib.suppress(NotFiniteError):
            features[draw] = torch.as_tensor(searches.reduced.layer(epoch, split, draw).values).cpu().numpy()
    return features
