"""The evidence on differences of layers: values of each query, or values without each unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import Dataset
from layerprobe.measure.analysis import Labelled
from layerprobe.measure.redraw import groups_of, left_out_values
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.registry import METRICS
from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.jackknife import jackknife, jackknife_over_seeds
from layerprobe.statistics.seeds import over_seeds
from layerprobe.statistics.units import UnitSums, unit_sums
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.intervals import Difference, IntervalKind, OverSeeds
from layerprobe.values.layers import RankedLayer, members_of
from layerprobe.values.retrieval import FloatArray, IntArray
from layerprobe.values.scores import is_recall, recall_of
from layerprobe.workflow.probe.measures import build_measures
from layerprobe.workflow.probe.reduced_features import is_made_from
from layerprobe.workflow.probe.scoring import searches_of_run
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.features import features_of
from layerprobe.workflow.run.metric_values import metric_values_of
from layerprobe.workflow.run.references import RankedSplit, layer_flags, mean_of_queries, probe_fix
from layerprobe.workflow.run.units import require_redrawable, units_of_run, units_of_splits


@dataclass(frozen=True, eq=False)
class LeftOutMetrics:
    """The stored features of a split, and its units.

    Args:
        cluster: the column whose texts are the units; None for the classes.
    """

    ranked_split: RankedSplit
    cluster: str | None

    @cached_property
    def recipe(self) -> Recipe:
        """The run's recipe."""
        return recorded_recipe(self.ranked_split.record, self.ranked_split.run.record_file)

    @cached_property
    def dataset(self) -> Dataset:
        """The run's data set, with its galleries and rules."""
        dataset = from_recipe.build_dataset(self.recipe)
        images = dataset.splits.get(self.ranked_split.split)
        if images is None or tuple(images.ids) != self.ranked_split.stored.ids:
            raise DataError(
                f"the images of the {self.ranked_split.split} split are not those that were ranked",
                file=self.ranked_split.run.folder,
                fix="Restore the data set as it was when the run was probed",
            )
        return dataset

    def tables(self, layers: Iterable[RankedLayer], metric: str) -> dict[RankedLayer, FloatArray]:
        """(U, U) contributions of the queries of each unit to a layer's metric without each unit."""
        recall = recall_of(metric) if is_recall(metric) else None
        if recall is None and metric not in METRICS:
            fix = "Choose a metric of the whole gallery, such as R@1"
            raise RecipeError(f"--interval redraw is not for {metric}", fix=fix)
        ranked_split, dataset, rankings = self.ranked_split, self.dataset, list(layers)
        gallery = dataset.search_in.get(ranked_split.split, ranked_split.split)
        names = list(dict.fromkeys([ranked_split.split, gallery]))
        units = self._units(names)
        require_redrawable(dataset, [ranked_split.split], units, self.cluster)
        measures = build_measures([metric], (1,), {}, options=self.recipe.metrics, may_drop=True)
        features = features_of(ranked_split.run, self.recipe, dataset)
        searches = searches_of_run(features, self.recipe, lambda: from_recipe.choose_device("auto"))
        metric_values = {}
        for draw in dict.fromkeys(draw for ranked in rankings for draw in ranked_split.ranked_as(ranked)):
            for name in names:
                self._require_stored(name, dataset.splits[name], draw)
            with searches.reduced.opened(ranked_split.epoch, ranked_split.split, draw, None) as (queries, searched):
                values = left_out_values(
                    queries,
                    searched,
                    units[ranked_split.split],
                    None if searched is None else units[gallery],
                    ks=[recall.k] if recall else [],
                    metrics=measures.metrics,
                    similarity=draw.similarity,
                    rules=searches.rules(ranked_split.split),
                )
            metric_values[draw] = values[metric]
        return {
            ranked: mean_of_queries(ranked_split.ranked_as(ranked), metric_values.__getitem__) for ranked in rankings
        }

    def _units(self, names: list[str]) -> dict[str, IntArray]:
        """Split -> (N,) unit of each image, numbered consistently over the splits."""
        images = {name: (split.labels, split.ids) for name in names for split in (self.dataset.splits[name],)}
        return units_of_splits(self.dataset, images, self.cluster)

    def _require_stored(self, split: str, images: Labelled, ranked: RankedLayer) -> None:
        """Check that the features of a split are stored, of the data set's images."""
        ranked_split = self.ranked_split
        path = ranked_split.run.feature_file(ranked_split.epoch, split)
        head = partial(ranked_split.run.feature_head, ranked_split.epoch, split)
        fix = probe_fix(
            ranked_split.run,
            ranked_split.record,
            ranked_split.epoch,
            ranked_split.split,
            *layer_flags(ranked_split.record, [ranked]),
        )
        if not path.exists() or not members_of(ranked.layer, tuple(head().columns)):
            message = f"no features of {ranked.layer} at epoch {ranked_split.epoch} are stored of the {split} split"
            raise DataError(f"--interval redraw: {message}", file=ranked_split.run.folder, fix=fix)
        if head().rows[1] != tuple(images.ids):
            raise DataError("features of other images than the data set has", file=path, fix=fix)
        if not is_made_from(ranked_split.run, ranked_split.epoch, ranked_split.split, split, ranked):
            raise DataError(f"the ranks of {ranked.layer} were made from other features", file=path, fix=fix)


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
