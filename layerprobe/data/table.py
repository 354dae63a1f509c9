"""Images listed in a csv table, as users of open-metric-learning have them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from layerprobe.data.folder import DEFAULTS as FOLDER_DEFAULTS
from layerprobe.data.image_files import Files, file_sizes, leaves_folder, missing
from layerprobe.data.splits import Dataset, Split
from layerprobe.errors import DataError

DEFAULTS: Mapping[str, object] = FOLDER_DEFAULTS

_LAYOUT = "Expected a table with commas, path,label,split[,is_query,is_gallery], split being train, validation or test"
_SPLITS = ("train", "validation", "test")
_REQUIRED = ("path", "label", "split")
_TRUTH = {"true": True, "t": True, "yes": True, "y": True, "1": True, "1.0": True} | {
    "false": False, "f": False, "no": False, "n": False, "0": False, "0.0": False,
}  # fmt: skip
_MISSING = {
    "train": "no row has the split train",
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


def load(root: Path) -> Dataset:
    """The images that a table lists.

    The table has the columns `path` (relative to the table's folder, `/` between folders), `label` (any text) and
    `split` (train, validation or test). Of the test rows `is_query` and `is_gallery` tell which are searched for and
    which among; a column that is not there means all. Where every test row is both, the test split is searched in
    itself. Else the queries are the split `test`, which is searched in the split `gallery`; an image that is both is
    in both under one id. Further columns are ignored, bounding boxes too.

    Args:
        root: the csv file, comma-separated, UTF-8 with or without byte order mark, any line ends.

    Raises:
        DataError: no such table, a bad line, a path that leaves the folder, an image listed twice or missing, or a
            split without rows.
    """
    rows = _rows(root)
    _require_plain_validation(root, rows)
    _require_files(root, rows)
    class_names = tuple(sorted({row.label for row in rows}))
    members = {name: [row for row in rows if row.split == name] for name in _SPLITS}
    search_in = {}
    if not all(row.is_query and row.is_gallery for row in members["test"]):
        members["gallery"] = [row for row in members["test"] if row.is_gallery]
        members["test"] = [row for row in members["test"] if row.is_query]
        search_in = {"test": "gallery"}
    for name, problem in _MISSING.items():
        if not members.get(name, True):
            raise DataError(problem, file=root, fix=_LAYOUT)
    splits = {name: _split(name, root.parent, found, class_names) for name, found in members.items() if found}
    return Dataset(splits, class_names, search_in)


def _split(name: str, folder: Path, rows: Sequence[_Row], class_names: Sequence[str]) -> Split:
    numbers = {label: number for number, label in enumerate(class_names)}
    names = tuple(row.path for row in rows)
    return Split(
        name=name,
        labels=np.array([numbers[row.label] for row in rows], np.int64),
        ids=names,
        image=Files(folder, names),
        fingerprint=file_sizes(folder, names),
    )


def _rows(table: Path) -> list[_Row]:
    if table.is_dir():
        raise DataError("a folder, not a table", file=table, fix="Give the csv file, or use folder:DIR")
    try:
        text = table.read_bytes()
        lines = io.StringIO(text.decode("utf-8-sig"), newline="")
    except FileNotFoundError as error:
        raise DataError("no such table", file=table, fix=_LAYOUT) from error
    except PermissionError as error:
        raise DataError("permission denied", file=table) from error
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise _bad(table, line, "not UTF-8", "Save the table as UTF-8") from error
    rows = list(_parsed(table, csv.DictReader(lines, skipinitialspace=True)))
    if not rows:
        raise DataError("no rows", file=table, fix=_LAYOUT)
    first: dict[str, int] = {}
    for row in rows:
        if first.setdefault(row.path, row.line) != row.line:
            raise _bad(table, row.line, f"{row.path} is listed in line {first[row.path]} already", "Keep one")
    return rows


def _parsed(table: Path, reader: csv.DictReader[str]) -> Iterator[_Row]:
    try:
        missing = [name for name in _REQUIRED if name not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"no column {', '.join(missing)}", file=table, fix=_LAYOUT)
        for row in reader:
            yield _row(table, reader.line_num, row)
    except csv.Error as error:
        raise _bad(table, reader.line_num, str(error), "Save the table as plain csv") from error


def _row(table: Path, line: int, row: Mapping[str | None, str | list[str] | None]) -> _Row:
    # The reader files surplus cells under None and fills absent ones with None.
    if None in row or None in row.values():
        raise _bad(table, line, "as many cells as the header are expected", "Put text with commas into quotes")
    cells = {str(name): str(cell).strip() for name, cell in row.items()}
    for name in ("path", "label"):
        if not cells[name]:
            raise _bad(table, line, f"{name} is empty", _LAYOUT)
    if cells["split"] not in _SPLITS:
        raise _bad(table, line, f"split is {cells['split']!r}", "Known: train, validation, test")
    is_query, is_gallery = (_truth(table, line, name, cells) for name in ("is_query", "is_gallery"))
    if not (is_query or is_gallery):
        raise _bad(table, line, "neither is_query nor is_gallery", "Make it one of them or leave the row out")
    return _Row(line, _inside(table, line, cells["path"]), cells["label"], cells["split"], is_query, is_gallery)


def _truth(table: Path, line: int, name: str, cells: Mapping[str, str]) -> bool:
    text = cells.get(name, "true")
    # As open-metric-learning writes them, the cells are empty or false where nothing is searched.
    if cells["split"] == "train" or (not text and cells["split"] == "validation"):
        return True
    if text.lower() not in _TRUTH:
        raise _bad(table, line, f"{name} is {text!r}", "Expected true or false")
    return _TRUTH[text.lower()]


def _inside(table: Path, line: int, text: str) -> str:
    """The path in one spelling, once it is sure to stay in the table's folder."""
    path, folder = PurePosixPath(text), table.parent.resolve()
    if leaves_folder(str(path)) or not (folder / path).resolve().is_relative_to(folder):
        raise _bad(
            table, line, f"path leaves the data folder: {text!r}", "Write it relative to the table's folder, with /"
        )
    return str(path)


def _require_plain_validation(table: Path, rows: Iterable[_Row]) -> None:
    for row in rows:
        if row.split == "validation" and not (row.is_query and row.is_gallery):
            raise _bad(
                table,
                row.line,
                "only test rows are divided into queries and gallery",
                "If these classes are what you test on, call their split test",
            )


def _require_files(table: Path, rows: Sequence[_Row]) -> None:
    absent = [row.path for row in rows if not (table.parent / row.path).is_file()]
    if absent:
        fix = "Put them there or leave their rows out; paths are relative to the table's folder"
        raise DataError(missing(absent, len(rows)), file=table, fix=fix)


def _bad(table: Path, line: int, why: str, fix: str) -> DataError:
    return DataError(why, file=f"{table}:{line}", fix=fix)
