"""Several labels an image: the text of a cell or a list -> the set of labels that is the image's class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# What tables put between the labels of an image.
_SEPARATORS = ("|", ";", ",")
NOTE = "several labels: right if one is shared, and classes, the units of intervals, are sets of labels"


@dataclass(frozen=True, eq=False)
class LabelSets:
    """The classes of images with several labels each: every set of labels that occurs is a class.

    Args:
        class_names: sorted; the labels of a class, sorted and joined.
        classes: (N,) the class of each image.
        pairs: (M, 2) a class and a label that it holds, as in `SearchRules.label_sets`.
    """

    class_names: tuple[str, ...]
    classes: NDArray[np.int64]
    pairs: NDArray[np.int64]


def split_labels(text: str, separator: str) -> frozenset[str]:
    """The labels in a text, without spaces around them; empty parts are left out."""
    return frozenset(filter(None, map(str.strip, text.split(separator))))


def label_sets_of(images: Iterable[frozenset[str]], separator: str) -> LabelSets:
    """The classes of images.

    Args:
        images: the labels of each, at least one.
        separator: joins labels in the names of classes; no label holds it.
    """
    of_images = list(images)
    names = {labels: separator.join(sorted(labels)) for labels in of_images}
    sets = sorted(names, key=names.__getitem__)
    numbers = {labels: number for number, labels in enumerate(sets)}
    labels = {
        label: number for number, label in enumerate(sorted({label for label_set in sets for label in label_set}))
    }
    pairs = [(number, labels[label]) for number, label_set in enumerate(sets) for label in sorted(label_set)]
    return LabelSets(
        tuple(names[label_set] for label_set in sets),
        np.array([numbers[label_set] for label_set in of_images], np.int64),
        np.array(pairs, np.int64).reshape(-1, 2),
    )


def separator_note(class_names: Iterable[str]) -> str:
    """What to say of labels that hold a separator, where their parts are in other labels too; empty otherwise."""
    names = sorted(set(class_names))
    for separator in _SEPARATORS:
        joined_names = [name for name in names if separator in name]
        if joined_names and (name := _shares(joined_names, names, separator)):
            observation = f"labels such as {name!r} hold a separator and are taken as classes of their own"
            return f"{observation}: --set data.label_separator='{separator}' splits them"
    return ""


def _shares(joined_names: Iterable[str], names: Iterable[str], separator: str) -> str:
    """The first of some labels with a part that another label has too."""
    first_name: dict[str, str] = {}
    shared: dict[str, None] = {}
    for name in names:
        for label in split_labels(name, separator):
            if (other := first_name.setdefault(label, name)) != name:
                shared |= {other: None, name: None}
    return next((name for name in joined_names if name in shared), "")
