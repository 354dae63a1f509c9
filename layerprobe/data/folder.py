"""The data set `folder`: images in a folder for each class."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from layerprobe.data.annotation_files import Annotations, every_image
from layerprobe.data.image_files import Files, file_sizes, require_utf8
from layerprobe.data.images import EXTENSIONS
from layerprobe.data.spec import DatasetSpec
from layerprobe.data.splits import Dataset, Split
from layerprobe.errors import DataError, RecipeError

_LAYOUT = "DIR/CLASS/IMAGE, classes at any depth"


def load(root: Path, *, train_classes: int | None = None) -> Dataset:
    """The images below a folder, their classes divided into training and test classes.

    A class is a folder that directly holds images. Its name is its path below the root, so that each of the nested
    folders `<Alphabet>/<character>` is a class. Classes and images are sorted by name. Hidden files, hidden folders and
    files whose names do not end like an image's are ignored; links are followed. Nothing is written.

    Args:
        root: the folder.
        train_classes: how many of the sorted classes are for training, the rest being for testing; None: the first
            half, C // 2.

    Raises:
        DataError: no such folder, fewer than 4 classes, images outside every class folder, or a name that is not UTF-8.
        RecipeError: train_classes leaves fewer than 2 classes for training or for testing.
    """
    classes = _classes(root)
    for names in classes.values():
        require_utf8(root, names)
    if "." in classes:
        raise DataError(
            f"{len(classes['.'])} images lie outside every class folder", file=root, fix=f"Expected {_LAYOUT}"
        )
    if len(classes) < 4:
        raise DataError(
            f"{len(classes)} classes with images; 2 to train and 2 to test are needed",
            file=root,
            fix=f"Expected {_LAYOUT}",
        )
    count = len(classes) // 2 if train_classes is None else train_classes
    if not 2 <= count <= len(classes) - 2:
        raise RecipeError(
            f"data.train_classes = {count}: of {len(classes)} classes, at least 2 must train and 2 test",
            file=root,
            fix=f"Give a number from 2 to {len(classes) - 2}",
        )
    sorted_classes = sorted(classes)
    splits = {
        "train": _split("train", root, classes, range(count), sorted_classes),
        "test": _split("test", root, classes, range(count, len(classes)), sorted_classes),
    }
    return Dataset(splits, tuple(sorted_classes))


def _split(
    name: str, root: Path, classes: Mapping[str, list[str]], labels: Iterable[int], class_names: Sequence[str]
) -> Split:
    members = [(label, file) for label in labels for file in sorted(classes[class_names[label]])]
    names = tuple(file for _, file in members)
    return Split(
        name=name,
        labels=np.array([label for label, _ in members], np.int64),
        ids=names,
        image=Files(root, names),
        fingerprint=file_sizes(root, names),
    )


def _classes(root: Path) -> dict[str, list[str]]:
    """Class folder -> its images, both as paths below the root; `.` holds the images outside every class folder."""
    if not root.is_dir():
        raise DataError("not a folder" if root.exists() else "no such folder", file=root, fix=f"Expected {_LAYOUT}")
    classes: dict[str, list[str]] = {}
    for folder, files in _folders(root):
        images = [file for file in files if not file.startswith(".") and Path(file).suffix.lower() in EXTENSIONS]
        if images:
            relative = folder.relative_to(root)
            classes[relative.as_posix()] = [(relative / image).as_posix() for image in images]
    return classes


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder that is not hidden, with the names of its files."""

    def refuse(error: OSError) -> None:
        raise DataError.unreadable(error) from error

    for path, below, files in os.walk(root, followlinks=True, onerror=refuse):
        folder = Path(path)
        below[:] = [name for name in below if not name.startswith(".")]
        for name in below:
            if (folder / name).is_symlink() and folder.resolve().is_relative_to((folder / name).resolve()):
                raise DataError("this link leads to a folder that it lies in", file=folder / name, fix="Remove it")
        yield folder, files


def _unchecked(root: Path) -> Dataset:
    """Every image, also of fewer than 4 classes and outside every class folder."""
    classes = _classes(root)
    names = sorted(classes)
    half = len(names) // 2
    splits = {
        split: [(file, name) for name in part for file in sorted(classes[name])]
        for split, part in (("train", names[:half]), ("test", names[half:]))
    }
    return every_image(Annotations(root, splits))


SPEC = DatasetSpec(
    load=load,
    unchecked=_unchecked,
    argument="DIR",
    holds="images in a folder for each class",
    layout=f"{_LAYOUT}; the first half of the classes by name trains, the rest tests",
)
