"""The evidence on differences of layers: the values of each query, or the values without each unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.redraw import groups_of
from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.jackknife import jackknife, jackknife_over_seeds
from layerprobe.statistics.seeds import over_seeds
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.values.intervals import Difference, IntervalKind, OverSeeds
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import FloatArray
from layerprobe.workflow.compare.redrawn import LeftOutMetrics
from layerprobe.workflow.run.metric_values import metric_values_of
from layerprobe.workflow.run.references import RankedSplit
from layerprobe.workflow.run.units import units_of_run


@dataclass(frozen=True)
class Measure:
    """The compared metric: R@K, or another mean of a value for each query."""

    metric: str = "R@1"
    kind: IntervalKind = field(default_factory=IntervalKind)


@dataclass(frozen=True, eq=False)
class Evidence:
    """The values of C pairs of layers, by units.

    Args:
        values: (C, 2) the metric of both layers.
        left_out: (C, U, U) contributions of the queries of each unit to the difference without each unit, for
            intervals over new classes; None for those against this gallery.
    """

    values: FloatArray
    sums: UnitSums
    left_out: FloatArray | None = None

    @property
    def units(self) -> int:
        """The number of units with a query."""
        return self.sums.units

    def differences(self) -> list[Difference]:
        """The difference of each pair, with its interval."""
        if self.left_out is None:
            return differences(self.sums)
        return jackknife(self.gained, self.left_out, self.queries)

    def rows(self, positions: Sequence[int]) -> Evidence:
        """Some of the pairs."""
        indices = list(positions)
        sums = UnitSums(self.sums.sums[indices], self.sums.counts[indices])
        return Evidence(self.values[indices], sums, None if self.left_out is None else self.left_out[indices])

    def minus(self, other: Evidence) -> Evidence:
        """The differences of these differences and others of the same queries.

        Raises:
            ValueError: other queries.
        """
        left_out = None if self.left_out is None or other.left_out is None else self.left_out - other.left_out
        return Evidence(np.stack([self.gained, other.gained], axis=1), self.sums.minus(other.sums), left_out)

    @property
    def queries(self) -> FloatArray:
        """(C, U) the number of queries of each unit of `left_out`, which may be a group of those of `sums`."""
        counts = self.sums.counts
        size = counts.shape[1] if self.left_out is None else self.left_out.shape[-1]
        groups, _ = groups_of(np.arange(counts.shape[1]), None, size, seed=0)
        return np.stack([np.bincount(groups, row, size) for row in counts])

    @property
    def gained(self) -> FloatArray:
        """(C,) the differences."""
        gained: FloatArray = self.values[:, 0] - self.values[:, 1]
        return gained


def over_trainings(evidence: Sequence[Evidence]) -> list[OverSeeds]:
    """The difference of each pair over several trainings, which were measured on the same queries."""
    gained = np.stack([training_evidence.gained for training_evidence in evidence], axis=1)  # (C, S)
    tables = [training_evidence.left_out for training_evidence in evidence if training_evidence.left_out is not None]
    if tables:
        left_out = np.stack(tables, axis=1)  # (C, S, U, U)
        return [jackknife_over_seeds(*cell) for cell in zip(gained, left_out, evidence[0].queries, strict=True)]
    sums, counts = (
        np.stack([getattr(training_evidence.sums, table) for training_evidence in evidence], axis=1)
        for table in ("sums", "counts")
    )
    return [over_seeds(UnitSums(*cell)) for cell in zip(sums, counts, strict=True)]


def query_units(ranked_split: RankedSplit, kind: IntervalKind) -> NDArray[np.int64]:
    """(Q,) the unit of each query: its class, or its text in a column of the run's data set."""
    images = {ranked_split.split: (ranked_split.stored.labels, ranked_split.stored.ids)}
    return units_of_run(ranked_split.run, images, kind.cluster)[ranked_split.split]


def gather(
    a: RankedSplit,
    b: RankedSplit,
    pairs: Sequence[tuple[RankedLayer, RankedLayer]],
    measure: Measure,
    units: NDArray[np.int64],
) -> Evidence:
    """The values of pairs of layers.

    Args:
        pairs: at least one, with finite features.
        units: (Q,) the unit of each query.
    """
    metric = measure.metric
    values = metric_values_of(
        [*((a, first_layer) for first_layer, _ in pairs), *((b, second_layer) for _, second_layer in pairs)], metric
    )
    first_values, second_values = np.array(values[: len(pairs)]), np.array(values[len(pairs) :])
    query_differences = first_values - second_values
    shared = np.where(np.isnan(query_differences), np.nan, [first_values, second_values])
    means = [unit_sums(values, units).means for values in shared]
    left_out = _compute_left_out(a, b, pairs, measure) if measure.kind.estimand == "redraw" else None
    return Evidence(np.stack(means, axis=1), unit_sums(query_differences, units), left_out)


def _compute_left_out(
    a: RankedSplit, b: RankedSplit, pairs: Sequence[tuple[RankedLayer, RankedLayer]], measure: Measure
) -> FloatArray:
    """(C, U, U), as in `Evidence`."""
    cluster, metric = measure.kind.cluster, measure.metric
    if (a.run, a.epoch) == (b.run, b.epoch):
        first_tables = second_tables = LeftOutMetrics(a, cluster).tables(
            dict.fromkeys(ranked for pair in pairs for ranked in pair), metric
        )
    else:
        first_tables = LeftOutMetrics(a, cluster).tables(dict.fromkeys(first_layer for first_layer, _ in pairs), metric)
        second_tables = LeftOutMetrics(b, cluster).tables(
            dict.fromkeys(second_layer for _, second_layer in pairs), metric
        )
    return np.stack([first_tables[first_layer] - second_tables[second_layer] for first_layer, second_layer in pairs])
