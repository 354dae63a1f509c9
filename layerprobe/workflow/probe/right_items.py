"""Whether the images of a split have anything right to find, and if none has, why."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from layerprobe.data.splits import Dataset
from layerprobe.system.errors import DataError
from layerprobe.workflow.probe.measures import count_items

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
    """A line if no training image has a right item to find: one may train on them, or fit reductions.

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
    queries, gallery = dataset.splits[split], dataset.splits[dataset.search_in.get(split, split)]
    if gallery is not queries and {*queries.ids} & {*gallery.ids}:
        return False
    classes, labels = dataset.label_sets.T
    images = np.bincount(gallery.labels, minlength=len(dataset.class_names))
    shared = np.bincount(labels, weights=images[classes]) > (gallery is queries)
    return bool(shared[labels[np.isin(classes, queries.labels)]].any())


def _why_none(dataset: Dataset, split: str) -> str:
    queries, rules = dataset.splits[split], dataset.search_rules.get(split)
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
