"""The images of a split as files below one folder: whether they are there, whether they changed, how they are read."""

from __future__ import annotations

import array
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.images import WHITE, Box, ImageFile, crop, read_image
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.data.table_images import TableImage, TarImage
from layerprobe.system.errors import DataError
from layerprobe.system.wording import first_named

_NAMED = 4096  # names of images in tables that are made at once


@dataclass(frozen=True, eq=False)
class RowNames(Sequence[str]):
    """The names of images in tables, `FILE:ROW` or `FILE:BYTE+SIZE`, each made when it is asked for.

    Args:
        tables: names of files.
        table: (N,) index of that of each image.
        places: (N,) its row, or (N, 2) its first byte and its size.
    """

    tables: Sequence[str]
    table: NDArray[np.intp]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _NAMED):
            rows = slice(start, start + _NAMED)
            tables = map(self.tables.__getitem__, self.table[rows].tolist())
            yield from map(self._text.format, tables, *self.places[rows].reshape(len(self.table[rows]), -1).T.tolist())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            raise TypeError("names are given one at a time")
        return self._text.format(self.tables[self.table[index]], *np.atleast_1d(self.places[index]).tolist())

    @property
    def _text(self) -> str:
        return "{}:{:09}" if self.places.ndim == 1 else "{}:{:013}+{}"

    def some(self, indices: NDArray[np.intp] | Sequence[int]) -> RowNames:
        """Those of some indices, in their order."""
        return replace(self, table=self.table[indices], places=self.places[indices])


@dataclass(frozen=True, eq=False)
class Files:
    """i -> image, read from its file at every call.

    Args:
        names: one for each image, with `/` as separator; of an image in a table `FILE:ROW`.
        fast: see `read_image`.
        white: see `read_image`.
        boxes: the part of each file that is its image, None for all of it; None: all of every file.
        column: of tables, which has the images; None: each image is a file.
        stamps: see `stamps_of`, as the files were listed; None: not read then.
    """

    root: Path
    names: Sequence[str]
    exif_rotation: bool = False
    fast: bool = False
    white: int = WHITE
    boxes: Sequence[Box | None] | None = None
    column: str | None = None
    stamps: NDArray[np.int64] | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The name of each image, followed by its box, if any: `a/1.png#5-0-45-40` from left, top to right, bottom."""
        if self.boxes is None:
            return tuple(self.names)
        return tuple(map(image_id, self.names, self.boxes))

    @property
    def origin(self) -> Path:
        """What the names are relative to: the root, or a column of its tables."""
        return self.root if self.column is None else self.root / f":{self.column}"

    @property
    def paths(self) -> str:
        """The absolute origin and the ids in order, as one text: equal texts mean the same files and boxes."""
        return "\0".join([str(self.origin.resolve()), *self.ids])

    def file(self, name: str) -> ImageFile:
        """The file, or the row of a table, of a name; in a tar file the row is `BYTE+SIZE`."""
        if self.column is None:
            return self.root / name
        table, _, row = name.rpartition(":")
        if "+" in row:
            offset, size = row.split("+")
            return TarImage(self.root / table, int(offset), int(size))
        return TableImage(self.root / table, self.column, int(row))

    def some(self, indices: Sequence[int] | NDArray[np.intp]) -> Files:
        """Those of some indices, in their order."""
        names, rows = self.names, np.asarray(indices, np.intp)
        boxes = None if self.boxes is None else [self.boxes[row] for row in rows.tolist()]
        stamps = None if self.stamps is None else self.stamps[rows]
        names = names.some(rows) if isinstance(names, RowNames) else [names[row] for row in rows.tolist()]
        return replace(self, names=names, boxes=boxes, stamps=stamps)

    def __call__(self, index: int) -> Image:
        """The index-th image."""
        path = self.file(self.names[index])
        image = read_image(path, exif_rotation=self.exif_rotation, fast=self.fast, white=self.white)
        box = None if self.boxes is None else self.boxes[index]
        return image if box is None else crop(image, box, path)


@dataclass(frozen=True, eq=False)
class ListedImages:
    """The images that a table lists, before they are divided into splits.

    Args:
        labels: what the class of each image is called.
        columns: what else is known: name -> the text of each image.
    """

    files: Files
    ids: Sequence[str]
    labels: Sequence[str]
    columns: Mapping[str, Sequence[str]]

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """What its classes are called, sorted."""
        return tuple(sorted(set(self.labels)))

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """(N,) index of each image's class in `class_names`."""
        numbers = {name: number for number, name in enumerate(self.class_names)}
        return np.fromiter(map(numbers.__getitem__, self.labels), np.int64, len(self.labels))

    def dataset(
        self,
        members: Mapping[str, Sequence[int] | NDArray[np.intp]],
        fingerprints: Mapping[str, str],
        search_in: Mapping[str, str],
    ) -> Dataset:
        """The splits with the images at some places, without those that have none; classes are sorted by name."""
        splits = {
            name: Split(
                name=name,
                labels=self.classes[places],
                ids=tuple(map(self.ids.__getitem__, places.tolist())),
                image=self.files.some(places),
                fingerprint=fingerprints[name],
                columns={
                    column: tuple(map(texts.__getitem__, places.tolist())) for column, texts in self.columns.items()
                },
            )
            for name, places in ((name, np.asarray(places, np.intp)) for name, places in members.items())
            if len(places)
        }
        return Dataset(splits, self.class_names, search_in)


