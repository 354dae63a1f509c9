"""Extracted features of a model's layers -> ranks and scores, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.analysis import Features, Scored, layer_notes, score_recall, searched, without_value
from layerprobe.data.splits import IN_GALLERY
from layerprobe.keys import NO_REDUCTION, LayerKey, RankedLayer
from layerprobe.retrieval import Ranks
from layerprobe.scores import SPLITS, Score, Subject
from layerprobe.workflow.loaders import Track
from layerprobe.workflow.measures import Measures
from layerprobe.workflow.resampling import Resampling
from layerprobe.workflow.scoring import further_scores, ranks_for

EPOCH, SEED = 0, 0  # in scores: nothing is trained or drawn


@dataclass(frozen=True, eq=False)
class SplitFeatures:
    """A split's images as the layers see them, in the order in which they came.

    Args:
        name: of the split.
        labels: (N,)
        features: layer -> (N, D)
        batch_size: of the largest batch.
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

    def on(self, device: torch.device, layer: LayerKey) -> Features:
        """A layer's features as they are searched."""
        return Features(torch.from_numpy(self.features[layer]).to(device), self.labels, self.ids)


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found, by split and layer.

    Args:
        scores: in the order of rows.
        ranks: those that there are.
        reasons: why there are no others.
        values: metric -> what each query adds to it, where it is their mean and not R@K.
    """

    scores: Sequence[Score]
    ranks: Mapping[tuple[str, LayerKey], Ranks]
    reasons: Mapping[tuple[str, LayerKey], str]
    values: Mapping[tuple[str, LayerKey], Mapping[str, NDArray[np.float64]]]


@dataclass(frozen=True, eq=False)
class LayerSearch:
    """How layers are searched.

    Args:
        run: what the model is called in scores.
        experiment: likewise.
        splits: what was extracted.
        measures: what is measured.
        similarity: cosine, euclidean or dot.
        device: where features are ranked.
    """

    run: str
    experiment: str
    splits: Mapping[str, SplitFeatures]
    measures: Measures
    similarity: str
    device: torch.device

    def found(self, layers: Sequence[LayerKey], track: Track[LayerKey]) -> Found:
        """Search all splits that are to be searched for.

        Args:
            layers: in the order of rows.
            track: shows progress.
        """
        scores: list[Score] = []
        ranks, reasons, values = {}, {}, {}
        resampling = Resampling({name: split.labels for name, split in self.splits.items()})
        for split in (name for name in self.splits if name in SPLITS):
            scored = []
            for layer in track(layers, f"ranking {split}"):
                found, reason, recalls, further = self._search(split, layer)
                scored.append(recalls + further)
                values[split, layer] = further.values
                if found is None:
                    reasons[split, layer] = reason
                else:
                    ranks[split, layer] = found
            scores += resampling.scores(split, scored)
        return Found(scores, ranks, reasons, values)

    def _search(self, split: str, layer: LayerKey) -> tuple[Ranks | None, str, Scored, Scored]:
        """A layer's ranks, or None and the reason why it has none; its Recall@K and what else there is."""
        searched_in = gallery_of(split, self.splits)
        queries = self.splits[split].on(self.device, layer)
        gallery = self.splits[searched_in].on(self.device, layer) if searched_in else None
        ranked = RankedLayer(layer, NO_REDUCTION, self.similarity)
        subject = Subject(self.run, self.experiment, SEED, EPOCH, split, ranked)
        ranks, reason = ranks_for(self.measures, queries, gallery, self.similarity)
        if ranks is None:
            invalid = without_value(self.measures.names, subject, len(queries.labels), reason)
            return None, reason, Scored(invalid), Scored()
        given = searched(queries, gallery, self.similarity, ranks)
        further = further_scores(self.measures, given, subject, layer_notes(ranks))
        return ranks, "", score_recall(ranks, subject, self.measures.ks), further


def gallery_of(split: str, splits: Mapping[str, object]) -> str | None:
    """The split that a split is searched in, where that is another."""
    return gallery if (gallery := IN_GALLERY.get(split)) in splits else None
