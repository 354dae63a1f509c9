"""The data that scores were measured on, their tables, and layers that do not differ from the best."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.recall import chance_recall
from layerprobe.statistics.bootstrap import bands_from_best, is_significant_band
from layerprobe.statistics.units import unit_sums
from layerprobe.system.errors import BusyError, DataError, LayerprobeError
from layerprobe.tables.tables import TextTable, layer_table, metric_table, remarks_of
from layerprobe.values.best import best_layer
from layerprobe.values.facts import EPOCH_0, DataFacts, IdenticalImages, SplitFacts
from layerprobe.values.intervals import Interval, ShownKind
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import SPLITS, Score, is_recall
from layerprobe.values.sections import SEARCH_KEYS
from layerprobe.workflow.run.metric_values import metric_values_of
from layerprobe.workflow.run.references import open_ranked_split
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import start_of, trains_on_train, unverified_weights, weights_text
from layerprobe.workflow.run.units import units_of_run

if TYPE_CHECKING:
    from layerprobe.store import FeatureHead, StoredRanks

_ROUNDING = 1e-6  # largest difference between a score and the mean hits of its ranks


def find_indistinguishable(
    run: Run, scores: Sequence[Score], metric: str, data: DataFacts
) -> tuple[RankedLayer, ...] | None:
    """The layers that do not differ significantly from the best one, on the split that chooses it.

    Returns:
        None where `bands_of_best` has none.
    """
    from_best = bands_of_best(run, scores, metric, data)
    if from_best is None:
        return None
    return tuple(layer for layer, band in from_best.items() if not is_significant_band(band))


def bands_of_best(
    run: Run, scores: Sequence[Score], metric: str, data: DataFacts
) -> dict[RankedLayer, Interval | None] | None:
    """Each other layer -> simultaneous 95 % band of the best one minus it, on the split that chooses the best.

    None if unknown: the scores' intervals are of several kinds, or generalise to new classes; the ranks are missing or
    not those of the scores; or `bands_from_best` returns None. The band of a layer that equals the best is None, too.

    Args:
        scores: of one epoch of the run.
    """
    layers = list(dict.fromkeys(score.ranked for score in scores))
    metric_scores = {(score.split, score.ranked): score for score in scores if score.metric == metric}
    values = {
        split: [None if (score := metric_scores.get((split, layer))) is None else score.value for layer in layers]
        for split in data.chosen_on(layer.post_processing for layer in layers)
    }
    best = best_layer(values)
    if best is None:
        return None
    rivals = {layer: value for layer, value in zip(layers, values[best.split], strict=True) if value is not None}
    kind = ShownKind.of(
        metric_scores[best.split, layer].kind for layer in rivals if metric_scores[best.split, layer].interval
    ).kind
    if kind is None or kind.estimand != "gallery":
        return None
    try:
        ranked_split = open_ranked_split(run, scores[0].epoch, best.split)
        if not all(map(ranked_split.has_ranks, rivals)):
            return None
        hits = np.stack(metric_values_of([(ranked_split, layer) for layer in rivals], metric))
        images = {best.split: (ranked_split.stored.labels, ranked_split.stored.ids)}
        units = units_of_run(run, images, kind.cluster)[best.split]
    except LayerprobeError:  # tables are shown without it
        return None
    if np.abs(hits.mean(1) - list(rivals.values())).max() > _ROUNDING:
        return None
    place = list(rivals).index(layers[best.place])
    from_best = bands_from_best(unit_sums(hits, units), place)
    if from_best is None:
        return None
    return {layer: band for layer, band in zip(rivals, from_best, strict=True) if layer != layers[best.place]}


def data_facts(run: Run, scores: Sequence[Score]) -> DataFacts:
    """The data that a run's scores were measured on; unreadable facts are unknown."""
    run_scores = [score for score in scores if score.run == run.name]
    splits = [split for split in SPLITS if any(score.split == split for score in run_scores)]
    name, start, seen = "", DataFacts.start, DataFacts.seen
    network, layers, weights, unverified = DataFacts.network, DataFacts.layers, DataFacts.weights, DataFacts.unverified
    data: Mapping[str, Any] = {}
    with contextlib.suppress(DataError):
        record = run.read()
        data, start, seen = record.data, start_of(record), trains_on_train(record)
        name, network = _data_name(data), str(record.net.get("name", ""))
        layers = record.network.layers if record.network else ()
        weights, unverified = weights_text(record), unverified_weights(record)
    held_out = start != EPOCH_0 and any(score.epoch > 0 for score in run_scores)
    held_out &= data.get("protocol") != "classification"  # there test has the training classes
    facts = {split: _split_facts(run, data, split, run_scores) for split in splits}
    return DataFacts(name, facts, start, held_out, seen, network, layers, weights, unverified)


def _data_name(data: Mapping[str, Any]) -> str:
    """`glyphs`, or with the last folder of the root `cub200:CUB_200_2011`."""
    name, root = data.get("name", ""), data.get("root")
    return f"{name}:{Path(root).name}" if root else str(name)


def _split_facts(run: Run, data: Mapping[str, Any], split: str, scores: Sequence[Score]) -> SplitFacts:
    measured = [score for score in scores if score.split == split]
    for epoch in sorted({score.epoch for score in measured}, reverse=True):
        has_gallery = split == "test" and run.has_features(epoch, "gallery")
        with contextlib.suppress(DataError, BusyError):  # the next epoch has the same images
            images = run.feature_head(epoch, split)
            searched = run.feature_head(epoch, "gallery") if has_gallery else None
            try:  # groups, lists and sets of labels change the chance level, which the ranks then have
                file = run.ranks(epoch, split)
                stored = file.stored
            except (DataError, BusyError):
                facts = _facts_of(images, searched)
                has_rules = any(map(data.get, (*SEARCH_KEYS, "label_separator")))
                return replace(facts, queries=measured[0].n, chance=None) if has_rules else facts
            is_drawn = len(stored.labels) < len(images.labels)  # some of the images are searched for
            searched = images if is_drawn and searched is None else searched
            return with_ranks(
                _facts_of(stored if is_drawn else images, searched, file.chance), stored.ranks, file.identical
            )
    return SplitFacts(measured[0].n)


