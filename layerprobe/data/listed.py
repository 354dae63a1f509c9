"""Benchmarks whose annotation files list every image with its class: from the lists to a checked data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerprobe.data.folder import DEFAULTS as FOLDER_DEFAULTS
from layerprobe.data.image_files import Files, fingerprint, first_named, missing, require_inside, sizes_of
from layerprobe.data.splits import Dataset, Split
from layerprobe.errors import DataError

DEFAULTS: Mapping[str, object] = {**FOLDER_DEFAULTS, "transform": "D1"}

_COMPLETE = "Complete the copy, or go on with what is there by --set data.allow_partial=true"

ClassId = int | str
Listed = tuple[str, ClassId]  # an image's name below the folder, and its class


@dataclass(frozen=True)
class Count:
    """How large a split is.

    Args:
        images: how many.
        classes: how many occur.
        each: fewest and most images of a class; None where no source states them.
    """

    images: int
    classes: int
    each: tuple[int, int] | None = None

    def __str__(self) -> str:
        each = "" if self.each is None else f" ({self.each[0]}-{self.each[1]} each)"
        return f"{self.images:,} images of {self.classes:,} classes{each}"


@dataclass(frozen=True, eq=False)
class Annotations:
    """What the annotation files say, before any image is looked for.

    Args:
        folder: what the images' names are relative to.
        splits: name -> its images, in the files' order.
        class_names: class id -> name; a class that is not in it is called by its id.
    """

    folder: Path
    splits: Mapping[str, Sequence[Listed]]
    class_names: Mapping[ClassId, str]


def find_folder(root: Path, places: Iterable[str], needed: str, *, expected: str) -> Path:
    """The first of some folders below the root that has a file.

    Args:
        root: what the user gave.
        places: relative to the root; "." is the root itself.
        needed: the file, relative to the place.
        expected: the known layouts, for the error.

    Raises:
        DataError: no such root, or the file is in none of the places.
    """
    if not root.is_dir():
        raise DataError("not a folder" if root.exists() else "no such folder", file=root, fix=expected)
    for place in places:
        if (root / place / needed).is_file():
            return root / place
    raise DataError(f"no known layout: {needed} is not there", file=root, fix=expected)


def read_rows(path: Path, columns: Mapping[str, Callable[[str], Any]], *, above: int = 0) -> list[tuple[Any, ...]]:
    """The rows of a text file of cells with white space between them; blank lines are left out.

    Args:
        path: UTF-8, with or without byte order mark, any line ends.
        columns: name -> what a cell is read by; it refuses one by a ValueError.
        above: lines above the rows, the last of which names the columns.

    Raises:
        DataError: the file is absent or unreadable, the column names differ, or a line has other cells.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", file=path) from error
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8", file=path, fix="Get the file again") from error
    names, readers = list(columns), list(columns.values())
    if above and (len(lines) < above or lines[above - 1].split() != names):
        raise DataError("other columns", file=f"{path}:{above}", fix=f"Expected {' '.join(names)}")
    rows = []
    for number, line in enumerate(lines[above:], start=above + 1):
        cells = line.split()
        if not cells:
            continue
        try:
            rows.append(tuple(read(cell) for read, cell in zip(readers, cells, strict=True)))
        except ValueError as error:
            raise DataError(f"a bad line: {line.strip()[:99]!a}", file=f"{path}:{number}", fix=_row(names)) from error
    return rows


def _row(names: Sequence[str]) -> str:
    return f"Expected {' '.join(f'<{name}>' for name in names)}"


def count(split: Sequence[Listed]) -> Count:
    """How large a split is."""
    sizes = Counter(class_id for _, class_id in split).values()
    return Count(len(split), len(sizes), (min(sizes), max(sizes)) if sizes else None)


