"""The stored contribution of each query to a layer's metric, or the command that stores it."""

from __future__ import annotations

from layerprobe import registry
from layerprobe.measure.analysis import query_values
from layerprobe.metrics.metric import is_mean_over_queries
from layerprobe.registry import METRICS
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.arrays import FloatArray
from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.values.metric_names import recall_of
from layerprobe.workflow.run.reduction_draws import mean_of_queries
from layerprobe.workflow.run.references import RankedSplit, probe_fix


def metric_values(ranked_split: RankedSplit, ranked: RankedLayer, metric: str) -> FloatArray:
    """(Q,) contribution of each query to a layer's metric, the mean over its draws; NaN where it is excluded.

    Raises:
        DataError: it is not stored, with the command that stores it.
        RecipeError: the metric is not a mean over the queries.
        UnknownNameError: there is no such metric.
    """
    stored, draws = ranked_split.stored, ranked_split.ranked_as(ranked)
    if any(metric not in stored.values.get(draw, {}) for draw in draws):
        require_mean_over_queries(metric)
    try:
        return mean_of_queries(draws, lambda x: query_values(stored.ranks[x], stored.values.get(x, {}), metric))
    except DataError as error:
        fix = _command(ranked_split, ranked, metric)
        raise DataError(f"{ranked_split.run.name}, {ranked_split.name(ranked)}: {error.message}", fix=fix) from error


def require_mean_over_queries(metric: str) -> None:
    """Check that a metric is a mean over the queries, stored or not."""
    if recall_of(metric):
        return
    means = [name for name in METRICS if is_mean_over_queries(registry.load("metric", METRICS, name))]
    if metric in METRICS and metric not in means:
        fix = f"Choose R@K, {', '.join(means)}"
        raise RecipeError(f"{metric} is not the mean of a value for each query: classes cannot be resampled", fix=fix)
    if metric not in means:
        raise UnknownNameError("metric", metric, ["R@1", *means])


def metric_flags(metric: str) -> str:
    """The flags of `layerprobe probe` that store a metric: `--metrics MAP@R`, `--k 10`."""
    recall = recall_of(metric)
    if recall is None:
        return f"--metrics {metric}"
    return f"--k {recall.k}" + (f" --gallery-size {recall.gallery}" if recall.gallery else "")


def _command(ranked_split: RankedSplit, ranked: RankedLayer, metric: str) -> str:
    """The command that stores each query's contribution to a metric."""
    recall = recall_of(metric)
    if recall and recall.terms:
        return f"Run layerprobe summary {ranked_split.run.name}, and name the terms that it shows"
    reduce = "" if ranked.reduction == NO_REDUCTION else f"--reduce {ranked.reduction} "
    layer = f"--layers {ranked.layer.layer} {reduce}{metric_flags(metric)}"
    return probe_fix(ranked_split.run, ranked_split.record, ranked_split.epoch, ranked_split.split, layer)
