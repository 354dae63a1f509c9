"""The data set `csv`: images listed in a csv file, as users of open-metric-learning have them."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.annotation_files import Annotations, every_image
from layerprobe.data.image_files import Files, file_sizes, leaves_folder, missing
from layerprobe.data.label_sets import label_sets_of, separator_note, split_labels
from layerprobe.data.spec import DatasetSpec
from layerprobe.data.splits import IN_GALLERY, Dataset, Split
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file

_LAYOUT = "FILE with the columns path,label,split[,is_query,is_gallery][,...], separated by commas"
_EXPECTED = f"Expected {_LAYOUT}; split is train, validation or test"
_SPLITS = ("train", "validation", "test")
_REQUIRED = ("path", "label", "split")
_DIVIDING = ("is_query", "is_gallery")
_TRUTH = {"true": True, "t": True, "yes": True, "y": True, "1": True, "1.0": True} | {
    "false": False, "f": False, "no": False, "n": False, "0": False, "0.0": False,
}  # fmt: skip
# Split -> the error if it is empty.
_EMPTY = {
    "test": "no row is a query of the split test",
    "gallery": "no row is in the gallery of the split test",
}


@dataclass(frozen=True)
class _Row:
    line: int
    path: str
    label: str
    split: str
    is_query: bool
    is_gallery: bool
    further: Mapping[str, str]  # column -> cell


def load(root: Path, *, label_separator: str = "") -> Dataset:
    """The images that a csv file lists.

    Its columns are `path` (relative to the file's folder, `/` between folders), `label` (any text) and `split` (train,
    validation or test). For the test rows, `is_query` says whether the image is searched for, `is_gallery` whether it
    is searched among; an absent column means true for all. If every test row is both, the test split is searched in
    itself. Otherwise the queries are the split `test`, which is searched in the split `gallery`; an image that is both
    is in both under one id. In a table without test rows, as open-metric-learning writes it, the validation rows are
    the test rows, and `notes` says so. Further columns are kept as text in `Split.columns`; bounding boxes are not
    used.

    Args:
        root: the csv file, comma-separated, UTF-8 with or without byte order mark, any line ends.
        label_separator: what separates the labels of an image in its cell; empty: each cell is one label.
    """
    listed = _rows(root)
    rows = _with_test(listed)
    notes: tuple[str, ...] = () if rows is listed else ("the rows of the split validation are the test images",)
    _require_plain_validation(root, rows)
    _require_files(root, rows)
    rows, label_sets = _with_label_sets(root, rows, label_separator)
    class_names = tuple(sorted({row.label for row in rows}))
    members, search_in = _splits(rows)
    for name, problem in _EMPTY.items():
        if not members.get(name, True):
            raise DataError(problem, file=root, fix=_EXPECTED)
    splits = {name: _split(name, root.parent, found, class_names) for name, found in members.items() if found}
    if label_sets is None and (note := separator_note(class_names)):
        notes = (*notes, note)
    return Dataset(splits, class_names, search_in, notes, label_sets=label_sets)


def _with_label_sets(
    file: Path, rows: Sequence[_Row], separator: str
) -> tuple[Sequence[_Row], NDArray[np.int64] | None]:
    """The rows with a set of labels as label, and the data set's `label_sets`; the rows as they are without the key."""
    if not separator:
        return rows, None
    labels = [split_labels(row.label, separator) for row in rows]
    for row, found in zip(rows, labels, strict=True):
        if not found:
            why = f"label is {row.label!r}, which names none beside separators"
            raise _bad(file, row.line, why, "Fill the cell or leave the row out")
    sets = label_sets_of(labels, separator)
    names = (sets.class_names[number] for number in sets.classes.tolist())
    return [replace(row, label=name) for row, name in zip(rows, names, strict=True)], sets.pairs


def _unchecked(root: Path, *, label_separator: str = "") -> Dataset:
    """Every listed image, also without a train or test split."""
    rows, label_sets = _with_label_sets(root, _with_test(_rows(root)), label_separator)
    members, search_in = _splits(rows)
    named = {name: [(row.path, row.label) for row in found] for name, found in members.items() if found}
    found = every_image(Annotations(root.parent, named, search_in=search_in))
    return replace(found, label_sets=label_sets)


def _with_test(rows: Sequence[_Row]) -> Sequence[_Row]:
    """The rows; where none is of the split test, those of the split validation are."""
    splits = {row.split for row in rows}
    if "test" in splits or "validation" not in splits:
        return rows
    return [replace(row, split="test") if row.split == "validation" else row for row in rows]


def _splits(rows: Sequence[_Row]) -> tuple[dict[str, list[_Row]], Mapping[str, str]]:
    """The rows of each split, which may be empty, and the data set's `search_in`."""
    members = {name: [row for row in rows if row.split == name] for name in _SPLITS}
    if all(row.is_query and row.is_gallery for row in members["test"]):
        return members, {}
    members["gallery"] = [row for row in members["test"] if row.is_gallery]
    members["test"] = [row for row in members["test"] if row.is_query]
    return members, IN_GALLERY


