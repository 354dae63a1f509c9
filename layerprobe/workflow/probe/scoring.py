"""Scores of an epoch: stored ranks if valid, else new ones, and the requested metrics with their intervals."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.data.splits import Dataset
from layerprobe.measure.analysis import (
    Features,
    InapplicablePostProcessing,
    Scored,
    layer_notes,
    prepare_retrieval,
    rank,
    rank_with_precision,
    score_metric,
    score_recall,
    score_thinned,
    without_value,
)
from layerprobe.metrics.metric import means_of
from layerprobe.metrics.precision import PrecisionAtPositives
from layerprobe.metrics.recall import chance_recall
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.ranking.ranks import ENGINE, RESOLVE_ALL_BELOW
from layerprobe.ranking.vectors import TIE_WINDOW
from layerprobe.recipe.recipe import Recipe
from layerprobe.statistics.units import intervals, unit_sums
from layerprobe.system.computing import with_float64
from layerprobe.system.errors import NotFiniteError
from layerprobe.values.intervals import FEWEST_UNITS, IntervalKind, SamplingUnits
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer
from layerprobe.values.retrieval import Classifier, Precision, Ranks, SearchRules
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.probe.chains import AFTER_RELU, FITTED_ON, fit_notes
from layerprobe.workflow.probe.classifiers import RunClassifier, classifier_of
from layerprobe.workflow.probe.identical_images import identical_images
from layerprobe.workflow.probe.measures import Measures, count_items
from layerprobe.workflow.probe.post_processed_features import PostProcessedFeatures
from layerprobe.workflow.run.features import RunFeatures
from layerprobe.workflow.run.references import draws_of
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.sample_fit import SampleFit

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    RankEntries = dict[RankedLayer, store.RankEntry]


class LayerFeatures(Protocol):
    """The features of layers by epoch and split: those in the files of a run, or in memory."""

    @property
    def run(self) -> Run:
        """Where ranks are stored."""

    @property
    def dataset(self) -> Dataset:
        """The images of the splits."""

    @property
    def dtype(self) -> Callable[[int, str], str]:
        """Epoch, split -> the type that features are stored as, as in `FeatureKey`."""

    @property
    def precision(self) -> Callable[[int, str], str]:
        """Epoch, split -> that of the network's products, as in `FeatureKey`."""

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
        sample: of features that are stored post-processed alone; None where layers' own are.
        trained_by: epoch -> how many processes trained which epochs, where the number changed; else empty.
    """

    features: LayerFeatures
    experiment: str
    seed: int
    device: Callable[[], torch.device]
    trained: RunClassifier | None = None
    sample: SampleFit | None = None
    trained_by: Callable[[int], str] = lambda _: ""

    def gallery(self, split: str) -> str:
        """The split that a split's images are searched in."""
        return self.features.dataset.search_in.get(split, split)

    def rules(self, split: str) -> SearchRules | None:
        """What is right for a split's images, or taken out, where the class does not say."""
        return self.features.dataset.search_rules.get(split)

    def subject(self, epoch: int, split: str, ranked: RankedLayer) -> Subject:
        """What is scored, with the notes that every number of it has."""
        chain = parse_chain(ranked.post_processing)
        notes = fit_notes(chain, split)
        notes += self.sample.notes(self.features.dataset, split) if self.sample else []
        if dtype := self.features.dtype(epoch, split):
            notes.append(f"stored as {dtype}")
        if precision := self.features.precision(epoch, split):
            notes.append(f"computed in {precision}")
        if trained_by := self.trained_by(epoch):
            notes.append(trained_by)
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

        def key(ranked: RankedLayer) -> store.RankKey:
            chain = parse_chain(ranked.post_processing)
            # What post-processing is fitted on, and with which seed it draws.
            fitted = [str(self.features.key(epoch, gallery if chain.on_gallery else FITTED_ON))] if chain.fits else []
            drawn = [f"seed {self.seed}"] if chain.fits or chain.draws else []
            return replace(shared, post_processing=" ".join([*fitted, *drawn]))

        return key

    def read(self, epoch: int, split: str) -> RankEntries:
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
        dataset, rules, chance = self.features.dataset, self.rules(split), None
        queries, gallery = dataset.search_of(split)
        if rules is not None and gallery is None:  # else it follows from the classes alone
            chance = chance_recall(queries.labels, 1, rules=rules)
        elif gallery is not None and (rules is not None or split in dataset.drawn):
            names = {"ids": queries.ids, "gallery_ids": gallery.ids}
            chance = chance_recall(queries.labels, 1, gallery.labels, rules=rules, **names)
        rows, identical = store.Rows(queries.labels, queries.ids), identical_images(dataset, split)
        path = self.features.run.rank_file(epoch, split)
        store.write_ranks(path, rows, entries, chance=chance, identical=identical)

    @functools.cached_property
    def post_processed(self) -> PostProcessedFeatures:
        """The post-processed features of layers."""
        device = with_float64(self.device())

        def open_layer(
            epoch: int, split: str, layer: LayerKey, memory: int | None
        ) -> contextlib.AbstractContextManager[Features]:
            return self.features.opened(epoch, split, layer, device, memory)

        def drawn_rows(epoch: int, split: str) -> NDArray[np.int64] | None:  # noqa: ARG001 - the same at every epoch
            return self.features.dataset.drawn.get(split)

        is_post_processed = self.sample is not None
        return PostProcessedFeatures(
            open_layer,
            self.gallery,
            self.seed,
            device,
            self.trained,
            query_rows=drawn_rows,
            post_processed=is_post_processed,
        )