def _facts_of(
    queries: FeatureHead | StoredRanks, searched: FeatureHead | None, chance: float | None = None
) -> SplitFacts:
    if searched is None:
        return split_facts(queries.labels, chance=chance)
    ids = (queries.ids, searched.ids) if chance is None else None  # a million of them take half a second to decode
    return split_facts(queries.labels, searched.labels, ids, chance=chance)


def with_ranks(
    facts: SplitFacts, ranks: Mapping[RankedLayer, Ranks], identical: NDArray[np.bool_] | None
) -> SplitFacts:
    """The facts of a split with the numbers of queries without a right item and with an identical image.

    Args:
        identical: (Q,) the latter queries; None where there is none, or that is not known.
    """
    lone = next(iter(ranks.values())).lone if ranks else 0
    exact = {ranked: layer_ranks for ranked, layer_ranks in ranks.items() if not layer_ranks.open([1]).any()}
    if identical is None or not exact:
        return replace(facts, lone=lone)
    raw = {
        ranked: layer_ranks for ranked, layer_ranks in exact.items() if ranked.post_processing == NO_POST_PROCESSING
    } or exact
    best = max(raw, key=lambda ranked: raw[ranked].recall(1))
    return replace(facts, lone=lone, identical=identical_facts(str(best), raw[best].hits(1), identical))


def identical_facts(
    layer: str, values: NDArray[np.float64] | None, identical: NDArray[np.bool_], *, metric: str = "R@1"
) -> IdenticalImages | None:
    """The facts on identical images, with the metric of a layer without them; None where there are none.

    Args:
        values: (Q,) what each query adds to the metric; NaN where it is left out. None: not known.
        identical: (Q,) the queries with an identical image in what they search.
    """
    if not identical.any():
        return None
    other_values = np.zeros(0) if values is None else values[~identical & ~np.isnan(values)]
    return IdenticalImages(
        int(identical.sum()), layer, float(other_values.mean()) if len(other_values) else None, metric
    )


def split_facts(
    labels: NDArray[np.integer],
    searched: NDArray[np.integer] | None = None,
    ids: tuple[Sequence[str], Sequence[str]] | None = None,
    *,
    chance: float | None = None,
) -> SplitFacts:
    """The facts of a split.

    Args:
        labels: (Q,) classes of the queries.
        searched: (G,) classes of the gallery; None: the queries are searched among themselves.
        ids: names of the queries and of the gallery, where a query does not find itself; None: they are disjoint.
        chance: Recall@1 of a random order, where it is known; None: it follows from the classes.
    """
    query_ids, gallery_ids = ids or (None, None)
    return SplitFacts(
        queries=len(labels),
        classes=len(np.unique(labels)),
        gallery=None if searched is None else len(searched),
        chance=chance_recall(labels, 1, searched, ids=query_ids, gallery_ids=gallery_ids) if chance is None else chance,
    )


def score_tables(run: Run, scores: Sequence[Score]) -> list[TextTable]:
    """The tables of the last epoch of a run's scores, of which at least one is Recall@K."""
    last_scores, untrained = _last_epoch(run, scores)
    return epoch_tables(run, last_scores, data_facts(run, last_scores), untrained)


def _last_epoch(run: Run, scores: Sequence[Score]) -> tuple[list[Score], list[Score]]:
    """The scores of the last epoch, and all of epoch 0 where that is an earlier one."""
    last_epoch = max(score.epoch for score in scores)
    last_scores = [score for score in scores if score.epoch == last_epoch]
    return last_scores, [score for score in run.scores() if score.epoch == 0 < last_epoch]


def first_recall(scores: Sequence[Score]) -> str:
    """R@1, or the first R@K of scores, of which at least one is one."""
    recalls = [score.metric for score in scores if is_recall(score.metric)]
    return "R@1" if "R@1" in recalls else recalls[0]


def epoch_tables(
    run: Run, scores: Sequence[Score], data: DataFacts, untrained: Sequence[Score] = ()
) -> list[TextTable]:
    """The tables of an epoch, without post-processing and after each: Recall by layer, and further metrics if any.

    Args:
        scores: of one epoch, in network order; at least one is Recall@K.
        untrained: scores of epoch 0, for a later epoch.
    """
    metric = first_recall(scores)
    post_processings = dict.fromkeys(score.ranked.post_processing for score in scores)
    raw_remarks = {
        x for score in scores if score.ranked.post_processing == NO_POST_PROCESSING for x in remarks_of(score)
    }
    tables: list[TextTable] = []
    for post_processing in sorted(post_processings, key=lambda name: name != NO_POST_PROCESSING):
        post_processing_scores = [score for score in scores if score.ranked.post_processing == post_processing]
        printed_remarks = raw_remarks if post_processing != NO_POST_PROCESSING else set()
        before = [score for score in untrained if score.ranked.post_processing == post_processing]
        facts = replace(data, splits={}) if tables else data
        indistinguishable = find_indistinguishable(run, post_processing_scores, metric, data)
        tables.append(
            layer_table(
                post_processing_scores,
                metric=metric,
                data=facts,
                untrained=before,
                indistinguishable=indistinguishable,
                printed_remarks=printed_remarks,
            )
        )
        tables += [
            table for table in [metric_table(post_processing_scores, data, printed_remarks=printed_remarks)] if table
        ]
    return tables
