"""Annotation files, which list each image of a benchmark with its class, and the data set that they describe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerprobe.data.image_files import Files, fingerprint, missing_message, require_inside, require_utf8, sizes_of
from layerprobe.data.spec import Count, count, differences, partial_notes
from layerprobe.data.splits import ClassId, Dataset, Split, distinct_names
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file
from layerprobe.system.wording import first_named

# Keys of [data] whose defaults the benchmarks of the papers share.
DEFAULTS: Mapping[str, object] = {"transform": "D1"}

_AGAIN = "Get the file again"
_COMPLETE = "Complete the copy, or use the partial copy by --set data.allow_partial=true"

Member = tuple[str, ClassId]  # an image's path below the folder, and its class


@dataclass(frozen=True, eq=False)
class Annotations:
    """The content of annotation files, before any image is opened.

    Args:
        splits: name -> its images, in the files' order.
        class_names: class id -> name; a class that is not in it is called by its id. All ids are of one type.
        columns: name of a column -> the text of every image, by its path.
    """

    folder: Path
    splits: Mapping[str, Sequence[Member]]
    class_names: Mapping[ClassId, str] = field(default_factory=dict)
    search_in: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The paths of all images, split after split."""
        return [name for split in self.splits.values() for name, _ in split]

    def counts(self) -> dict[str, Count]:
        """The size of each split."""
        return {name: count(class_id for _, class_id in split) for name, split in self.splits.items()}


def find_folder(root: Path, places: Iterable[str], needed: str, *, layout: str) -> Path:
    """The first of some folders below the root that holds a file."""
    if not root.is_dir():
        raise DataError("not a folder" if root.exists() else "no such folder", file=root, fix=f"Expected {layout}")
    for subfolder in places:
        if (root / subfolder / needed).is_file():
            return root / subfolder
    raise DataError(f"no known layout: {needed} is not there", file=root, fix=f"Expected {layout}")


def read_rows(path: Path, columns: Mapping[str, Callable[[str], Any]], *, above: int = 0) -> list[tuple[Any, ...]]:
    """The rows of a text file whose cells are separated by white space; blank lines are skipped.

    Args:
        path: UTF-8, with or without byte order mark, any line ends.
        columns: name -> the function that reads a cell. It refuses a cell by a ValueError that names the expected
            value.
    """
    try:
        require_file(path)
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8", file=path, fix=_AGAIN) from error
    header = lines[above - 1].strip() if 0 < above <= len(lines) else ""
    if above and header.split() != list(columns):
        problem = f"the columns are {header[:99]!a}, expected {' '.join(columns)!a}"
        raise DataError(problem, file=f"{path}:{above}", fix=_AGAIN)
    readers, rows = list(columns.values()), []
    for number, line in enumerate(lines[above:], start=above + 1):
        cells = line.split()
        if not cells:
            continue
        try:
            rows.append(tuple(read(cell) for read, cell in zip(readers, cells, strict=True)))
        except ValueError as error:
            raise DataError(_fault(cells, columns), file=f"{path}:{number}", fix=_AGAIN) from error
    return rows


def _fault(cells: Sequence[str], columns: Mapping[str, Callable[[str], Any]]) -> str:
    """What is wrong with a row."""
    if len(cells) == len(columns):
        for (name, read), cell in zip(columns.items(), cells, strict=True):
            try:
                read(cell)
            except ValueError as error:
                return f"{name} is {cell[:99]!a}, expected {error}"
    expected = " ".join(f"<{name}>" for name in columns)
    return f"{len(cells)} cells in {' '.join(cells)[:99]!a}, expected {expected}"


def whole_number(cell: str) -> int:
    """Reads a cell for `read_rows`."""
    try:
        return int(cell)
    except ValueError as error:
        raise ValueError("a whole number") from error


def dataset_of(annotations: Annotations, published: Mapping[str, Count], *, allow_partial: bool) -> Dataset:
    """The data set of the listed images that are there.

    Classes are numbered split after split, in each split in the order of their ids, so that the training classes are
    0 to C - 1. A class is called by its name, followed by its id where two have the same name. Links to files are
    followed; links to folders outside the data set's folder are not.

    Args:
        published: split -> its size in a whole copy.
    """
    folder, names = annotations.folder, annotations.names
    require_inside(folder, names)
    require_utf8(folder, names)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        problem = f"{len(twice):,} images are listed twice: {first_named(twice)}"
        raise DataError(problem, file=folder, fix="Get the lists again")
    sizes = dict(zip(names, sizes_of(folder, names), strict=True))
    there = replace(
        annotations,
        splits={
            name: [image for image in split if sizes[image[0]] is not None]
            for name, split in annotations.splits.items()
        },
    )
    absent = [name for name in names if sizes[name] is None]
    problems = [missing_message(absent, len(names))] * bool(absent) + differences(there.counts(), published)
    if problems and not allow_partial:
        raise DataError("; ".join(problems), file=folder, fix=_COMPLETE)
    dataset = _dataset(there, [fingerprint([sizes[name] or 0 for name, _ in split]) for split in there.splits.values()])
    return replace(dataset, notes=partial_notes(there.counts(), published))


def every_image(annotations: Annotations) -> Dataset:
    """Every listed image, whether or not it is there, for a report; an image that is listed twice is one image."""
    once = {name: list(dict(split).items()) for name, split in annotations.splits.items()}
    return _dataset(replace(annotations, splits=once), [""] * len(once))


def unchecked_loader(read: Callable[[Path], Annotations]) -> Callable[[Path], Dataset]:
    """A DatasetSpec's `unchecked`, from the function that reads the annotation files below a root."""

    def every_listed(root: Path) -> Dataset:
        annotations = read(root)
        require_inside(annotations.folder, annotations.names)
        return every_image(annotations)

    return every_listed


def mark_classification(dataset: Dataset) -> Dataset:
    """The data set marked as one that tests on the training classes, with a note that says so."""
    note = f"classification protocol: the official split, all {len(dataset.class_names)} classes on both sides"
    return replace(dataset, classification=True, notes=(*dataset.notes, note))


def _dataset(annotations: Annotations, fingerprints: Sequence[str]) -> Dataset:
    """All images of the annotations, given a fingerprint for each split."""
    # Those of the first split ascending, then the new ones of each further split.
    ids: dict[ClassId, None] = {}
    for members in annotations.splits.values():
        ids |= dict.fromkeys(sorted({class_id for _, class_id in members}))
    numbers = {class_id: number for number, class_id in enumerate(ids)}
    splits = {}
    for (name, split), sizes in zip(annotations.splits.items(), fingerprints, strict=True):
        names = tuple(image for image, _ in split)
        labels = np.array([numbers[class_id] for _, class_id in split], np.int64)
        columns = {column: tuple(texts[image] for image in names) for column, texts in annotations.columns.items()}
        splits[name] = Split(name, labels, names, Files(annotations.folder, names), sizes, columns=columns)
    called = distinct_names({class_id: annotations.class_names.get(class_id, str(class_id)) for class_id in ids})
    return Dataset(splits, called, annotations.search_in, class_ids=tuple(map(str, ids)))