def searches_of_run(features: RunFeatures, recipe: Recipe, device: Callable[[], torch.device]) -> Searches:
    """The searches of a single run, with the classifier of its loss."""
    run, train = features.run, features.dataset.splits.get(FITTED_ON)
    record = run.read()
    classifier = classifier_of(run, recipe, None if train is None else train.labels, device)
    return Searches(
        features, record.experiment, record.seed, device, classifier, features.sample, record.processes_note
    )


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores layers from the features of their searches.

    Args:
        share: of an epoch, split, layer and its stored ranks: the processes that are to rank it with this one, which
            now begin; None for this process alone.
    """

    searches: Searches
    measures: Measures
    share: Callable[[int, str, RankedLayer, Ranks | None], ProcessGroup | None] = lambda *_: None
    # Of layers that are ranked and not yet measured: their precision, where the search has given it.
    _precision: dict[tuple[int, str, RankedLayer], Precision] = field(default_factory=dict)

    def layers_to_read(self, epoch: int, split: str, layers: Sequence[RankedLayer]) -> set[LayerKey]:
        """The layers for which stored ranks do not suffice."""
        if self.measures.metrics:
            return {ranked.layer for ranked in layers}
        stored = self.searches.read(epoch, split)
        held = {draw for draw, entry in stored.items() if self._holds(entry)}
        return {ranked.layer for ranked in layers if not held.issuperset(draws_of(ranked))}

    def score_splits(
        self, epoch: int, stored: Mapping[str, RankEntries], layers: Sequence[RankedLayer]
    ) -> Iterator[dict[str, Scored]]:
        """Score layers one after the other, each on all splits, so that a map fitted on train is fitted once.

        Args:
            epoch: 0 = before any step.
            stored: split -> ranks that hold; those of the layers, and the values of their queries, are added.

        Yields:
            Of each layer, split -> its scores.
        """
        keys = {split: self.searches.key_of(epoch, split) for split in stored}
        for ranked in layers:
            yield {split: self._score(epoch, split, ranked, keys[split], stored[split]) for split in stored}

    def score_epoch(
        self, epoch: int, splits: Sequence[str], layers: Sequence[RankedLayer]
    ) -> Generator[dict[str, Scored]]:
        """As `score_splits`; what the rank files lack is added to them, however the scoring ends."""
        stored = {split: self.searches.read(epoch, split) for split in splits}
        entries = {split: dict(ranks) for split, ranks in stored.items()}
        try:
            yield from self.score_splits(epoch, entries, layers)
        finally:
            for split in splits:
                if entries[split] != stored[split]:
                    self.searches.write(epoch, split, entries[split])

    def _score(
        self,
        epoch: int,
        split: str,
        ranked: RankedLayer,
        key_of: Callable[[RankedLayer], store.RankKey],
        entries: RankEntries,
    ) -> Scored:
        """The scores of a layer, or the mean over its draws."""
        subject = self.searches.subject(epoch, split, ranked)
        draws = [self.searches.subject(epoch, split, draw) for draw in draws_of(ranked)]
        try:
            new = {x.ranked: self._rank(x, key_of(x.ranked), entries.get(x.ranked)) for x in draws}
        except NotApplicableError as error:
            return Scored(
                inapplicable=InapplicablePostProcessing(ranked.layer, ranked.post_processing, error.message, error.fix)
            )
        entries |= new
        scored = []
        # A mean of draws has the metrics that are means over the queries.
        measures = self.measures if len(draws) == 1 else self.measures.of_queries
        for draw in draws:
            entry = new[draw.ranked]
            if entry.ranks is None:
                count = len(self.searches.features.dataset.search_of(split)[0])
                return Scored(without_value(self.measures.names, subject, count, entry.invalid))
            further = self._score_thinned(draw, entry.ranks) + self._score_metrics(draw, entry.ranks, measures)
            entries[draw.ranked] = _add_values(entry, further.values)
            scored.append(score_recall(entry.ranks, draw, measures.ks) + further)
        return scored[0] if len(scored) == 1 else _mean_of_draws(subject, scored, self.measures.names)

    def _rank(self, subject: Subject, key: store.RankKey, entry: store.RankEntry | None) -> store.RankEntry:
        """A stored entry that is valid for the requested K, or a new one."""
        if entry and self._holds(entry):
            return entry
        ranks, invalid = None, ""
        try:
            layer = subject.epoch, subject.split, subject.ranked
            ranks, precision = self.rank_layer(*layer, entry.ranks if entry else None)
            if precision is not None:
                self._precision[layer] = precision
        except NotFiniteError as error:  # in these features, or in those that post-processing is fitted on
            invalid = f"NaN ({error.rows} rows)"
        return store.RankEntry(key, ranks, invalid, values=entry.values if entry and ranks else {})

    def rank_layer(
        self, epoch: int, split: str, ranked: RankedLayer, previous_ranks: Ranks | None
    ) -> tuple[Ranks, Precision | None]:
        """The ranks of a layer, from those that are stored for other K, if any; and its precision, if it is wanted."""
        memory, rules = self.measures.memory, self.searches.rules(split)
        with self.searches.post_processed.opened(epoch, split, ranked, memory) as (queries, gallery):
            group = self.share(epoch, split, ranked, previous_ranks)
            if previous_ranks is None and any(isinstance(x, PrecisionAtPositives) for x, _ in self.measures.metrics):
                return rank_with_precision(queries, gallery, ranked.similarity, memory=memory, rules=rules, group=group)
            # Every count of a small gallery: a further K costs nothing then.
            is_small = len((gallery or queries).labels) < RESOLVE_ALL_BELOW
            ranks = rank(
                queries,
                gallery,
                ranked.similarity,
                ks=None if is_small else self.measures.exact,
                previous_ranks=previous_ranks,
                memory=memory,
                rules=rules,
                group=group,
            )
            return ranks, None

    def _holds(self, entry: store.RankEntry) -> bool:
        """Whether stored ranks are exact for the requested K, or there are none to be had."""
        return entry.ranks is None or not entry.ranks.open(self.measures.exact).any()

    def _score_thinned(self, subject: Subject, ranks: Ranks) -> Scored:
        size = self.measures.gallery_size
        if size is None:
            return Scored()
        items = count_items(self.searches.features.dataset, subject.split)
        return score_thinned(ranks, subject, self.measures.ks, size, items)

    def _score_metrics(self, subject: Subject, ranks: Ranks, measures: Measures) -> Scored:
        if not measures.metrics:
            return Scored()
        epoch, split, ranked, memory = subject.epoch, subject.split, subject.ranked, self.measures.memory
        with self.searches.post_processed.opened(epoch, split, ranked, memory) as (queries, gallery):
            rules = self.searches.rules(split)
            retrieval = replace(
                prepare_retrieval(queries, gallery, ranked.similarity, ranks, rules, memory=memory),
                classifier=self._classifier(subject, int(queries.values.shape[1])),
                precision=self._precision.pop((epoch, split, ranked), None),
            )
            notes = layer_notes(ranks)
            scored = (score_metric(metric, names, retrieval, subject, notes) for metric, names in measures.metrics)
            return sum(scored, Scored())

    def _classifier(self, subject: Subject, dim: int) -> Classifier | None:
        """The classifier that was trained on the searched layer, which is not post-processed."""
        trained, ranked = self.searches.trained, subject.ranked
        if trained is None or ranked.post_processing != NO_POST_PROCESSING:
            return None
        return trained.classifier(subject.epoch, ranked.layer, dim)


def with_intervals(layers: Sequence[Scored], *, units: NDArray[np.int64], kind: IntervalKind) -> list[Score]:
    """The scores of some layers of a split, with intervals over units; what is no mean over the queries has none.

    Args:
        units: (Q,) the unit of each query.
    """
    layer_scores = [(layer, score) for layer in layers for score in layer.scores]
    scores = [score for _, score in layer_scores]
    means = [row for row, (layer, score) in enumerate(layer_scores) if score.metric in layer.values]
    if not means:
        return scores
    cells = unit_sums([layer_scores[row][0].values[scores[row].metric] for row in means], units)
    counts = (cells.counts > 0).sum(1).tolist()
    for row, count, interval in zip(means, counts, intervals(cells), strict=True):
        # The number of units is the reason why a score of too few has no interval.
        if interval is not None or count < FEWEST_UNITS:
            scores[row] = replace(scores[row], interval=interval, units=SamplingUnits(kind, count))
    return scores


def _mean_of_draws(subject: Subject, draws: Sequence[Scored], names: Sequence[str]) -> Scored:
    """The scores of a layer whose post-processing is a mean of several draws: the mean over these, query by query.

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
