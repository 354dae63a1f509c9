"""Scores of an epoch: stored ranks if valid, else new ones, and the requested metrics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.analysis import (
    Scored,
    layer_notes,
    prepare_retrieval,
    rank,
    score_metric,
    score_recall,
    score_thinned,
    without_value,
)
from layerprobe.metrics.metric import means_of
from layerprobe.ranking.ranks import RESOLVE_ALL_BELOW
from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.system.errors import NotFiniteError
from layerprobe.values.layers import NO_REDUCTION, RankedLayer
from layerprobe.values.retrieval import Classifier, Ranks
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.probe.measures import Measures
from layerprobe.workflow.probe.searches import Searches
from layerprobe.workflow.probe.selection import Resampling
from layerprobe.workflow.run.references import draws_of


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores layers of one run from its stored features."""

    searches: Searches
    measures: Measures
    resampling: Resampling

    def reads_features(self, epoch: int, split: str, layers: Sequence[RankedLayer]) -> bool:
        """Whether stored ranks do not suffice to score some layers."""
        if self.measures.metrics:
            return True
        stored = self.searches.read(epoch, split)
        draws = (draw for ranked in layers for draw in draws_of(ranked))
        return not all(draw in stored and self._holds(stored[draw]) for draw in draws)

    def scores(self, epoch: int, split: str, layers: Sequence[RankedLayer]) -> Generator[Scored]:
        """Score layers of an epoch and split one after the other, and keep their ranks and the values of queries.

        Args:
            epoch: 0 = before any step.
        """
        key_of, stored = self.searches.key_of(epoch, split), self.searches.read(epoch, split)
        entries = dict(stored)
        try:
            for ranked in layers:
                scored, layer_entries = self.layer(self.searches.subject(epoch, split, ranked), key_of, entries)
                entries |= layer_entries
                yield scored
        finally:
            if entries != stored:
                self.searches.write(epoch, split, entries)

    def layer(
        self,
        subject: Subject,
        key_of: Callable[[RankedLayer], store.RankKey],
        stored: Mapping[RankedLayer, store.RankEntry],
    ) -> tuple[Scored, dict[RankedLayer, store.RankEntry]]:
        """Score a layer, and return with the scores the rank entries of the layer, or of each of its draws."""
        draws = [self.searches.subject(subject.epoch, subject.split, draw) for draw in draws_of(subject.ranked)]
        try:
            entries = {draw.ranked: self._rank(draw, key_of(draw.ranked), stored.get(draw.ranked)) for draw in draws}
        except NotApplicableError as error:
            return Scored(refused=error), {}
        return self._score(subject, draws, entries), entries

    def _score(
        self, subject: Subject, members: Sequence[Subject], entries: dict[RankedLayer, store.RankEntry]
    ) -> Scored:
        """The scores of a layer, or the mean over its draws. Changes `entries`: values of queries are added to them."""
        scored = []
        # A mean of draws has the metrics that are means over the queries.
        measures = self.measures if len(members) == 1 else self.measures.of_queries
        for member in members:
            entry = entries[member.ranked]
            if entry.ranks is None:
                count = len(self.searches.features.dataset.splits[subject.split])
                return Scored(without_value(self.measures.names, subject, count, entry.invalid))
            recalls = score_recall(entry.ranks, member, measures.ks)
            further = self._score_thinned(member, entry.ranks) + self._score_metrics(member, entry.ranks, measures)
            entries[member.ranked] = _add_values(entry, further.values)
            scored.append(recalls + further)
        return scored[0] if len(scored) == 1 else _mean_of_draws(subject, scored, self.measures.names)

    def _rank(self, subject: Subject, key: store.RankKey, entry: store.RankEntry | None) -> store.RankEntry:
        """A stored entry that is valid for the requested K, or a new one."""
        if entry and self._holds(entry):
            return entry
        epoch, split, ranked, memory = subject.epoch, subject.split, subject.ranked, self.measures.memory
        ranks, invalid = None, ""
        try:
            with self.searches.reduced.opened(epoch, split, ranked, memory) as (queries, gallery):
                # Every count of a small gallery: a further K costs nothing then.
                is_small = len((gallery or queries).labels) < RESOLVE_ALL_BELOW
                ranks = rank(
                    queries,
                    gallery,
                    ranked.similarity,
                    ks=None if is_small else self.measures.exact,
                    previous_ranks=entry.ranks if entry else None,
                    memory=memory,
                    rules=self.searches.rules(split),
                )
        except NotFiniteError as error:  # in these features, or in those that a reduction is fitted on
            invalid = f"NaN ({error.rows} rows)"
        return store.RankEntry(key, ranks, invalid, values=entry.values if entry and ranks else {})

    def _holds(self, entry: store.RankEntry) -> bool:
        """Whether stored ranks are exact for the requested K, or there are none to be had."""
        return entry.ranks is None or not entry.ranks.open(self.measures.exact).any()

    def _score_thinned(self, subject: Subject, ranks: Ranks) -> Scored:
        size = self.measures.gallery_size
        if size is None:
            return Scored()
        return score_thinned(ranks, subject, self.measures.ks, size, self.searches.items(subject.split))

    def _score_metrics(self, subject: Subject, ranks: Ranks, measures: Measures) -> Scored:
        if not measures.metrics:
            return Scored()
        with self.searches.reduced.opened(subject.epoch, subject.split, subject.ranked, None) as (queries, gallery):
            rules = self.searches.rules(subject.split)
            retrieval = replace(
                prepare_retrieval(queries, gallery, subject.ranked.similarity, ranks, rules),
                classifier=self._classifier(subject, int(queries.values.shape[1])),
            )
            notes = layer_notes(ranks)
            scored = (score_metric(metric, names, retrieval, subject, notes) for metric, names in measures.metrics)
            return sum(scored, Scored())

    def _classifier(self, subject: Subject, dim: int) -> Classifier | None:
        """The classifier that was trained on the searched layer, which is not reduced."""
        trained, ranked = self.searches.trained, subject.ranked
        if trained is None or ranked.reduction != NO_REDUCTION:
            return None
        return trained.classifier(subject.epoch, ranked.layer, dim)


def _mean_of_draws(subject: Subject, draws: Sequence[Scored], names: Sequence[str]) -> Scored:
    """The scores of a layer whose reduction is a mean of several draws: the mean over these, query by query.

    Args:
        draws: the scores of each, at least two.
    """
    count = draws[0].scores[0].n
    scores: list[Score] = []
    values: dict[str, NDArray[np.float64]] = {}
    for name in names:
        draw_scores = [score for scored in draws for score in scored.scores if score.metric == name]
        notes = dict.fromkeys(note for score in draw_scores for note in score.notes if note not in subject.notes)
        if all(name in scored.values for scored in draws):
            values[name] = np.mean([scored.values[name] for scored in draws], axis=0)
            scores.append(subject.score(name, means_of(values)[name], count, [f"mean of {len(draws)} draws", *notes]))
        else:
            reasons = notes or [f"left out of a mean of {len(draws)} draws: {name} is no mean over the queries"]
            scores.append(subject.score(name, None, count, [*reasons]))
    return Scored(scores, values)


def _add_values(entry: store.RankEntry, values: Mapping[str, NDArray[np.float64]]) -> store.RankEntry:
    """Add values of queries to an entry; the same entry where it has them all, so that nothing is written.

    Args:
        values: metric -> (Q,).
    """
    stored = entry.values
    if all(name in stored and np.array_equal(stored[name], new, equal_nan=True) for name, new in values.items()):
        return entry
    return replace(entry, values={**stored, **values})
