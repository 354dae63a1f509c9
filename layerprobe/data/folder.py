"""Images in a folder for each class."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.images import EXTENSIONS, read_image
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.errors import DataError, RecipeError

DEFAULTS: Mapping[str, object] = {
    "image_size": 224,
    "augment": "photo",
    "mean": "imagenet",
    "std": "imagenet",
    "invert": False,
}
_LAYOUT = "Expected ROOT/CLASS/IMAGE.png, classes at any depth"


@dataclass(frozen=True, eq=False)
class Files:
    """The images of a split, read from files when asked for.

    Args:
        root: the folder that the names are relative to.
        names: one for each image, with `/` as separator.
        exif_rotation: see `read_image`.
        padded: likewise; for a resize that takes it.
    """

    root: Path
    names: Sequence[str]
    exif_rotation: bool = False
    padded: bool = False

    @property
    def paths(self) -> str:
        """Which files they are, in order, from the root of the disk."""
        return "\0".join([str(self.root.resolve()), *self.names])

    def stamps(self) -> NDArray[np.int64]:
        """(N, 2) size in bytes and time of the last change in nanoseconds, by which a changed file is known.

        Raises:
            DataError: a file went away.
        """
        try:
            found = [(self.root / name).stat() for name in self.names]
        except OSError as error:
            raise DataError(f"cannot be read ({error.strerror})", file=error.filename) from error
        return np.array([(stat.st_size, stat.st_mtime_ns) for stat in found], np.int64).reshape(-1, 2)

    def __call__(self, index: int) -> Image:
        """The index-th image."""
        path = self.root / self.names[index]
        return read_image(path, exif_rotation=self.exif_rotation, padded=self.padded)


def load(root: Path, *, train_classes: int | None = None) -> Dataset:
    """The images below a folder, split into classes to train on and classes to test on.

    A class is a folder that directly holds images, named by its path below the root: the nested folders
    `<Alphabet>/<character>` are one class each. Classes and images are sorted by name. Hidden files and folders and
    files that are no images by their ending are ignored; links are followed.

    Args:
        root: the folder; nothing is written there.
        train_classes: so many of the sorted classes are trained on, the rest tested; None: the first half, C // 2.

    Raises:
        DataError: no such folder, fewer than 4 classes, images outside every class, or a name that is not UTF-8.
        RecipeError: train_classes leaves fewer than 2 classes on a side.
    """
    classes = _classes(root)
    for names in classes.values():
        _require_utf8(root, names)
    if "." in classes:
        raise DataError(f"{len(classes['.'])} images lie outside every class folder", file=root, fix=_LAYOUT)
    if len(classes) < 4:
        raise DataError(
            f"{len(classes)} classes with images; 2 to train and 2 to test are needed", file=root, fix=_LAYOUT
        )
    count = len(classes) // 2 if train_classes is None else train_classes
    if not 2 <= count <= len(classes) - 2:
        raise RecipeError(
            f"data.train_classes = {count}: of {len(classes)} classes, at least 2 must train and 2 test",
            file=root,
            fix=f"From 2 to {len(classes) - 2}",
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


def read_with(dataset: Dataset, *, exif_rotation: bool, padded: bool) -> Dataset:
    """The data set with its files read by these options of `read_image`; images that are no files stay as they are."""

    def one(split: Split) -> Split:
        if not isinstance(split.image, Files):
            return split
        return replace(split, image=replace(split.image, exif_rotation=exif_rotation, padded=padded))

    return replace(dataset, splits={name: one(split) for name, split in dataset.splits.items()})


def file_sizes(root: Path, names: Iterable[str]) -> str:
    """Hex hash of files' sizes in bytes: what tells changed images from the ones that features were made of.

    Raises:
        DataError: a file went away.
    """
    try:
        sizes = [(root / name).stat().st_size for name in names]
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", file=error.filename) from error
    return hashlib.sha256(repr(sizes).encode()).hexdigest()


def _classes(root: Path) -> dict[str, list[str]]:
    """Folder below the root -> its images below the root."""
    if not root.is_dir():
        raise DataError("not a folder" if root.exists() else "no such folder", file=root, fix=_LAYOUT)
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
        raise DataError(f"cannot be read ({error.strerror})", file=error.filename) from error

    for path, below, files in os.walk(root, followlinks=True, onerror=refuse):
        folder = Path(path)
        below[:] = [name for name in below if not name.startswith(".")]
        for name in below:
            if (folder / name).is_symlink() and folder.resolve().is_relative_to((folder / name).resolve()):
                raise DataError("a link to a folder that it lies in", file=folder / name, fix="Remove it")
        yield folder, files


def _require_utf8(root: Path, names: Iterable[str]) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"a file name that is not UTF-8: {name!a}", file=root, fix="Rename it") from error
