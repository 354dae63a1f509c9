"""Metric and QueryMetric: what every metric of a layer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from layerprobe.values.retrieval import FloatArray, Retrieval


class Metric(ABC):
    """Numbers of a layer, by name. Keyword arguments of a subclass are keys of `[metrics.NAME]`.

    Attributes:
        k: how many nearest items it looks at; 0 for none in particular.
        held: bytes of each number of the queries, and of the gallery if there is one, that it holds at once; 0 where it
            reads blocks.
        notes: how its numbers are made.
    """

    k: int = 0
    held: tuple[int, int] = (0, 0)
    notes: Sequence[str] = ()

    @abstractmethod
    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """Name -> number. `NAME-sd` belongs to `NAME`.

        Raises:
            DataError: it is not defined on these items.
            NumericError: it is not defined on these features.
        """

    def notes_on(self, retrieval: Retrieval) -> Sequence[str]:  # noqa: ARG002 - for those that override it
        """What of a layer is skipped."""
        return ()


class QueryMetric(Metric):
    """A metric whose numbers are means over the queries, so that they have intervals."""

    @abstractmethod
    def of_queries(self, retrieval: Retrieval) -> Mapping[str, FloatArray]:
        """Name -> (Q,) contribution of each query, whose mean is the number; NaN for excluded queries.

        Raises:
            DataError: see `__call__`, like NumericError.
        """

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """Name -> mean over the queries."""
        return means_of(self.of_queries(retrieval))


def means_of(values: Mapping[str, FloatArray]) -> dict[str, float]:
    """The mean over the queries of each metric.

    Args:
        values: metric -> (Q,), NaN for queries that are excluded; one query at least is not.
    """
    return {name: float(of_metric[~np.isnan(of_metric)].mean()) for name, of_metric in values.items()}


def is_mean_over_queries(factory: Any) -> bool:
    """Whether a registered metric, a class or one with some arguments given, is a mean over the queries."""
    metric_class: Any = factory.func if isinstance(factory, partial) else factory
    return issubclass(metric_class, QueryMetric)
