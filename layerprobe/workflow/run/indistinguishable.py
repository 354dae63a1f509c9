"""The layers that do not differ significantly from the best one in a table or figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.analysis import query_values
from layerprobe.statistics.bootstrap import indistinguishable_from_best
from layerprobe.statistics.units import unit_sums
from layerprobe.system.errors import DataError, LayerprobeError
from layerprobe.values.best import best_layer
from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import ShownKind
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Score
from layerprobe.workflow.run.reduction_draws import mean_of_queries, ranked_as
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.units import units_of_run

_ROUNDING = 1e-6  # largest difference between a score and the mean hits of its ranks


@dataclass(frozen=True, eq=False)
class QueryRanks:
    """The ranks and values of Q queries by layer, and their resampled units: (Q,) classes or clusters."""

    units: NDArray[np.integer]
    ranks: Mapping[RankedLayer, Ranks]
    values: Mapping[RankedLayer, Mapping[str, NDArray[np.float64]]] = field(default_factory=dict)


# Epoch, split and column of the clusters -> the queries; None if they are unavailable.
Searches = Callable[[int, str, str | None], QueryRanks | None]


def searches_of(run: Run) -> Searches:
    """The stored queries of a run."""

    @cache  # tables of several reductions ask for the same queries
    def searched(epoch: int, split: str, cluster: str | None) -> QueryRanks | None:
        try:
            stored = run.ranks(epoch, split).stored
            units = units_of_run(run, {split: (stored.labels, stored.ids)}, cluster)
            return QueryRanks(units[split], stored.ranks, stored.values)
        except LayerprobeError:  # tables are shown without it
            return None

    return searched


def alike_of(
    scores: Sequence[Score], metric: str, searches: Searches, data: DataFacts
) -> tuple[RankedLayer, ...] | None:
    """The layers that do not differ significantly from the best one, on the split that chooses it.

    None if unknown: the scores' intervals are of several kinds, or generalise to new classes; the ranks are missing or
    not those of the scores; or `indistinguishable_from_best` returns None.
    """
    layers = list(dict.fromkeys(score.ranked for score in scores))
    metric_scores = {(score.split, score.ranked): score for score in scores if score.metric == metric}
    values = {
        split: [None if (score := metric_scores.get((split, layer))) is None else score.value for layer in layers]
        for split in data.chosen_on(layer.reduction for layer in layers)
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
    searched = searches(scores[0].epoch, best.split, kind.cluster)
    if searched is None:
        return None
    ranks = searched.ranks
    draws = [ranked_as(layer, ranks) for layer in rivals]
    if not all(draws):
        return None

    def of_draw(ranked: RankedLayer) -> NDArray[np.float64]:
        return query_values(ranks[ranked], searched.values.get(ranked, {}), metric)

    try:
        hits = np.stack([mean_of_queries(layer_draws, of_draw) for layer_draws in draws])
    except DataError:
        return None
    if np.abs(hits.mean(1) - list(rivals.values())).max() > _ROUNDING:
        return None
    names = list(rivals)
    places = indistinguishable_from_best(unit_sums(hits, searched.units), names.index(layers[best.place]))
    return None if places is None else tuple(names[index] for index in places)
