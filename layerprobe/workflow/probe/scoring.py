"""Scores of an epoch: stored ranks if valid, else new ones, and the requested metrics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.analysis import (
    Features,
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
from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.values.retrieval import Classifier, Ranks, SearchRules
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.probe.measures import Measures
from layerprobe.workflow.probe.resampling import Resampling
from layerprobe.workflow.probe.searches import Searches
from layerprobe.workflow.run.reduction_draws import draws_of


def _ranks_for(  # noqa: PLR0913 - the items, the rules and the stored ranks
    measures: Measures,
    queries: Features,
    gallery: Features | None,
    similarity: str,
    known: Ranks | None = None,
    rules: SearchRules | None = None,
) -> tuple[Ranks | None, str]:
    """Ranks that are exact for the K to be measured, or None with the reason.

    Args:
        queries: searched for in `gallery`, or among themselves where that is None.
        rules: right and excluded items where the class does not decide; None: the classes decide.
    """
    # Every count of a small gallery: a further K costs nothing then.
    few = len((gallery or queries).labels) < RESOLVE_ALL_BELOW
    ks = None if few else measures.exact
    try:
        return rank(queries, gallery, similarity, ks=ks, previous_ranks=known, memory=measures.memory, rules=rules), ""
    except NotFiniteError as error:
        return None, _not_finite(error)


def _not_finite(error: NotFiniteError) -> str:
    return f"NaN ({error.rows} rows)"


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
        known = self.searches.read(epoch, split)
        draws = (draw for ranked in layers for draw in draws_of(ranked))
        return not all(draw in known and self._holds(known[draw]) for draw in draws)

    def scores(self, epoch: int, split: str, layers: Sequence[RankedLayer]) -> Generator[Scored]:
        """Score layers of an epoch and split one after the other, and keep their ranks and the values of queries.

        Args:
            epoch: 0 = before any step.
        """
        key_of, known = self.searches.key_of(epoch, split), self.searches.read(epoch, split)
        entries = dict(known)
        try:
            for ranked in layers:
                scored, made = self.layer(self.searches.subject(epoch, split, ranked), key_of, entries)
                entries |= made
                yield scored
        finally:
            if entries != known:
                self.searches.write(epoch, split, entries)

    def layer(
        self,
        subject: Subject,
        key_of: Callable[[RankedLayer], store.RankKey],
        known: Mapping[RankedLayer, store.RankEntry],
    ) -> tuple[Scored, dict[RankedLayer, store.RankEntry]]:
        """Score a layer; beside its scores its ranks and the values of queries, or those of each of its draws."""
        draws = [self.searches.subject(subject.epoch, subject.split, draw) for draw in draws_of(subject.ranked)]
        try:
            entries = {each.ranked: self._ranked(each, key_of(each.ranked), known.get(each.ranked)) for each in draws}
        except NotApplicableError as error:
            return Scored(refused=error), {}
        return self._scored(subject, draws, entries), entries

    def _scored(
        self, subject: Subject, members: Sequence[Subject], entries: dict[RankedLayer, store.RankEntry]
    ) -> Scored:
        """The scores of a layer, or the mean of those of its draws; what queries add is put into the entries."""
        found = []
        # A mean of draws has the metrics that are means over the queries.
        measures = self.measures if len(members) == 1 else self.measures.of_queries
        for member in members:
            entry = entries[member.ranked]
            if entry.ranks is None:
                count = len(self.searches.features.dataset.splits[subject.split])
                return Scored(without_value(self.measures.names, subject, count, entry.invalid))
            recalls = score_recall(entry.ranks, member, measures.ks)
            further = self._thinned(member, entry.ranks) + self._further(member, entry.ranks, measures)
            entries[member.ranked] = _with_values(entry, further.values)
            found.append(recalls + further)
        return found[0] if len(found) == 1 else _mean_of_draws(subject, found, self.measures.names)

    def _ranked(self, subject: Subject, key: store.RankKey, entry: store.RankEntry | None) -> store.RankEntry:
        """A stored entry that is valid for the requested K, or a new one."""
        if entry and self._holds(entry):
            return entry
        known = entry.ranks if entry else None
        memory = self.measures.memory
        similarity, rules = subject.ranked.similarity, self.searches.rules(subject.split)
        try:
            with self.searches.reduced.opened(subject.epoch, subject.split, subject.ranked, memory) as (
                queries,
                gallery,
            ):
                ranks, invalid = _ranks_for(self.measures, queries, gallery, similarity, known, rules)
        except NotFiniteError as error:  # in features that a reduction is fitted on, or binarises
            ranks, invalid = None, _not_finite(error)
        return store.RankEntry(key, ranks, invalid, values=entry.values if entry and ranks else {})

    def _holds(self, entry: store.RankEntry) -> bool:
        """Whether stored ranks are exact for the requested K, or there are none to be had."""
        return entry.ranks is None or not entry.ranks.open(self.measures.exact).any()

    def _thinned(self, subject: Subject, ranks: Ranks) -> Scored:
        size = self.measures.gallery_size
        if size is None:
            return Scored()
        return score_thinned(ranks, subject, self.measures.ks, size, self.searches.items(subject.split))

    def _further(self, subject: Subject, ranks: Ranks, measures: Measures) -> Scored:
        if not measures.metrics:
            return Scored()
        with self.searches.reduced.opened(subject.epoch, subject.split, subject.ranked, None) as (queries, gallery):
            rules = self.searches.rules(subject.split)
            given = replace(
                prepare_retrieval(queries, gallery, subject.ranked.similarity, ranks, rules),
                classifier=self._classifier(subject, int(queries.values.shape[1])),
            )
            notes = layer_notes(ranks)
            found = (score_metric(metric, names, given, subject, notes) for metric, names in measures.metrics)
            return sum(found, Scored())

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
    found: list[Score] = []
    values: dict[str, NDArray[np.float64]] = {}
    for name in names:
        same = [score for scored in draws for score in scored.scores if score.metric == name]
        notes = dict.fromkeys(note for score in same for note in score.notes if note not in subject.notes)
        if all(name in scored.values for scored in draws):
            values[name] = np.mean([scored.values[name] for scored in draws], axis=0)
            found.append(subject.score(name, means_of(values)[name], count, [f"mean of {len(draws)} draws", *notes]))
        else:
            reasons = notes or [f"left out of a mean of {len(draws)} draws: {name} is no mean over the queries"]
            found.append(subject.score(name, None, count, [*reasons]))
    return Scored(found, values)


def _with_values(entry: store.RankEntry, values: Mapping[str, NDArray[np.float64]]) -> store.RankEntry:
    """An entry with values of queries beside those it has; itself where it has them.

    Args:
        values: metric -> (Q,).
    """
    known = entry.values
    if all(name in known and np.array_equal(known[name], new, equal_nan=True) for name, new in values.items()):
        return entry
    return replace(entry, values={**known, **values})
