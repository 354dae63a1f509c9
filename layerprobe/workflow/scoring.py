"""Scores of an epoch: stored ranks where they hold, new ones where they do not, and the metrics asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from layerprobe import store
from layerprobe.analysis import SIMILARITY, Features, Metric, rank, score_metric, score_recall, searched, without_value
from layerprobe.data.splits import Dataset
from layerprobe.errors import NotFiniteError
from layerprobe.metrics.recall import recall_name
from layerprobe.ranking.ranks import ENGINE, RESOLVE_ALL_BELOW
from layerprobe.ranking.vectors import TIE_WINDOW
from layerprobe.retrieval import Classifier, Ranks
from layerprobe.runs import Run
from layerprobe.scores import Score

# Reductions come with a later issue; until then this is the one that every rank has.
_REDUCTION = "none"


@dataclass(frozen=True)
class Measures:
    """What is measured of each layer.

    Args:
        ks: K of Recall@K.
        metrics: each with those of its names that were asked for.
        memory: bytes that a ranking may take; features that are larger stay on disk.
    """

    ks: Sequence[int]
    metrics: Sequence[tuple[Metric, tuple[str, ...]]] = ()
    memory: int | None = None

    @property
    def names(self) -> list[str]:
        """Every metric asked for."""
        return [*map(recall_name, self.ks), *(name for _, names in self.metrics for name in names)]


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores layers of one run from its stored features.

    Args:
        run: it exists.
        dataset: the run's.
        key: what the features of an epoch and split must be made from.
        measures: what is measured.
        device: where it is computed.
        classifier: epoch and `layer@pool` -> the classifier trained on that layer, if there is one.
    """

    run: Run
    dataset: Dataset
    key: Callable[[int, str], store.FeatureKey]
    measures: Measures
    device: torch.device
    classifier: Callable[[int, str], Classifier | None]

    def scores(self, epoch: int, split: str, rows: dict[str, Score]) -> Iterator[list[Score]]:
        """Score the layers of an epoch and split one after the other, and keep their ranks.

        Args:
            epoch: 0 = before any step.
            split: the queries'.
            rows: `layer@pool` -> what its rows share.
        """
        gallery, images = self.dataset.search_in.get(split, split), self.dataset.splits[split]
        made_from = self.key(epoch, split), None if gallery == split else self.key(epoch, gallery)
        key = store.RankKey(*made_from, TIE_WINDOW, ENGINE)
        path = self.run.ranks(epoch, split)
        entries = store.read_ranks(path, key)
        before = dict(entries)
        try:
            for layer, row in rows.items():
                place = (layer, _REDUCTION)
                entry = entries[place] = self._ranked(epoch, split, layer, entries.get(place))
                if entry.ranks is None:
                    yield without_value(self.measures.names, row, len(images), entry.invalid)
                else:
                    yield [
                        *score_recall(entry.ranks, row, self.measures.ks),
                        *self._further(epoch, split, layer, entry.ranks, row),
                    ]
        finally:
            if entries != before:
                store.write_ranks(path, key, store.Rows(images.labels, images.ids), entries)

    def _ranked(self, epoch: int, split: str, layer: str, entry: store.RankEntry | None) -> store.RankEntry:
        """A stored entry that holds for the K asked for, or a new one."""
        known = entry.ranks if entry else None
        if entry and (known is None or not known.open(self.measures.ks).any()):
            return entry
        with self._features(epoch, split, layer, self.measures.memory) as (queries, gallery):
            try:
                ranks = rank(
                    queries, gallery, ks=self._wanted(gallery or queries), known=known, memory=self.measures.memory
                )
            except NotFiniteError as error:
                return store.RankEntry(SIMILARITY, None, f"NaN ({error.rows} rows)")
        return store.RankEntry(SIMILARITY, ranks)

    def _wanted(self, searched: Features) -> Sequence[int] | None:
        """Every count of a small gallery: a further K costs nothing then."""
        return None if len(searched.labels) < RESOLVE_ALL_BELOW else self.measures.ks

    def _further(self, epoch: int, split: str, layer: str, ranks: Ranks, row: Score) -> list[Score]:
        if not self.measures.metrics:
            return []
        with self._features(epoch, split, layer, None) as (queries, gallery):
            given = replace(searched(queries, gallery, ranks), classifier=self.classifier(epoch, layer))
            return [
                score for metric, names in self.measures.metrics for score in score_metric(metric, names, given, row)
            ]

    @contextlib.contextmanager
    def _features(
        self, epoch: int, split: str, layer: str, memory: int | None
    ) -> Iterator[tuple[Features, Features | None]]:
        """A layer's features of a split and of the gallery that it is searched in; None for itself."""
        gallery = self.dataset.search_in.get(split, split)
        with contextlib.ExitStack() as stack:
            found = [
                self._part(stack, self.run.features(epoch, name), name, layer, memory)
                for name in dict.fromkeys((split, gallery))
            ]
            yield found[0], found[1] if len(found) > 1 else None

    def _part(self, stack: contextlib.ExitStack, path: Path, split: str, layer: str, memory: int | None) -> Features:
        images = self.dataset.splits[split]
        table = stack.enter_context(store.feature_table(path, layer))
        if memory is not None and 4 * table.shape[0] * table.shape[1] > memory:
            return Features(table, images.labels, images.ids)
        values = torch.from_numpy(store.read_features(path, layer)).to(self.device)
        return Features(values, images.labels, images.ids)
