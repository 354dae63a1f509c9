"""What is measured of a layer, by name, and whether its images have anything right to find."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from layerprobe.data.splits import Dataset
from layerprobe.measure.analysis import ItemCounts, item_counts
from layerprobe.metrics.metric import Metric, QueryMetric
from layerprobe.metrics.recall import require_gallery_size
from layerprobe.registry import METRICS, load
from layerprobe.system.errors import DataError, RecipeError
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
    return item_counts(*dataset.search_of(split), dataset.search_rules.get(split))


# What labels that mean one class may differ in -> the label without it.
_SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "case": str.casefold,
    "leading zeros": lambda label: label.lstrip("0") or "0",
    "a trailing .0": lambda label: label.removesuffix(".0"),
    "spaces": lambda label: "".join(label.split()),
    "Unicode composition": lambda label: unicodedata.normalize("NFC", label),
}


def require_right_items(dataset: Dataset, splits: Collection[str], *, source: object = None) -> None:
    """Refuse a split in which no query has a right item to find: every number of it would be 0.

    Raises:
        DataError: with two labels of each side, the groups, or what the labels are equal but for.
    """
    for split in splits:
        if why := why_no_right_item(dataset, split):
            raise DataError(
                why, file=source, fix="Correct the labels, data.group or the split, or name others by --splits"
            )


def check_right_items(dataset: Dataset) -> list[str]:
    """A line if no training image has a right item to find: one may train on them, or fit post-processing.

    Raises:
        DataError: no image of another split has one, or none of train where it is the only split.
    """
    ranked_splits = [split for split in dataset.searched if split != "train"]
    require_right_items(dataset, ranked_splits or dataset.searched)
    unranked = [split for split in dataset.searched if split not in ranked_splits]
    return [why for split in unranked if (why := why_no_right_item(dataset, split))]


def why_no_right_item(dataset: Dataset, split: str) -> str:
    """That no query of a split has a right item to find, and why; empty where one has."""
    if _shares_labels(dataset, split) or count_items(dataset, split)[0].any():
        return ""
    return f"no query of {split} has a right item to find: {_why_none(dataset, split)}"


def _shares_labels(dataset: Dataset, split: str) -> bool:
    """Whether classes alone, as sets of labels, say what is right, and an image shares a label with another one.

    To count all right items takes every pair of images.
    """
    rules = dataset.search_rules.get(split)
    if dataset.label_sets is None or rules is None or not (rules.groups is rules.ignored is rules.positives is None):
        return False
    queries, gallery = dataset.search_of(split)
    if gallery is not None and {*queries.ids} & {*gallery.ids}:
        return False
    classes, labels = dataset.label_sets.T
    images = np.bincount((gallery or queries).labels, minlength=len(dataset.class_names))
    shared = np.bincount(labels, weights=images[classes]) > (gallery is None)
    return bool(shared[labels[np.isin(classes, queries.labels)]].any())


def _why_none(dataset: Dataset, split: str) -> str:
    queries, rules = dataset.search_of(split)[0], dataset.search_rules.get(split)
    sides = [_class_names(dataset, name) for name in dict.fromkeys((split, dataset.search_in.get(split, split)))]
    if rules is not None and rules.positives is not None:
        return f"none of the listed pairs is of {split} images that are searched"
    if rules is not None and (rules.groups is not None or rules.ignored is not None):
        without = count_items(_without_rules(dataset), split)[0]
        if without.any():
            row = int(without.argmax())
            noted = ", ".join(dataset.search_notes.get(split, ()))
            name, count = dataset.class_names[queries.labels[row]], int(without[row])
            return f"{noted} takes every right item out, such as all {count:,} of class {name!r}"
    if len(sides) == 1:
        return f"each of the {len(sides[0]):,} classes has one image, such as {_quote(sides[0])}"
    if shared := set(sides[0]) & set(sides[1]):
        return f"the gallery has of each class the query alone, such as of {_quote(sorted(shared))}"
    labels = f"labels of the queries ({_quote(sides[0])}) and of the gallery ({_quote(sides[1])})"
    return f"{labels} {_spelling_difference(*sides) or 'share none'}"


def _spelling_difference(query_labels: Sequence[str], gallery_labels: Sequence[str]) -> str:
    """`are equal but for case: 'Ab' and 'ab'`; empty where two sides share no label in any spelling."""
    for difference, spelled in _SPELLINGS.items():
        by_spelling = {spelled(label): label for label in query_labels}
        for label in gallery_labels:
            if spelled(label) in by_spelling:
                return f"are equal but for {difference}, such as {by_spelling[spelled(label)]!r} and {label!r}"
    return ""


def _class_names(dataset: Dataset, split: str) -> list[str]:
    return [dataset.class_names[label] for label in np.unique(dataset.splits[split].labels).tolist()]


def _quote(labels: Sequence[str]) -> str:
    return " and ".join(map(repr, labels[:2]))


def _without_rules(dataset: Dataset) -> Dataset:
    """The data set in which the classes alone say what is right."""
    rules = {
        name: replace(rules, groups=None, gallery_groups=None, ignored=None)
        for name, rules in dataset.search_rules.items()
    }
    return replace(dataset, search_rules=rules)
