"""Equal terms: draws of as many classes, and as many images of each, from every split.

Recall@K falls as classes are added, so that splits are comparable only at equal numbers of classes and of images a
class. Which images are drawn follows from the seed, the split's name and the number of the draw: it is the same for all
layers and epochs, and need not be stored.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from layerprobe.values.metric_names import Terms

DRAWS = 20

Rows = NDArray[np.intp]


def too_small(labels: NDArray[np.integer]) -> int:
    """How many classes have a single image: they cannot hold a query and its positive, and are never drawn."""
    return int((np.unique(labels, return_counts=True)[1] < 2).sum())


def common_terms(labels: Mapping[str, NDArray[np.integer]]) -> Terms | None:
    """The terms that all of some splits can meet: their smallest numbers of classes, and of images in a class.

    Args:
        labels: split -> (Q,) the class of each image; at least one split.

    Returns:
        None where fewer than 2 classes of 2 images are left in a split.
    """
    counts = [_usable(of_split)[1] for of_split in labels.values()]
    classes = min(map(len, counts))
    return Terms(classes, int(min(map(np.min, counts)))) if classes > 1 else None


def draws(labels: NDArray[np.integer], terms: Terms, *, seed: int, split: str, count: int = DRAWS) -> list[Rows]:
    """Draw the images of a split that are searched among themselves, several times.

    Args:
        labels: (Q,) the class of each image.
        terms: how many.
        seed: of the run.
        split: its name.
        count: how many draws.

    Returns:
        (n,) rows of each draw, ascending. A split that has exactly so many classes and images gives the one draw of all
        of them.

    Raises:
        ValueError: the split does not have so many.
    """
    classes, counts = _usable(labels)
    if len(classes) < terms.classes or counts.min() < terms.images:
        smallest = counts.min() if len(counts) else 0
        raise ValueError(f"{split}: {terms.name()} of {len(classes)} classes, the smallest of {smallest}")
    if len(classes) == terms.classes and (counts == terms.images).all():
        return [np.flatnonzero(np.isin(labels, classes))]
    return [_draw(labels, classes, terms, [seed, zlib.crc32(split.encode()), number]) for number in range(count)]


def times_drawn(drawn: Sequence[Rows], size: int) -> NDArray[np.int64]:
    """(size,) in how many of some draws each image is: its weight in a mean over the draws."""
    return np.bincount(np.concatenate(drawn), minlength=size)


def _usable(labels: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.intp]]:
    """The classes of 2 images or more, ascending, and how many each has."""
    classes, counts = np.unique(labels, return_counts=True)
    return classes[counts > 1], counts[counts > 1]


def _draw(labels: NDArray[np.integer], classes: NDArray[np.integer], terms: Terms, key: Sequence[int]) -> Rows:
    # By sorting uniform numbers: numpy may change what `choice` and `permutation` make of the same key.
    rng = np.random.default_rng(key)
    chosen = classes[np.argsort(rng.random(len(classes)), kind="stable")[: terms.classes]]
    order = np.lexsort((rng.random(len(labels)), labels))
    class_starts = np.searchsorted(labels[order], chosen)
    rows: Rows = np.sort(order[class_starts[:, None] + np.arange(terms.images)].reshape(-1))
    return rows
