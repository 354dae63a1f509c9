"""The data set `csv`: images listed in a csv file, as users of open-metric-learning have them."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.image_files import (
    Files,
    ListedImages,
    fingerprint,
    image_id,
    leaves_folder,
    missing_message,
    sizes_of,
)
from layerprobe.data.images import Box
from layerprobe.data.spec import DatasetSpec
from layerprobe.data.splits import Dataset, Role, divide_rows, separator_note, split_labels
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file
from layerprobe.values.scores import SPLITS

if TYPE_CHECKING:
    from _csv import Reader

# What may stand between the cells, and what it is called.
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def read_text(file: Path) -> str:
    """The text of a file in UTF-8 or, where it begins with a byte order mark, in UTF-16.

    Raises:
        DataError: another encoding.
        OSError: it cannot be read.
    """
    require_file(file)
    content = file.read_bytes()
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if wide else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].decode(encoding, errors="ignore").count("\n") + 1
        raise _not_utf8(file, line) from error
    if "\0" in text.partition("\n")[0]:  # UTF-16 without byte order mark
        raise _not_utf8(file, 1)
    return text


def _not_utf8(file: Path, line: int) -> DataError:
    return DataError("not UTF-8", file=f"{file}:{line}", fix="Save the file as UTF-8")


def rows_of(text: str, separator: str) -> Reader:
    """The cells of each line; spaces before a cell are skipped."""
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)


def separator_of(text: str, needed: Collection[str]) -> str:
    """The separator by which the first line has most of the needed columns, then most columns; else the comma.

    Args:
        needed: names of columns in small letters.
    """

    def columns(separator: str) -> tuple[int, int]:
        try:
            names = {cell.strip().casefold() for cell in next(rows_of(text, separator), [])}
        except csv.Error:
            return 0, 0
        return len(names & set(needed)), len(names)

    return max(SEPARATORS, key=columns)


_DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_FIX = "Write it relative to the folder of the csv file, with /"


def spellings(folder: Path) -> Sequence[str]:
    """How an absolute path may name a folder, with `/` at the end."""
    return [f"{name.as_posix().rstrip('/')}/" for name in dict.fromkeys((folder.absolute(), folder.resolve()))]


def relative(text: str, folders: Iterable[str]) -> str:
    """A path in its shortest spelling, with `/` for backslashes, and relative where it is in a folder so spelled."""
    path = text.replace("\\", "/")
    for folder in folders:
        path = path.removeprefix(folder)
    return str(PurePosixPath(path))


def below(file: Path, listed: Sequence[tuple[int, str]]) -> list[str]:
    """The path of each image that a table lists, below the table's folder.

    A file that is not there, while one is there whose name differs in Unicode composition alone (as macOS and Linux
    write `ä`), is that one. A path that leaves the folder, by its text or by a link, is refused.

    Args:
        file: the table.
        listed: line and path of each image.
    """
    folder, root, folders = file.parent, file.parent.resolve(), spellings(file.parent)
    resolved = cache(lambda name: (folder / name).resolve())
    composed = cache(_names_by_composition)
    names = []
    for line, text in listed:
        if "\\" in text or text[1:3] == ":/":
            _require_portable(file, line, text)
        name = relative(text, folders)
        parent, _, file_name = name.rpartition("/")
        # By a link to the folder.
        if name.startswith("/") and "\0" not in name and resolved(parent or "/").is_relative_to(root):
            name = (resolved(parent) / file_name).relative_to(root).as_posix()
        if leaves_folder(name):
            raise _outside(file, line, text)
        if not name.isascii() and not (folder / name).exists():
            name = _on_disk(file, line, name, composed)
        parent = name.rpartition("/")[0]
        linked = name if (folder / name).is_symlink() else parent
        if not resolved(linked).is_relative_to(root):
            raise _outside(file, line, text)
        names.append(name)
    return names


def _require_portable(file: Path, line: int, text: str) -> None:
    """Check that backslashes separate folders, and that the path is not one of another machine."""
    is_name = os.path.lexists(file.parent / text)
    if is_name and "\\" in text:
        raise DataError(f"a backslash in a file's name: {text!r}", file=f"{file}:{line}", fix="Rename the file")
    if not is_name and _DRIVE.match(text):
        raise DataError(f"an absolute path of Windows: {text!r}", file=f"{file}:{line}", fix=_FIX)


def _outside(file: Path, line: int, text: str) -> DataError:
    return DataError(f"path leaves the data folder: {text!r}", file=f"{file}:{line}", fix=_FIX)


def _on_disk(file: Path, line: int, name: str, composed: Callable[[Path], Mapping[str, Sequence[Path]]]) -> str:
    """The one file whose name differs in composition alone; the name itself where there is none."""
    places = [file.parent]
    for segment in name.split("/"):
        key = unicodedata.normalize("NFC", segment)
        places = [entry for folder in places for entry in composed(folder).get(key, ())]
    names = [folder.relative_to(file.parent).as_posix() for folder in places]
    if len(names) > 1:
        problem = f"no file {name!a}, but {' and '.join(map(ascii, names))}, which differ in Unicode composition alone"
        raise DataError(problem, file=f"{file}:{line}", fix="Write one of these names")
    return names[0] if names else name


def _names_by_composition(folder: Path) -> Mapping[str, Sequence[Path]]:
    """The entries of a folder by their names in composed form; none of what is no folder."""
    entries: dict[str, list[Path]] = {}
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            entries.setdefault(unicodedata.normalize("NFC", entry.name), []).append(entry)
    return entries


_LAYOUT = "FILE with the columns path,label,split[,is_query,is_gallery][,...], separated by commas, semicolons or tabs"
_EXPECTED = f"Expected {_LAYOUT}; split is train, validation, test, query or gallery"
# In the column `split`: test rows -> whether they are queries, and whether they are in the gallery.
_ROLES = {"query": (True, False), "gallery": (False, True)}
_REQUIRED = ("path", "label", "split")
_DIVIDING = ("is_query", "is_gallery")
# Columns of boxes: left, top, right, bottom.
_BOXES = (("x_1", "y_1", "x_2", "y_2"), ("xmin", "ymin", "xmax", "ymax"))
# What other tools call boxes, without underscores.
_BOX_WORDS = ("box", "boxes", "bbox", "bboxes", "boundingbox", "xywh", "xyxy")
_LIKE_BOXES = (
    {"x1", "y1", "x2", "y2"}, {"x0", "y0", "x1", "y1"}, {"xmin", "ymin", "xmax", "ymax"}, {"x", "y", "w", "h"},
    {"x", "y", "width", "height"}, {"left", "top", "width", "height"}, {"left", "top", "right", "bottom"},
)  # fmt: skip
_TRUTH = {"true": True, "t": True, "yes": True, "y": True, "1": True, "1.0": True} | {
    "false": False, "f": False, "no": False, "n": False, "0": False, "0.0": False, "": False,
}  # fmt: skip
# Split -> the error if it is empty.
_EMPTY = {
    "test": "no row is a query of the split test",
    "gallery": "no row is in the gallery of the split test",
}


@dataclass(frozen=True)
class _Columns:
    """Places of the columns in a row.

    Args:
        read: name -> place of each column that is read.
        boxes: such places of left, top, right and bottom; empty without boxes.
        further: name -> place of the others.
    """

    read: Mapping[str, int]
    boxes: Mapping[str, int]
    further: Mapping[str, int]


@dataclass(frozen=True)
class _Row:
    """A row; `size` is that of its file in bytes, None where there is no file."""

    role: Role
    line: int
    path: str
    size: int | None
    box: Box | None
    label: str
    further: Mapping[str, str]  # column -> cell


def load(root: Path, *, label_separator: str = "") -> Dataset:
    """The images that a csv file lists.

    Its columns are `path` (relative to the file's folder), `label` (any text) and `split` (train, validation or test).
    For the test rows, `is_query` says whether the image is searched for, `is_gallery` whether it is searched among; an
    empty cell means false, an absent column true for all. `query` and `gallery` in the column `split` are test rows
    that are the one or the other. If every test row is both, the test split is searched in itself. Otherwise the
    queries are the split `test`, which is searched in the split `gallery`; an image that is both is in both under one
    id. In a table without test rows, as open-metric-learning writes it, the validation rows are the test rows, and
    `notes` says so. Images are cropped to the boxes in the columns `x_1,x_2,y_1,y_2` of open-metric-learning or
    `xmin,ymin,xmax,ymax`. Further columns are kept as text in `Split.columns`.

    Args:
        root: the csv file, separated by commas, semicolons or tabs, UTF-8 or, with a byte order mark, UTF-16, any line
            ends.
        label_separator: what separates the labels of an image in its cell; empty: each cell is one label.
    """
    rows, input_notes = _read(root)
    members, search_in, notes = divide_rows([row.role for row in rows])
    for row in (rows[place] for place in members["validation"]):
        if row.role[1:] != (True, True):
            fix = "If these classes are what you test on, call their split test"
            raise _bad(root, row.line, "only test rows are divided into queries and gallery", fix)
    if absent := [row.path for row in rows if row.size is None]:
        fix = f"Put them below {root.parent} or leave their rows out"
        raise DataError(missing_message(absent, len(rows)), file=root, fix=fix)
    labels, label_sets = _labels(root, rows, label_separator)
    for name, problem in _EMPTY.items():
        if not members.get(name, True):
            raise DataError(problem, file=root, fix=_EXPECTED)
    dataset = _dataset(root.parent, rows, labels, members, search_in)
    if label_sets is None and (note := separator_note(dataset.class_names)):
        input_notes = (*input_notes, note)
    return replace(dataset, notes=notes, input_notes=input_notes, label_sets=label_sets)


def _unchecked(root: Path, *, label_separator: str = "") -> Dataset:
    """Every listed image, also without a train or test split."""
    rows, _ = _read(root)
    members, search_in, _ = divide_rows([row.role for row in rows])
    labels, label_sets = _labels(root, rows, label_separator)
    return replace(_dataset(root.parent, rows, labels, members, search_in), label_sets=label_sets)


def _labels(file: Path, rows: Sequence[_Row], separator: str) -> tuple[list[str], NDArray[np.int64] | None]:
    """The class of each row, and the data set's `label_sets`, where every set of labels that occurs is a class."""
    if not separator:
        return [row.label for row in rows], None
    sets = [split_labels(row.label, separator) for row in rows]
    for row, labels in zip(rows, sets, strict=True):
        if not labels:
            why = f"label is {row.label!r}, which names none beside separators"
            raise _bad(file, row.line, why, "Fill the cell or leave the row out")
    names = [separator.join(sorted(labels)) for labels in sets]
    of_classes = dict(zip(names, sets, strict=True))
    numbers = {label: number for number, label in enumerate(sorted(frozenset().union(*sets)))}
    pairs = [
        (number, numbers[label]) for number, name in enumerate(sorted(of_classes)) for label in sorted(of_classes[name])
    ]
    return names, np.array(pairs, np.int64)


def _dataset(
    folder: Path,
    rows: Sequence[_Row],
    labels: Sequence[str],
    members: Mapping[str, Sequence[int]],
    search_in: Mapping[str, str],
) -> Dataset:
    boxes = [row.box for row in rows]
    files = Files(folder, [row.path for row in rows], boxes=boxes if any(boxes) else None)
    columns = {column: [row.further[column] for row in rows] for column in rows[0].further}
    sizes = {name: fingerprint([rows[place].size or 0 for place in places]) for name, places in members.items()}
    return ListedImages(files, files.ids, labels, columns).dataset(members, sizes, search_in)


def _read(file: Path) -> tuple[list[_Row], tuple[str, ...]]:
    """The rows of a file, and notes on its columns."""
    if file.is_dir():
        raise DataError("a folder, not a csv file", file=file, fix="Give the csv file, or use folder:DIR")
    try:
        text = read_text(file)
    except FileNotFoundError as error:
        raise DataError("no such csv file", file=file, fix=_EXPECTED) from error
    except OSError as error:
        raise DataError.unreadable(error, file=file) from error
    separator = separator_of(text, _REQUIRED)
    reader = rows_of(text, separator)
    listed: list[tuple[int, list[str]]] = []
    try:
        columns = _columns(file, [name.strip() for name in next(reader, [])], separator)
        for cells in filter(None, reader):
            if len(cells) != len(columns.read) + len(columns.boxes) + len(columns.further):
                problem = "the row has more or fewer cells than the header"
                fix = "Write a cell for each column, and put text with separators into quotes"
                raise _bad(file, reader.line_num, problem, fix)
            listed.append((reader.line_num, [cell.strip() for cell in cells]))
            if not listed[-1][1][columns.read["path"]]:
                raise _bad(file, reader.line_num, "path is empty", "Fill the cell or leave the row out")
    except csv.Error as error:
        raise _bad(file, reader.line_num, str(error), "Save the file as plain csv") from error
    if not listed:
        raise DataError("no rows", file=file, fix=_EXPECTED)
    names = below(file, [(line, cells[columns.read["path"]]) for line, cells in listed])
    rows: list[_Row] = []
    first_line: dict[str, int] = {}
    for (line, cells), name, size in zip(listed, names, sizes_of(file.parent, names), strict=True):
        row = _row(file, line, cells, columns, (name, size))
        image = image_id(row.path, row.box)
        if first_line.setdefault(image, line) != line:
            raise _bad(file, line, f"{image} is listed in line {first_line[image]} already", "Keep one")
        rows.append(row)
    return rows, _notes(rows, columns)


def _columns(file: Path, names: Sequence[str], separator: str) -> _Columns:
    """The places of the columns, which may be written in other capitals."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(f"two columns are called {twice[0]!r}", file=file, fix="Rename one")
    places: dict[str, int] = {}
    for name in (*_REQUIRED, *_DIVIDING, *(name for box in _BOXES for name in box)):
        spellings = [name] if name in names else [other for other in names if other.casefold() == name]
        if len(spellings) > 1:
            raise DataError(f"the columns {' and '.join(spellings)} may both be {name}", file=file, fix="Rename one")
        if spellings:
            places[name] = names.index(spellings[0])
    if absent := [name for name in _REQUIRED if name not in places]:
        # A line that no separator divides is shown as it is.
        by = f" separated by {SEPARATORS[separator]}" if len(names) > 1 else ""
        there = f"the first line has {', '.join(names)}{by}" if names else "the first line is empty"
        raise DataError(f"no column {', '.join(absent)}: {there}", file=file, fix=_EXPECTED)
    complete_boxes = [box for box in _BOXES if all(name in places for name in box)]
    if len(complete_boxes) > 1:
        both = " and ".join(",".join(names[places[name]] for name in box) for box in complete_boxes)
        raise DataError(f"two boxes for each image: {both}", file=file, fix="Rename the columns of one")
    boxes = {name: places[name] for box in complete_boxes for name in box}
    read = {name: places[name] for name in (*_REQUIRED, *_DIVIDING) if name in places}
    used = {*read.values(), *boxes.values()}
    return _Columns(read, boxes, {name: index for index, name in enumerate(names) if index not in used})


def _notes(rows: Sequence[_Row], columns: _Columns) -> tuple[str, ...]:
    if columns.boxes:
        count = sum(row.box is not None for row in rows)
        return (f"images cropped to {','.join(columns.boxes)}: {count:,} of {len(rows):,}",)
    words = {name: name.casefold().replace("_", "") for name in columns.further}
    sides = {name: word.removeprefix("bbox") for name, word in words.items()}
    box_sides = set().union(*(like for like in _LIKE_BOXES if like <= set(sides.values())))
    unused = [name for name in columns.further if words[name] in _BOX_WORDS or sides[name] in box_sides]
    unused += [name for name in columns.further if name not in unused and any(name.casefold() in box for box in _BOXES)]
    if not unused:
        return ()
    return (
        f"columns that look like boxes are not used: {', '.join(unused)}; to crop, give xmin,ymin,xmax,ymax in pixels",
    )


def _row(file: Path, line: int, cells: Sequence[str], columns: _Columns, image: tuple[str, int | None]) -> _Row:
    label, split = cells[columns.read["label"]], cells[columns.read["split"]]
    if not label:
        raise _bad(file, line, "label is empty", "Fill it, for a distractor by a label that no query has")
    if split not in SPLITS and split not in _ROLES:
        raise _bad(file, line, f"split is {split!r}", f"Known: {', '.join((*SPLITS, *_ROLES))}")
    dividing = {name: cells[columns.read[name]] for name in _DIVIDING if name in columns.read}
    is_query, is_gallery = _roles(file, line, split, dividing)
    box = _box(file, line, {name: cells[index] for name, index in columns.boxes.items()})
    further = {name: cells[index] for name, index in columns.further.items()}
    return _Row(("test" if split in _ROLES else split, is_query, is_gallery), line, *image, box, label, further)


def _roles(file: Path, line: int, split: str, texts: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether an image is searched for, and whether it is searched among."""
    # open-metric-learning leaves these cells empty or false in splits that are not searched.
    if split == "train" or (split == "validation" and not any(texts.values())):
        return True, True
    for name, text in texts.items():
        if text.lower() not in _TRUTH:
            raise _bad(file, line, f"{name} is {text!r}", "Expected true or false")
    flags = {name: _TRUTH[text.lower()] for name, text in texts.items()}
    if split in _ROLES:
        roles = dict(zip(_DIVIDING, _ROLES[split], strict=True))
        if against := [name for name, text in texts.items() if text and flags[name] != roles[name]]:
            problem = f"split is {split!r}, but {against[0]} is {texts[against[0]]!r}"
            raise _bad(file, line, problem, "Write test into split, or leave is_query and is_gallery empty")
        return _ROLES[split]
    is_query, is_gallery = (flags.get(name, True) for name in _DIVIDING)
    if not (is_query or is_gallery):
        raise _bad(file, line, "is_query and is_gallery are both false", "Make one of them true or leave the row out")
    return is_query, is_gallery


def _box(file: Path, line: int, texts: Mapping[str, str]) -> Box | None:
    """The box of an image; None where its cells are empty. Fractions are cut off, as in open-metric-learning."""
    if not any(texts.values()):
        return None
    left_name, top_name, right_name, bottom_name = texts
    fix = f"Write pixels, {left_name} < {right_name} and {top_name} < {bottom_name}, or nothing for the whole image"
    cells_text = ", ".join(f"{name} {text or 'empty'}" for name, text in texts.items())
    try:
        numbers = [float(text) for text in texts.values()]
        xmin, ymin, xmax, ymax = (int(number) for number in numbers)
    except (ValueError, OverflowError) as error:
        raise _bad(file, line, f"no box: {cells_text}", fix) from error
    if min(numbers) >= 0 and max(numbers) <= 1:
        raise _bad(file, line, f"a box in fractions of the image's size: {cells_text}", fix)
    if not (0 <= xmin < xmax and 0 <= ymin < ymax):
        raise _bad(file, line, f"the box is empty, or begins outside the image: {cells_text}", fix)
    return xmin, ymin, xmax, ymax


def _bad(file: Path, line: int, why: str, fix: str) -> DataError:
    return DataError(why, file=f"{file}:{line}", fix=fix)


SPEC = DatasetSpec(
    load=load,
    unchecked=_unchecked,
    argument="FILE",
    holds="images listed in a csv file",
    layout=f"{_LAYOUT}; paths relative to its folder; split is train, validation, test, query or gallery",
)
