"""compare --interval redraw: a metric without each unit of queries and gallery, from stored features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from layerprobe.data.splits import Dataset
from layerprobe.measure.analysis import Labelled
from layerprobe.measure.redraw import left_out_values
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.registry import METRICS
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.layers import RankedLayer, members_of
from layerprobe.values.retrieval import FloatArray, IntArray
from layerprobe.values.scores import is_recall, recall_of
from layerprobe.workflow.probe.measures import build_measures
from layerprobe.workflow.probe.post_processed_features import is_made_from
from layerprobe.workflow.probe.scoring import searches_of_run
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.features import features_of
from layerprobe.workflow.run.references import RankedSplit, layer_flags, mean_of_queries, probe_fix
from layerprobe.workflow.run.units import require_redrawable, units_of_splits


def left_out_differences(  # noqa: PLR0913 - the layers, the measure and the memory
    a: RankedSplit,
    b: RankedSplit,
    pairs: Sequence[tuple[RankedLayer, RankedLayer]],
    metric: str,
    cluster: str | None,
    *,
    memory: int | None = None,
) -> FloatArray:
    """(C, U, U) contributions of the queries of each unit to the differences of pairs without each unit.

    Args:
        cluster: the column whose texts are the units; None for the classes.
        memory: bytes of features above which they stay on disk; None: none do.
    """
    if (a.run, a.epoch) == (b.run, b.epoch):
        tables = LeftOutMetrics(a, cluster, memory).tables(dict.fromkeys(x for pair in pairs for x in pair), metric)
        return np.stack([tables[x] - tables[y] for x, y in pairs])
    tables_a = LeftOutMetrics(a, cluster, memory).tables(dict.fromkeys(x for x, _ in pairs), metric)
    tables_b = LeftOutMetrics(b, cluster, memory).tables(dict.fromkeys(y for _, y in pairs), metric)
    return np.stack([tables_a[x] - tables_b[y] for x, y in pairs])


@dataclass(frozen=True, eq=False)
class LeftOutMetrics:
    """The stored features of a split, and its units.

    Args:
        cluster: the column whose texts are the units; None for the classes.
        memory: as for `left_out_differences`.
    """

    ranked_split: RankedSplit
    cluster: str | None
    memory: int | None = None

    @cached_property
    def recipe(self) -> Recipe:
        """The run's recipe."""
        return recorded_recipe(self.ranked_split.record, self.ranked_split.run.record_file)

    @cached_property
    def dataset(self) -> Dataset:
        """The run's data set, with its galleries and rules."""
        dataset = from_recipe.build_dataset(self.recipe)
        split = self.ranked_split.split
        if split not in dataset.splits or dataset.search_of(split)[0].ids != self.ranked_split.stored.ids:
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
            opened = searches.post_processed.opened(ranked_split.epoch, ranked_split.split, draw, self.memory)
            with opened as (queries, searched):
                values = left_out_values(
                    queries,
                    searched,
                    units[ranked_split.split],
                    None if searched is None else units[gallery],
                    ks=[recall.k] if recall else [],
                    metrics=measures.metrics,
                    similarity=draw.similarity,
                    rules=searches.rules(ranked_split.split),
                    memory=self.memory,
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
        if not ranked_split.run.has_features(ranked_split.epoch, split) or not members_of(
            ranked.layer, tuple(head().columns)
        ):
            message = f"no features of {ranked.layer} at epoch {ranked_split.epoch} are stored of the {split} split"
            raise DataError(f"--interval redraw: {message}", file=ranked_split.run.folder, fix=fix)
        if head().ids != tuple(images.ids):
            raise DataError("features of other images than the data set has", file=path, fix=fix)
        if not is_made_from(ranked_split.run, ranked_split.epoch, ranked_split.split, split, ranked):
            raise DataError(f"the ranks of {ranked.layer} were made from other features", file=path, fix=fix)
