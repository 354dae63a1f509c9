"""Split and Dataset: labelled images that no two splits share a class of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError

LabelArray = NDArray[np.int64]  # (N,)
Image = NDArray[np.uint8]  # (H, W, 3), RGB


@dataclass(frozen=True, eq=False)
class Split:
    """The images of some classes, in a fixed order.

    Args:
        name: train, validation, test or gallery.
        labels: (N,) index into the data set's class names.
        ids: N different names; for files the path relative to the root, with `/` as separator.
        image: i -> uint8 (H, W, 3), never augmented. Picklable, so that data workers can have it.
        fingerprint: what the pixels are made from (file sizes, generator options), part of the manifest.
        test_view: an image -> what the network is tested on; None: the image itself.
        train_view: an image and a generator -> what the network is trained on; None: an augmentation by name.
    """

    name: str
    labels: LabelArray
    ids: tuple[str, ...]
    image: Callable[[int], Image]
    fingerprint: str = ""
    test_view: Callable[[Image], Image] | None = None
    train_view: Callable[[Image, np.random.Generator], Image] | None = None

    def __post_init__(self) -> None:
        if self.labels.shape != (len(self.ids),):
            raise ValueError(f"split {self.name}: {self.labels.shape} labels for {len(self.ids)} ids")
        if len(set(self.ids)) != len(self.ids):
            raise ValueError(f"split {self.name}: an id occurs twice")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_classes(self) -> int:
        """How many classes occur."""
        return len(np.unique(self.labels))


@dataclass(frozen=True, eq=False)
class Dataset:
    """The splits of a data set.

    Args:
        splits: by name, in the order of reporting: train, validation, test, gallery.
        class_names: what the labels of all splits index.
        search_in: the split in which another's queries are searched; itself where not named.
        notes: what every result on it has to say, such as that images are missing.
        classification: whether a class may be in two splits: images of known classes are tested, not new classes.
        class_ids: the data set's own id of each class, as text; empty where it has none.
    """

    splits: Mapping[str, Split]
    class_names: tuple[str, ...]
    search_in: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    classification: bool = False
    class_ids: tuple[str, ...] = ()


def require_retrieval(dataset: Dataset, *, source: object) -> Dataset:
    """The data set itself, once every split can be trained or searched on.

    Args:
        dataset: any.
        source: the root or file that the errors name.

    Raises:
        DataError: a split is empty or has one class, or a class is in two splits that are not searched in one another.
    """
    seen: dict[int, str] = {}
    for split in dataset.splits.values():
        if split.num_classes < 2:
            raise DataError(
                f"{split.name} split has {len(split)} images of {split.num_classes} classes; Recall@K needs 2 classes",
                file=source,
            )
        for label in np.unique(split.labels).tolist():
            other = seen.setdefault(label, split.name)
            together = {dataset.search_in.get(other, other), dataset.search_in.get(split.name, split.name)}
            if other != split.name and len(together) > 1 and not dataset.classification:
                raise DataError(
                    f"class {dataset.class_names[label]} is in {other} and {split.name}: not a zero-shot split",
                    file=source,
                )
    return dataset


def manifest_sha256(split: Split, class_names: tuple[str, ...]) -> str:
    """Hash of a split's ids, class names and fingerprint: what features are aligned with."""
    digest = hashlib.sha256(split.fingerprint.encode())
    for name, label in zip(split.ids, split.labels.tolist(), strict=True):
        digest.update(f"\0{name}\0{class_names[label]}".encode())
    return digest.hexdigest()
