"""Scores of an epoch: stored ranks where they hold, new ones where they do not, and the metrics asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from layerprobe import store
from layerprobe.analysis import (
    Features,
    layer_notes,
    rank,
    score_metric,
    score_recall,
    searched,
    without_value,
)
from layerprobe.errors import NotFiniteError
from layerprobe.keys import NO_REDUCTION, LayerKey, RankedLayer
from layerprobe.metrics.recall import chance_recall
from layerprobe.ranking.ranks import ENGINE, RESOLVE_ALL_BELOW
from layerprobe.ranking.vectors import TIE_WINDOW
from layerprobe.registry import REDUCTIONS, load
from layerprobe.retrieval import Classifier, Ranks, Retrieval, SearchRules
from layerprobe.scores import Score, Subject
from layerprobe.workflow.features import RunFeatures
from layerprobe.workflow.measures import Measures
from layerprobe.workflow.selection import FITTED_ON


def ranks_for(  # noqa: PLR0913 - what is searched, by which rules, and what is known of it
    measures: Measures,
    queries: Features,
    gallery: Features | None,
    similarity: str,
    known: Ranks | None = None,
    rules: SearchRules | None = None,
) -> tuple[Ranks | None, str]:
    """Ranks that are exact for the K to be measured, or None and the reason why there are none.

    Args:
        measures: K, and the memory that the search may take.
        queries: searched for in `gallery`, or among themselves where that is None.
        gallery: what is searched.
        similarity: cosine, dot or euclidean.
        known: ranks of the same features by the same rules that may be exact for fewer K.
        rules: what is right, or taken out, where the class does not say; None: the classes alone.
    """
    # Every count of a small gallery: a further K costs nothing then.
    few = len((gallery or queries).labels) < RESOLVE_ALL_BELOW
    ks = None if few else measures.ks
    try:
        return rank(queries, gallery, similarity, ks=ks, known=known, memory=measures.memory, rules=rules), ""
    except NotFiniteError as error:
        return None, f"NaN ({error.rows} rows)"


def further_scores(measures: Measures, given: Retrieval, subject: Subject, notes: Sequence[str]) -> list[Score]:
    """The scores of a layer beside Recall@K.

    Args:
        measures: the metrics.
        given: the layer.
        subject: whose scores they are.
        notes: what is to be said of every number of this layer.
    """
    found = [score_metric(metric, names, given, subject, notes) for metric, names in measures.metrics]
    return [score for of_metric in found for score in of_metric]


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores layers of one run from its stored features.

    Args:
        features: of the run.
        measures: what is measured.
        experiment: of the run.
        seed: of the run.
        device: where it is computed.
        classifier: gives the classifier trained on a layer at an epoch, or None.
    """

    features: RunFeatures
    measures: Measures
    experiment: str
    seed: int
    device: torch.device
    classifier: Callable[[int, LayerKey], Classifier | None]

    def scores(self, epoch: int, split: str, layers: Sequence[RankedLayer]) -> Iterator[list[Score]]:
        """Score layers of an epoch and split one after the other, and keep their ranks.

        Args:
            epoch: 0 = before any step.
            split: the queries'.
            layers: as they are to be searched.
        """
        shared = self._rank_key(epoch, split)

        def key_of(ranked: RankedLayer) -> store.RankKey:
            return replace(shared, reduction=self._fitted_on(epoch, ranked.reduction))

        path = self.features.run.rank_file(epoch, split)
        entries = store.read_ranks(path, key_of)
        before = dict(entries)
        try:
            for ranked in layers:
                subject = self._subject(epoch, split, ranked)
                entry = entries[ranked] = self._ranked(subject, key_of(ranked), entries.get(ranked))
                if entry.ranks is None:
                    count = len(self.features.dataset.splits[split])
                    yield without_value(self.measures.names, subject, count, entry.invalid)
                else:
                    yield [
                        *score_recall(entry.ranks, subject, self.measures.ks),
                        *self._further(subject, entry.ranks),
                    ]
        finally:
            if entries != before:
                images = self.features.dataset.splits[split]
                store.write_ranks(path, store.Rows(images.labels, images.ids), entries, chance=self._chance(split))

    def _gallery(self, split: str) -> str:
        return self.features.dataset.search_in.get(split, split)

    def _rules(self, split: str) -> SearchRules | None:
        return self.features.dataset.search_rules.get(split)

    def _chance(self, split: str) -> float | None:
        """Recall@1 of a random order; None where it follows from the classes alone."""
        rules, queries = self._rules(split), self.features.dataset.splits[split]
        if rules is None:
            return None
        if self._gallery(split) == split:
            return chance_recall(queries.labels, 1, rules=rules)
        gallery = self.features.dataset.splits[self._gallery(split)]
        return chance_recall(queries.labels, 1, gallery.labels, ids=queries.ids, gallery_ids=gallery.ids, rules=rules)

    def _rank_key(self, epoch: int, split: str) -> store.RankKey:
        """What the ranks of every layer must be made from, whatever is done to its features."""
        gallery = self._gallery(split)
        return store.RankKey(
            queries=self.features.key(epoch, split),
            gallery=None if gallery == split else self.features.key(epoch, gallery),
            search_sha256=self.features.search_sha256(split),
            tie_window=TIE_WINDOW,
            engine=ENGINE,
        )

    def _fitted_on(self, epoch: int, reduction: str) -> str:
        """What a reduction is fitted on, and with which seed; empty where nothing is fitted."""
        if reduction == NO_REDUCTION or FITTED_ON not in self.features.dataset.splits:
            return ""
        return f"{self.features.key(epoch, FITTED_ON)} seed {self.seed}"

    def _subject(self, epoch: int, split: str, ranked: RankedLayer) -> Subject:
        return Subject(
            run=self.features.run.name,
            experiment=self.experiment,
            seed=self.seed,
            epoch=epoch,
            split=split,
            ranked=ranked,
            notes=(*self.features.dataset.notes, *self.features.dataset.search_notes.get(split, ())),
        )

    def _ranked(self, subject: Subject, key: store.RankKey, entry: store.RankEntry | None) -> store.RankEntry:
        """A stored entry that holds for the K asked for, or a new one."""
        known = entry.ranks if entry else None
        if entry and (known is None or not known.open(self.measures.ks).any()):
            return entry
        memory = self.measures.memory
        with self._features(subject, memory) as (queries, gallery):
            similarity, rules = subject.ranked.similarity, self._rules(subject.split)
            ranks, invalid = ranks_for(self.measures, queries, gallery, similarity, known, rules)
        return store.RankEntry(key, ranks, invalid, values=entry.values if entry and ranks else {})

    def _further(self, subject: Subject, ranks: Ranks) -> list[Score]:
        if not self.measures.metrics:
            return []
        with self._features(subject, None) as (queries, gallery):
            given = replace(
                searched(queries, gallery, subject.ranked.similarity, ranks, self._rules(subject.split)),
                classifier=self.classifier(subject.epoch, subject.ranked.layer),
            )
            return further_scores(self.measures, given, subject, layer_notes(ranks))

    @contextlib.contextmanager
    def _features(self, subject: Subject, memory: int | None) -> Iterator[tuple[Features, Features | None]]:
        """What is searched for and what it is searched in, reduced; None for itself."""
        layer, reduction = subject.ranked.layer, subject.ranked.reduction
        if reduction != NO_REDUCTION:
            memory = None  # only a tensor can be reduced
        reduce = load("reduction", REDUCTIONS, reduction)().fit(self._training(subject), seed=self.seed)
        with contextlib.ExitStack() as stack:
            opened = [
                stack.enter_context(self.features.opened(subject.epoch, name, layer, self.device, memory))
                for name in dict.fromkeys((subject.split, self._gallery(subject.split)))
            ]
            queries, *others = (replace(part, values=reduce(part.values)) for part in opened)
            yield queries, others[0] if others else None

    def _training(self, subject: Subject) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The layer's features of the training split, once something asks for them."""
        with self.features.opened(subject.epoch, FITTED_ON, subject.ranked.layer, self.device, None) as features:
            labels = torch.from_numpy(features.labels).to(self.device)
            yield torch.as_tensor(features.values), labels