def image_id(name: str, box: Box | None) -> str:
    """The id of an image in a file, as `Files.ids`."""
    return name if box is None else f"{name}#{'-'.join(map(str, box))}"


def read_with(dataset: Dataset, *, exif_rotation: bool, fast: bool, white: int) -> Dataset:
    """The data set with its files read by these options of `read_image`; images that are not files are unchanged."""

    def set_options(split: Split) -> Split:
        if not isinstance(split.image, Files):
            return split
        return replace(split, image=replace(split.image, exif_rotation=exif_rotation, fast=fast, white=white))

    return dataset.map_splits(set_options)


def stamps_of(root: Path, names: Iterable[str]) -> NDArray[np.int64]:
    """(N, 3) size, and times of the last change as programs state it and as the system noted it, of files in ns."""
    prefix, stamps = f"{root}/", array.array("q")
    for name in names:
        try:
            status = os.stat(prefix + name)  # noqa: PTH116 - a Path takes longer to make than the status to read
        except OSError as error:
            raise DataError.unreadable(error, file=root / name) from error
        stamps.extend((status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return np.frombuffer(stamps, np.int64).reshape(-1, 3)


def fingerprint(sizes: Sequence[int]) -> str:
    """Hex hash of the files' sizes in bytes, which tells without reading them that they are others."""
    return hashlib.sha256(repr(list(sizes)).encode()).hexdigest()


def sizes_of(folder: Path, names: Iterable[str]) -> list[int | None]:
    """Size of each file in bytes; None where there is no file."""
    sizes: list[int | None] = []
    for name in names:
        try:
            status = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118 - as in `stamps_of`
        except (FileNotFoundError, NotADirectoryError):
            sizes.append(None)
        except OSError as error:
            raise DataError.unreadable(error, file=folder / name) from error
        else:
            sizes.append(status.st_size if stat.S_ISREG(status.st_mode) else None)
    return sizes


def missing_message(names: Sequence[str], listed_count: int) -> str:
    """The message that these images are missing, the first five of them named."""
    return f"{len(names):,} of {listed_count:,} listed images are missing: {first_named(names)}"


def leaves_folder(name: str) -> bool:
    """Whether a listed path, by its text alone, may lead out of the folder that it is relative to."""
    # A backslash may be part of a file's name here and separates folders on Windows.
    return "\\" in name or "\0" in name or ".." in name.split("/") or name.startswith("/")


def require_inside(folder: Path, names: Iterable[str]) -> None:
    """Refuse listed paths that lead out of their folder, by their text or by a link to a folder."""
    root, parents = folder.resolve(), set()
    for name in names:
        if leaves_folder(name):
            raise DataError(f"a listed path leaves the data folder: {name!a}", file=folder, fix="Get the lists again")
        parents.add(name.rpartition("/")[0])
    # Each folder once: resolving 120,000 files takes seconds.
    for parent in sorted(parents):
        if not (root / parent).resolve().is_relative_to(root):
            raise DataError(
                f"a link takes {parent!a} out of the data folder", file=folder, fix="Put the images there instead"
            )


def require_utf8(folder: Path, names: Iterable[str]) -> None:
    """Refuse names that cannot be stored as text: on Linux a file may be called by any bytes."""
    for name in names:
        if not name.isascii() and name.encode(errors="replace").decode() != name:
            raise DataError(f"a file name that is not UTF-8: {name!a}", file=folder, fix="Rename it")
