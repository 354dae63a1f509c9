"""The stored contribution of each query to a layer's metric, or the command that stores it."""

from __future__ import annotations

from collections.abc import Sequence

from layerprobe import registry
from layerprobe.measure.analysis import query_values
from layerprobe.metrics.metric import is_mean_over_queries
from layerprobe.registry import METRICS
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import FloatArray
from layerprobe.values.scores import recall_of
from layerprobe.workflow.run.references import RankedSplit, mean_of_queries, probe_layers_fix


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
        fix = probe_layers_fix([(ranked_split, ranked)], *metric_flags(metric))
        raise DataError(f"{ranked_split.run.name}, {ranked_split.name(ranked)}: {error.message}", fix=fix) from error


def metric_values_of(layers: Sequence[tuple[RankedSplit, RankedLayer]], metric: str) -> list[FloatArray]:
    """As `metric_values`, of several layers: the error names all whose values are not stored."""
    values, lacking, errors = [], [], []
    for ranked_split, ranked in layers:
        try:
            values.append(metric_values(ranked_split, ranked, metric))
        except DataError as error:
            lacking.append((ranked_split, ranked))
            errors.append(error)
    if len(errors) > 1:
        message = "; ".join(dict.fromkeys(error.message for error in errors))
        raise DataError(message, fix=probe_layers_fix(lacking, *metric_flags(metric)))
    if errors:
        raise errors[0]
    return values


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


def metric_flags(metric: str) -> list[str]:
    """The flags of `layerprobe probe` that store a metric: `--metrics MAP@R`, `--k 10`."""
    recall = recall_of(metric)
    if recall is None:
        return ["--metrics", metric]
    return ["--k", str(recall.k), *(["--gallery-size", str(recall.gallery)] if recall.gallery else [])]
