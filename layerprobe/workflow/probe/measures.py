"""What is measured of a layer: the K of Recall@K, and further metrics by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from layerprobe.data.splits import Dataset
from layerprobe.measure.analysis import ItemCounts, item_counts
from layerprobe.metrics.metric import Metric, QueryMetric
from layerprobe.metrics.recall import require_gallery_size
from layerprobe.registry import METRICS, load
from layerprobe.system.errors import RecipeError
from layerprobe.values.scores import Recall, is_recall, recall_of


@dataclass(frozen=True)
class Measures:
    """What is measured of each layer.

    Args:
        memory: bytes that a ranking may take; features that are larger stay on disk.
        dropped: K of the recipe that a split has too few items for.
        gallery_size: how many items a query searches in the smaller gallery that Recall@K is also measured in; None
            for no such gallery.
    """

    ks: Sequence[int]
    metrics: Sequence[tuple[Metric, tuple[str, ...]]] = ()
    memory: int | None = None
    dropped: Sequence[int] = ()
    gallery_size: int | None = None

    @property
    def names(self) -> list[str]:
        """All requested metrics."""
        thinned = [] if self.gallery_size is None else [str(Recall(k, self.gallery_size)) for k in self.ks]
        return [*(str(Recall(k)) for k in self.ks), *thinned, *(name for _, names in self.metrics for name in names)]

    @property
    def of_queries(self) -> Measures:
        """Those that are means over the queries."""
        return replace(self, metrics=[entry for entry in self.metrics if isinstance(entry[0], QueryMetric)])

    @property
    def exact(self) -> Sequence[int] | None:
        """The K for which a query's counts must be exact; None for whatever K."""
        return self.ks if self.gallery_size is None else None


def build_measures(
    names: Sequence[str],
    ks: Sequence[int],
    galleries: Mapping[str, int],
    *,
    options: Mapping[str, Mapping[str, Any]],
    may_drop: bool,
) -> Measures:
    """The metrics, and the K that every gallery is large enough for.

    Args:
        galleries: split that is searched -> number of its images; empty where these are not known yet, so that K is
            not checked.
        options: metric -> its options.
    """
    for name in names:
        if name.startswith("R@") and not is_recall(name):
            raise RecipeError(f"metric {name}: K must be a whole number above 0", fix="Write it like R@10")
    recalls = [recall.k for name in names if (recall := recall_of(name))]
    metrics = _build_metrics([name for name in names if recall_of(name) is None], options)
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise RecipeError(f"K = {k!r}: must be a whole number above 0", fix="Choose one such as 1")
    requested = list(dict.fromkeys((*map(int, ks), *recalls)))
    if not requested:
        raise RecipeError("no K of Recall@K is given", fix="Choose one such as 1")
    if not galleries:
        return Measures(requested, metrics)
    smallest = min(galleries, key=galleries.__getitem__)
    large = [k for k in requested if k >= galleries[smallest]]
    by_name = [k for metric, _ in metrics if (k := metric.k) >= galleries[smallest]]
    if by_name or (large and (not may_drop or len(large) == len(requested) or set(large) & set(recalls))):
        raise RecipeError(
            f"K = {[*by_name, *large][0]} is not below the {galleries[smallest]} images of the {smallest} split",
            fix="Choose a smaller K",
        )
    return Measures([k for k in requested if k not in large], metrics, dropped=sorted(large))


def _build_metrics(
    names: Sequence[str], options: Mapping[str, Mapping[str, Any]]
) -> list[tuple[Metric, tuple[str, ...]]]:
    """Each metric once, with its options, and the names under which it was requested."""
    factories: dict[Any, list[str]] = {}
    for name in names:
        factories.setdefault(load("metric", METRICS, name), []).append(name)
    metrics = []
    for factory, requested in factories.items():
        arguments = {key: value for name in requested for key, value in options.get(name, {}).items()}
        try:
            metrics.append((factory(**arguments), tuple(requested)))
        except (TypeError, ValueError) as error:  # no such option, or not such a value
            raise RecipeError(f"[metrics.{requested[0]}]: {error}", fix="Change it, or leave it out") from error
    return metrics


def add_gallery_size(measures: Measures, size: int, dataset: Dataset, splits: Sequence[str]) -> Measures:
    """The measures with Recall@K in a smaller gallery beside that in the whole one."""
    for split in splits:
        try:
            require_gallery_size(size, measures.ks, *count_items(dataset, split))
        except RecipeError as error:
            raise RecipeError(f"{split}: {error.message}", fix=error.fix) from error
    return replace(measures, gallery_size=size)


def count_items(dataset: Dataset, split: str) -> ItemCounts:
    """How many items each image of a split may find that are right, and how many that are wrong."""
    gallery = dataset.search_in.get(split, split)
    searched = None if gallery == split else dataset.splits[gallery]
    return item_counts(dataset.splits[split], searched, dataset.search_rules.get(split))