def dataset_of(annotations: Annotations, expected: Mapping[str, Count], *, allow_partial: bool) -> Dataset:
    """The listed images that there are, once they are all there or may be fewer.

    Classes are numbered split after split, each split's in the order of their ids, so that the training classes are
    0 to C - 1. A class is called by its name, followed by its id where two have the same name. Links to files are
    followed; a folder that a link takes out of the data set's folder is not.

    Args:
        annotations: what should be there.
        expected: split -> how large it is in a whole copy.
        allow_partial: go on with fewer or other images; the data set's notes say so.

    Raises:
        DataError: a name leaves the folder or is listed twice; or, unless allow_partial, images are missing (all are
            counted, five named) or a split has other counts than expected, with the numbers of every split.
    """
    names = [name for split in annotations.splits.values() for name, _ in split]
    require_inside(annotations.folder, names)
    _require_once(annotations.folder, names)
    sizes = dict(zip(names, sizes_of(annotations.folder, names), strict=True))
    found = {
        name: [image for image in split if sizes[image[0]] is not None] for name, split in annotations.splits.items()
    }
    counts = {name: count(split) for name, split in found.items()}
    absent = [name for name in names if sizes[name] is None]
    problems = [missing(absent, len(names))] * bool(absent) + _wrong(counts, expected)
    if problems and not allow_partial:
        raise DataError("; ".join(problems), file=annotations.folder, fix=_COMPLETE)
    numbers = {class_id: number for number, class_id in enumerate(_in_order(found.values()))}
    splits = {}
    for name, split in found.items():
        ids = tuple(image for image, _ in split)
        splits[name] = Split(
            name=name,
            labels=np.array([numbers[class_id] for _, class_id in split], np.int64),
            ids=ids,
            image=Files(annotations.folder, ids),
            fingerprint=fingerprint([sizes[image] or 0 for image in ids]),
        )
    called = _different(numbers, annotations.class_names)
    return Dataset(splits, called, notes=_notes(counts, expected), class_ids=tuple(map(str, numbers)))


def classified(dataset: Dataset) -> Dataset:
    """The data set marked as one whose test images are of the training classes, which its results say."""
    note = f"classification protocol: the official split, all {len(dataset.class_names)} classes on both sides"
    return replace(dataset, classification=True, notes=(*dataset.notes, note))


def _in_order(splits: Iterable[Sequence[Listed]]) -> list[ClassId]:
    """Every class id once: those of the first split ascending, then those that further ones add."""
    ids: dict[ClassId, None] = {}
    for split in splits:
        # All ids of a data set are of one kind.
        ids |= dict.fromkeys(sorted({class_id for _, class_id in split}))
    return list(ids)


def _different(ids: Iterable[ClassId], names: Mapping[ClassId, str]) -> tuple[str, ...]:
    called = {class_id: names.get(class_id, str(class_id)) for class_id in ids}
    times = Counter(called.values())
    return tuple(name if times[name] == 1 else f"{name} ({class_id})" for class_id, name in called.items())


def _require_once(folder: Path, names: Sequence[str]) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise DataError(
            f"{len(twice):,} images are listed twice: {first_named(twice)}", file=folder, fix="Get the lists again"
        )


def _wrong(found: Mapping[str, Count], expected: Mapping[str, Count]) -> list[str]:
    """Every split's numbers, if one's are wrong."""
    if not any(_differs(found[name], expected[name]) for name in expected):
        return []
    return [f"{name} has {found[name]}, expected {expected[name]}" for name in expected]


def _differs(found: Count, expected: Count) -> bool:
    each = expected.each is not None and found.each != expected.each
    return each or (found.images, found.classes) != (expected.images, expected.classes)


def _notes(found: Mapping[str, Count], expected: Mapping[str, Count]) -> tuple[str, ...]:
    notes = []
    for name, whole in expected.items():
        if _differs(found[name], whole):
            classes = (found[name].classes, whole.classes)
            also = "" if classes[0] == classes[1] else f" of {classes[0]:,} of {classes[1]:,} classes"
            notes.append(f"partial: {found[name].images:,} of {whole.images:,} {name} images{also}")
    return tuple(notes)