def _split(name: str, folder: Path, rows: Sequence[_Row], class_names: Sequence[str]) -> Split:
    numbers = {label: number for number, label in enumerate(class_names)}
    names = tuple(row.path for row in rows)
    return Split(
        name=name,
        labels=np.array([numbers[row.label] for row in rows], np.int64),
        ids=names,
        image=Files(folder, names),
        fingerprint=file_sizes(folder, names),
        columns={column: tuple(row.further[column] for row in rows) for column in rows[0].further},
    )


def _rows(file: Path) -> list[_Row]:
    if file.is_dir():
        raise DataError("a folder, not a csv file", file=file, fix="Give the csv file, or use folder:DIR")
    try:
        require_file(file)
        text = file.read_bytes()
        lines = io.StringIO(text.decode("utf-8-sig"), newline="")
    except FileNotFoundError as error:
        raise DataError("no such csv file", file=file, fix=_EXPECTED) from error
    except OSError as error:
        raise DataError.unreadable(error, file=file) from error
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise _bad(file, line, "not UTF-8", "Save the file as UTF-8") from error
    rows = list(_parsed(file, csv.DictReader(lines, skipinitialspace=True)))
    if not rows:
        raise DataError("no rows", file=file, fix=_EXPECTED)
    first: dict[str, int] = {}
    for row in rows:
        if first.setdefault(row.path, row.line) != row.line:
            raise _bad(file, row.line, f"{row.path} is listed in line {first[row.path]} already", "Keep one")
    return rows


def _parsed(file: Path, reader: csv.DictReader[str]) -> Iterator[_Row]:
    try:
        names = reader.fieldnames or ()
        absent = [name for name in _REQUIRED if name not in names]
        if absent:
            raise DataError(f"no column {', '.join(absent)}", file=file, fix=_EXPECTED)
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise DataError(f"two columns are called {twice[0]!r}", file=file, fix="Rename one")
        for row in reader:
            yield _row(file, reader.line_num, row)
    except csv.Error as error:
        raise _bad(file, reader.line_num, str(error), "Save the file as plain csv") from error


def _row(file: Path, line: int, row: Mapping[str | None, str | list[str] | None]) -> _Row:
    # The reader puts surplus cells under None and fills absent cells with None.
    if None in row or None in row.values():
        problem = "the row has more or fewer cells than the header"
        raise _bad(file, line, problem, "Write a cell for each column, and put text with commas into quotes")
    cells = {str(name): str(cell).strip() for name, cell in row.items()}
    for name in ("path", "label"):
        if not cells[name]:
            raise _bad(file, line, f"{name} is empty", "Fill the cell or leave the row out")
    if cells["split"] not in _SPLITS:
        raise _bad(file, line, f"split is {cells['split']!r}", f"Known: {', '.join(_SPLITS)}")
    is_query, is_gallery = (_truth(file, line, name, cells) for name in _DIVIDING)
    if not (is_query or is_gallery):
        raise _bad(file, line, "is_query and is_gallery are both false", "Make one of them true or leave the row out")
    path = _inside(file, line, cells["path"])
    further = {name: cell for name, cell in cells.items() if name not in (*_REQUIRED, *_DIVIDING)}
    return _Row(line, path, cells["label"], cells["split"], is_query, is_gallery, further)


def _truth(file: Path, line: int, name: str, cells: Mapping[str, str]) -> bool:
    text = cells.get(name, "true")
    # open-metric-learning leaves these cells empty or false in splits that are not searched.
    if cells["split"] == "train" or (not text and cells["split"] == "validation"):
        return True
    if text.lower() not in _TRUTH:
        raise _bad(file, line, f"{name} is {text!r}", "Expected true or false")
    return _TRUTH[text.lower()]


def _inside(file: Path, line: int, text: str) -> str:
    """The path in its shortest spelling, if it stays in the file's folder."""
    path, folder = PurePosixPath(text), file.parent.resolve()
    if leaves_folder(str(path)) or not (folder / path).resolve().is_relative_to(folder):
        fix = "Write it relative to the folder of the csv file, with /"
        raise _bad(file, line, f"path leaves the data folder: {text!r}", fix)
    return str(path)


def _require_plain_validation(file: Path, rows: Iterable[_Row]) -> None:
    for row in rows:
        if row.split == "validation" and not (row.is_query and row.is_gallery):
            raise _bad(
                file,
                row.line,
                "only test rows are divided into queries and gallery",
                "If these classes are what you test on, call their split test",
            )


def _require_files(file: Path, rows: Sequence[_Row]) -> None:
    absent = [row.path for row in rows if not (file.parent / row.path).is_file()]
    if absent:
        fix = f"Put them below {file.parent} or leave their rows out"
        raise DataError(missing(absent, len(rows)), file=file, fix=fix)


def _bad(file: Path, line: int, why: str, fix: str) -> DataError:
    return DataError(why, file=f"{file}:{line}", fix=fix)


SPEC = DatasetSpec(
    load=load,
    unchecked=_unchecked,
    argument="FILE",
    holds="images listed in a csv file",
    layout=f"{_LAYOUT}; paths relative to its folder; split is train, validation or test",
)
