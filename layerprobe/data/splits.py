"""Split and Dataset: labelled images, divided so that no class is in two splits unless searched."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from layerprobe.system.errors import DataError
from layerprobe.values.retrieval import SearchRules
from layerprobe.values.scores import SPLITS

# What tables put between the labels of an image.
_SEPARATORS = ("|", ";", ",")
NOTE = "several labels: right if one is shared, and classes, the units of intervals, are sets of labels"


def split_labels(text: str, separator: str) -> frozenset[str]:
    """The labels in a text, without spaces around them; empty parts are left out."""
    return frozenset(filter(None, map(str.strip, text.split(separator))))


def separator_note(class_names: Iterable[str]) -> str:
    """What to say of labels that hold a separator, where their parts are in other labels too; empty otherwise."""
    names = sorted(set(class_names))
    for separator in _SEPARATORS:
        if not any(separator in name for name in names):
            continue
        first_name: dict[str, str] = {}
        shared: set[str] = set()  # names with a part that another name has too
        for name in names:
            for label in split_labels(name, separator):
                if (other := first_name.setdefault(label, name)) != name:
                    shared |= {other, name}
        if name := next((name for name in names if separator in name and name in shared), ""):
            observation = f"labels such as {name!r} hold a separator and are taken as classes of their own"
            return f"{observation}: --set data.label_separator='{separator}' splits them"
    return ""


_HASHED = 4096  # names of images at once
LabelArray = NDArray[np.int64]  # (N,)
Image = NDArray[np.uint8]  # (H, W, 3), RGB
ClassId = int | str
# A data set's `search_in` where the test images are queries and are searched for in a gallery.
IN_GALLERY: Mapping[str, str] = {"test": "gallery"}


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """i -> image, of images that are kept in memory."""

    pixels: NDArray[np.uint8]  # (N, H, W, 3), or grey (N, H, W)

    def __call__(self, index: int) -> Image:
        """The index-th image."""
        image = self.pixels[index]
        return image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)


class _DistinctIds(tuple[str, ...]):
    """Ids that were found to differ: a million of them are compared once, not at each change of a split."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class _Some:
    """i -> image, for some of the images of a split."""

    image: Callable[[int], Image]
    places: NDArray[np.integer]  # (M,) places of the chosen images in the split

    def __call__(self, index: int) -> Image:
        return self.image(int(self.places[index]))


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, in a fixed order.

    Args:
        name: train, validation, test or gallery.
        labels: (N,) index into the data set's class names.
        ids: N different names; for files the path relative to the root, with `/` as separator.
        image: i -> uint8 (H, W, 3), never augmented. Picklable, so that it can be sent to data workers.
        fingerprint: text that changes when the pixels may have changed (a hash of the files' sizes); part of the
            manifest.
        digests: (N, 2) hash of each image's content, 128 bits in two numbers; None until the files are read.
        test_view: turns an image into the network's test input; None: the image itself.
        test_image: i -> the network's test input, instead of `test_view` of the image, where it is made from the
            original in a way of its own.
        train_view: turns an image into the network's training input, by a random generator; None: an augmentation
            that is chosen by name.
        columns: what else is known of the images: name -> N texts, such as the camera of each.
    """

    name: str
    labels: LabelArray
    ids: tuple[str, ...]
    image: Callable[[int], Image]
    fingerprint: str = ""
    digests: NDArray[np.int64] | None = None
    test_view: Callable[[Image], Image] | None = None
    test_image: Callable[[int], Image] | None = None
    train_view: Callable[[Image, np.random.Generator], Image] | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.labels.shape != (len(self.ids),):
            raise ValueError(f"split {self.name}: {self.labels.shape} labels for {len(self.ids)} ids")
        if not isinstance(self.ids, _DistinctIds):
            if len(set(self.ids)) != len(self.ids):
                raise ValueError(f"split {self.name}: an id occurs twice")
            object.__setattr__(self, "ids", _DistinctIds(self.ids))
        for column, texts in self.columns.items():
            if len(texts) != len(self.ids):
                raise ValueError(f"split {self.name}: {len(texts)} texts in column {column} for {len(self.ids)} ids")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_classes(self) -> int:
        """The number of classes that occur."""
        return len(np.unique(self.labels))

    def of_rows(self, rows: NDArray[np.integer], name: str = "") -> Split:
        """Some of its images, in the order of their rows; `name` is another one than the split's."""
        return replace(
            self,
            name=name or self.name,
            labels=self.labels[rows],
            ids=tuple(self.ids[row] for row in rows.tolist()),
            image=_Some(self.image, rows),
            test_image=_Some(self.test_image, rows) if self.test_image else None,
            digests=None if self.digests is None else self.digests[rows],
            columns={column: tuple(texts[row] for row in rows.tolist()) for column, texts in self.columns.items()},
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """The splits of a data set.

    Args:
        splits: by name, in the order of reporting: train, validation, test, gallery.
        search_in: split -> the split in which its images are searched for; a split not named is searched in itself.
        classification: whether the test images are of the training classes; else no class is in two splits, unless
            classes are sets of labels.
        class_ids: the data set's own id of each class, as text; empty where it has none.
        rules: kind of rule by which some images are turned into RGB -> how many files it concerns; empty until the
            files are read.
        largest_grey: the largest value of its images of 16-bit grey; 0 where there is none, or the files are not read.
            From `FULL_RANGE` on there may be a larger one.
        search_rules: split -> the right and the excluded results of its images, where the class
            alone does not say.
        search_notes: split -> what every result under its rules has to say.
        drawn: split -> rows of those of its images that are searched for, ascending; a split that is not named is
            searched for as a whole.
        label_sets: (M, 2) a class and a label that it holds, where classes are sets of labels; else None.
        input_notes: what a run says once of how images were listed and are read, and no score repeats.
    """

    splits: Mapping[str, Split]
    class_names: tuple[str, ...]
    search_in: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    classification: bool = False
    class_ids: tuple[str, ...] = ()
    rules: Mapping[str, int] = field(default_factory=dict)
    largest_grey: int = 0
    search_rules: Mapping[str, SearchRules] = field(default_factory=dict)
    search_notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    label_sets: NDArray[np.int64] | None = None
    input_notes: tuple[str, ...] = ()
    drawn: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @cached_property
    def contents_sha256(self) -> Callable[[str], str]:
        """Split -> `contents_sha256` of it, made once."""
        splits, class_names = self.splits, self.class_names
        return cache(lambda name: contents_sha256(splits[name], class_names))

    @property
    def searched(self) -> list[str]:
        """The splits of queries: all but galleries."""
        galleries = {gallery for query, gallery in self.search_in.items() if gallery != query}
        return [name for name in self.splits if name not in galleries]

    def map_splits(self, change: Callable[[Split], Split]) -> Dataset:
        """The same data set with something done to each of its splits."""
        return replace(self, splits={name: change(split) for name, split in self.splits.items()})

    def search_of(self, name: str) -> tuple[Split, Split | None]:
        """The images of a split that are searched for, and those that they are searched among; None: themselves."""
        images, gallery = self.splits[name], self.splits[self.search_in.get(name, name)]
        if name in self.drawn:
            return images.of_rows(self.drawn[name]), gallery
        return images, None if gallery is images else gallery

    def together(self, name: str, other: str) -> bool:
        """Whether two splits are the same, or one is searched in the other."""
        return self.search_in.get(name, name) == self.search_in.get(other, other)


def require_retrieval(
    dataset: Dataset, *, source: object = None, fix: str = "Put all its images into one split"
) -> Dataset:
    """The data set itself, if every split can be trained on or searched.

    Args:
        fix: of a class in two splits.
    """
    apart = not dataset.classification and dataset.label_sets is None
    seen: dict[int, str] = {}
    listed = {name for name, rules in dataset.search_rules.items() if rules.positives is not None}
    listed |= {dataset.search_in.get(name, name) for name in listed}
    for split in dataset.splits.values():
        labels = np.unique(split.labels).tolist()
        if len(labels) < 2 and split.name not in listed:
            classes = "1 class" if labels else "0 classes"
            raise DataError(
                f"{split.name} split has {len(split)} images of {classes}; Recall@K needs 2 classes",
                file=source,
                fix=f"Put images of 2 classes or more into {split.name}",
            )
        for label in labels:
            other = seen.setdefault(label, split.name)
            if apart and not dataset.together(other, split.name):
                separator = separator_note(dataset.class_names)
                raise DataError(
                    f"class {dataset.class_names[label]} is in {other} and {split.name}, but no class may be in two"
                    " splits",
                    file=source,
                    fix="; ".join([fix, *[separator] * (separator in dataset.input_notes)]),
                )
    return dataset


def overlaps(dataset: Dataset) -> tuple[str, ...]:
    """A note for each two splits that have images of the same content, which are hashed, and must not have them."""
    names, notes = list(dataset.splits), []
    for index, name in enumerate(names):
        split = dataset.splits[name]
        for other in names[:index]:
            other_digests = dataset.splits[other].digests
            if dataset.together(name, other) or other_digests is None or split.digests is None:
                continue
            # Most images differ in the first number already.
            here = split.digests[np.isin(split.digests[:, 0], other_digests[:, 0])]
            there = {row.tobytes() for row in other_digests[np.isin(other_digests[:, 0], here[:, 0])]}
            count = sum(row.tobytes() in there for row in here)
            if count:
                notes.append(f"{name} images that are in {other} too: {count:,} of {len(split):,}")
    return tuple(notes)


def label_notes(dataset: Dataset) -> tuple[str, ...]:
    """Notes on classes that are sets of labels."""
    return () if dataset.label_sets is None else (NOTE, *shared_labels(dataset))


def shared_labels(dataset: Dataset) -> tuple[str, ...]:
    """A note on how many labels of test images training images have too, where classes are sets of labels."""
    if dataset.label_sets is None or not {"train", "test"} <= dataset.splits.keys():
        return ()
    classes, labels = dataset.label_sets.T
    train, test = (np.unique(labels[np.isin(classes, dataset.splits[name].labels)]) for name in ("train", "test"))
    count = int(np.isin(test, train).sum())
    return (f"labels of test images that training images have too: {count:,} of {len(test):,}",) if count else ()


def manifest_sha256(split: Split, class_names: tuple[str, ...]) -> str:
    """Hex hash of a split's ids, class names and fingerprint: of files the sizes, not the contents."""
    return _hash_images(split.fingerprint.encode(), split, class_names)


def contents_sha256(split: Split, class_names: tuple[str, ...]) -> str:
    """Hex hash of a split's ids, class names and contents; a run and its features belong to the images of one."""
    return _hash_images(digests_of(split).tobytes(), split, class_names)


def digests_of(split: Split) -> NDArray[np.int64]:
    """`Split.digests` of a split whose images are hashed."""
    if split.digests is None:
        raise ValueError(f"split {split.name}: its images are not hashed")
    return split.digests


def _hash_images(images: bytes, split: Split, class_names: tuple[str, ...]) -> str:
    digest = hashlib.sha256(images)
    for start in range(0, len(split), _HASHED):
        ids, labels = split.ids[start : start + _HASHED], split.labels[start : start + _HASHED].tolist()
        digest.update("".join([f"\0{x}\0{class_names[y]}" for x, y in zip(ids, labels, strict=True)]).encode())
    return digest.hexdigest()


def distinct_names(names: Mapping[ClassId, str]) -> tuple[str, ...]:
    """The names of classes, each followed by its id where two classes have the same name.

    Args:
        names: class id -> name.
    """
    times = Counter(names.values())
    return tuple(name if times[name] == 1 else f"{name} ({class_id})" for class_id, name in names.items())


Role = tuple[
    str, bool, bool
]  # of SPLITS; of a test image, whether it is searched for, and whether it is searched among


def divide_rows(roles: Sequence[Role]) -> tuple[dict[str, list[int]], Mapping[str, str], tuple[str, ...]]:
    """The places of the rows of each split, which may be empty, the data set's `search_in` and its notes.

    Where no row is of the split test, those of the split validation are.
    """
    members = {name: [row for row, role in enumerate(roles) if role[0] == name] for name in SPLITS}
    notes: tuple[str, ...] = ()
    if members["validation"] and not members["test"]:
        members = members | {"validation": [], "test": members["validation"]}
        notes = ("the rows of the split validation are the test images",)
    test = members["test"]
    if all(roles[row][1:] == (True, True) for row in test):
        return members, {}, notes
    members["gallery"] = [row for row in test if roles[row][2]]
    members["test"] = [row for row in test if roles[row][1]]
    return members, IN_GALLERY, notes
