"""The data sets `parquet` and `hf-dataset`: images and labels in the columns of parquet or Arrow files."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.image_files import (
    Files,
    ListedImages,
    RowNames,
    fingerprint,
    leaves_folder,
    missing_message,
    require_inside,
    sizes_of,
)
from layerprobe.data.spec import DatasetSpec
from layerprobe.data.splits import Dataset, Role, divide_rows
from layerprobe.data.subsets import count_train_classes, divide_classes
from layerprobe.data.table_files import ImageTable, TableFiles, read_table, table_files
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError

_SPLIT, _DIVIDING = "split", ("is_query", "is_gallery")
# What a split is called -> the split, whether its images are searched for, and whether they are searched among.
_MEANS = {
    "train": ("train", True, True), "validation": ("validation", True, True), "valid": ("validation", True, True),
    "val": ("validation", True, True), "dev": ("validation", True, True), "test": ("test", True, True),
    "query": ("test", True, False), "gallery": ("test", False, True),
}  # fmt: skip
_USE_ONE = "Use one alone by --set data.use_split=NAME: the first half of its classes then trains, the rest tests"


@dataclass(frozen=True)
class TableFormat:
    """How the files of a data set are listed, and how their rows are read."""

    list_files: Callable[[Path], TableFiles]
    read: Callable[..., ImageTable]


_FILES = TableFormat(table_files, read_table)


@dataclass(frozen=True)
class Selection:
    """Which columns and rows are used, as the keys of [data] of the same names."""

    image_column: str = ""
    label_column: str = ""
    id_column: str = ""
    split_column: str = ""
    use_split: str = ""


def load(  # noqa: PLR0913 - its keys of [data]
    root: Path,
    *,
    image_column: str = "",
    label_column: str = "",
    id_column: str = "",
    split_column: str = "",
    use_split: str = "",
    train_classes: int | None = None,
    class_seed: int | None = None,
) -> Dataset:
    """The images in the rows of a table; they are read from it one at a time.

    An image is the bytes of an image file, alone or as `bytes` of a struct, as Hugging Face `datasets` has them, or a
    path relative to the table's file. A label is text or a whole number; the number of a `ClassLabel` stands for its
    name. Classes are sorted by name, as text.

    The split of a row is that of its file, or else the text in the column `split`: train, validation (valid, val, dev),
    test, query or gallery. The columns `is_query` and `is_gallery` divide the test rows as in `csv`. Where all rows are
    of one split, whatever it is called, the first half of the classes is for training, the rest for testing. Further
    columns of numbers and texts are kept as text in `Split.columns`.

    Args:
        root: a parquet file, a folder or glob of such files, a folder that `save_to_disk` has written, one in the cache
            of `datasets`, or a name on the Hub.
        image_column: empty: the only column of images.
        label_column: empty: the only one called `label` or `labels`, or of type ClassLabel.
        id_column: empty: the path of each image, where all have different ones, else `SPLIT/ROW`.
        split_column: empty: `split`, where the files are of one split.
        use_split: the only split that is used; empty: all.
        train_classes: see `folder`.
        class_seed: see `folder`.
    """
    selection = Selection(image_column, label_column, id_column, split_column, use_split)
    return load_table(root, _FILES, selection, train_classes=train_classes, class_seed=class_seed)


def load_table(
    root: Path, kind: TableFormat, selection: Selection, *, train_classes: int | None, class_seed: int | None
) -> Dataset:
    """As `load`, of files of any kind."""
    dataset = _read(root, kind, selection, train_classes=train_classes, class_seed=class_seed)
    files = [split.image for split in dataset.splits.values() if isinstance(split.image, Files)]
    names = dict.fromkeys(name for image in files if image.column is None for name in image.names)
    sizes = sizes_of(files[0].root, names) if names else []
    if absent := [name for name, size in zip(names, sizes, strict=True) if size is None]:
        fix = f"Put them below {files[0].root} or remove their rows"
        raise DataError(missing_message(absent, len(names)), file=root, fix=fix)
    for split, other_split in itertools.combinations(dataset.splits.values(), 2):
        shared = np.intersect1d(split.labels, other_split.labels)
        if len(shared) and not dataset.together(split.name, other_split.name):
            problem = f"{len(shared):,} classes are in {split.name} and in {other_split.name}, such as"
            problem = f"{problem} {dataset.class_names[shared[0]]}, but no class may be in two splits"
            raise DataError(problem, file=root, fix=_USE_ONE)
    return dataset


def load_every_row(  # noqa: PLR0913 - as `load`
    kind: TableFormat,
    root: Path,
    *,
    image_column: str = "",
    label_column: str = "",
    id_column: str = "",
    split_column: str = "",
    use_split: str = "",
) -> Dataset:
    """Every image of files of any kind, also where files are missing or a class is in two splits."""
    selection = Selection(image_column, label_column, id_column, split_column, use_split)
    return _read(root, kind, selection, train_classes=None, class_seed=None)


def _read(
    root: Path, kind: TableFormat, selection: Selection, *, train_classes: int | None, class_seed: int | None
) -> Dataset:
    source = kind.list_files(root)
    by_file = len(source.splits) > 1 and not selection.split_column
    files = [file for file in source.files if not by_file or selection.use_split in ("", file.split)]
    if not files:
        raise UnknownNameError("split in data.use_split:", selection.use_split, source.splits, file=root)
    table = kind.read(root, files, image=selection.image_column, label=selection.label_column)
    for key, column in (("id_column", selection.id_column), ("split_column", selection.split_column)):
        if column and column not in table.cells:
            raise UnknownNameError(f"column of texts or numbers in data.{key}:", column, table.cells, file=root)
    column = selection.split_column or _SPLIT
    if by_file or column not in table.cells:
        names = table.of_each_row([file.split for file in table.files])
    else:
        names = [_require_text(table, row, column, "split") for row in range(len(table))]
    if not names:
        raise DataError("no rows", file=root, fix="Name a table that has some")
    rows: Sequence[int] = range(len(names))
    if selection.use_split:
        rows = [row for row in rows if names[row] == selection.use_split]
    if not rows and not any(names):
        problem = f"data.use_split = {selection.use_split}: this table has no splits"
        raise RecipeError(problem, file=root, fix="Leave it out, or name their column by data.split_column")
    if not rows:
        raise UnknownNameError("split in data.use_split:", selection.use_split, dict.fromkeys(names), file=root)
    images, sizes = _list_images(source.folder, table, rows, names, selection)
    notes: tuple[str, ...] = ()
    search_in: Mapping[str, str] = {}
    if len({names[row] for row in rows}) == 1 and not any(column in table.cells for column in _DIVIDING):
        members: Mapping[str, Sequence[int] | NDArray[np.intp]] = _divide_by_class(
            root, images, train_classes=train_classes, class_seed=class_seed
        )
    else:
        for key, value in (("train_classes", train_classes), ("class_seed", class_seed)):
            if value is not None:
                problem = f"data.{key} = {value}: the splits say which classes are for training"
                raise RecipeError(problem, file=root, fix=f"Leave it out. {_USE_ONE}")
        roles = [_role(table, row, names[row]) for row in rows]
        members, search_in, notes = divide_rows(roles)
        _require_divided(root, roles, members)
    return replace(images.dataset(members, dict.fromkeys(members, sizes), search_in), notes=notes)


def _divide_by_class(
    root: Path, images: ListedImages, *, train_classes: int | None, class_seed: int | None
) -> dict[str, NDArray[np.intp]]:
    """The places of the images of the training classes, and those of the test classes."""
    classes = len(images.class_names)
    fix = "Name a table that has more, or put all into test by --set data.train_classes=0"
    count = count_train_classes(classes, train_classes, str(root), fix=fix)
    sides = zip(("train", "test"), divide_classes(classes, count, class_seed), strict=True)
    return {name: np.flatnonzero(np.isin(images.classes, side)) for name, side in sides}


def _require_text(table: ImageTable, row: int, column: str, content: str) -> str:
    """The text of a cell that must not be empty."""
    cell = table.cells[column][row]
    if cell is None or cell == "":
        raise DataError(f"has no {content}", file=table.where(row), fix="Fill the cell or remove the row")
    return str(cell)


def _list_images(
    folder: Path, table: ImageTable, rows: Sequence[int], names: Sequence[str], selection: Selection
) -> tuple[ListedImages, str]:
    """The images in the rows that are used, and the fingerprint of their files.

    Args:
        names: of the split of every row of the table.
    """
    if table.embedded:
        tables = [file.path.relative_to(folder).as_posix() for file in table.files]
        places = np.concatenate([np.arange(x) for x in table.counts]) if table.places is None else table.places
        table_of_row = np.repeat(np.arange(len(tables)), table.counts)
        row_names = RowNames(tables, table_of_row, places)
        files = Files(folder, row_names if len(rows) == len(table) else row_names.some(rows), column=table.image)
        # The paths where all have different ones, else `SPLIT/ROW`; where a split has no name `ROW`.
        ids = _cells(table.cells.get(table.image, [""] * len(table)), rows)
        if not all(ids) or len(set(ids)) < len(ids):
            counts: dict[str, Iterator[int]] = defaultdict(itertools.count)
            ids = ["/".join(filter(None, (names[row], str(next(counts[names[row]]))))) for row in rows]
        sizes = sizes_of(folder, [str(file.path) for file in table.files])
    else:
        files = _at_paths(folder, table, rows)
        ids = list(files.names)
        sizes = sizes_of(files.root, files.names)
    if selection.id_column:
        ids = [_require_text(table, row, selection.id_column, "id") for row in rows]
    first_row: dict[str, int] = {}
    are_distinct = (table.embedded and not selection.id_column) or len(set(ids)) == len(ids)
    for row, name in () if are_distinct else zip(rows, ids, strict=True):
        if first_row.setdefault(name, row) != row:
            problem = f"{name} is in {table.where(first_row[name])} already"
            raise DataError(problem, file=table.where(row), fix="Keep one, or name another column by data.id_column")
    used = {table.image, table.label, selection.id_column, selection.split_column or _SPLIT, *_DIVIDING}
    columns = {
        column: ["" if cells[row] is None else str(cells[row]) for row in rows]
        for column, cells in table.cells.items()
        if column not in used
    }
    label_cells = _cells(table.cells[table.label], rows)
    row_of = dict(zip(reversed(label_cells), reversed(rows), strict=True))  # the first of each label
    label_of = {table.cells[table.label][row]: _label(table, row) for row in sorted(row_of.values())}
    labels = list(map(label_of.__getitem__, label_cells))
    return ListedImages(files, ids, labels, columns), fingerprint([size or 0 for size in sizes])


def _cells(column: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
    """The cells of a column in some rows of a table, ascending."""
    return column if len(rows) == len(column) else [column[row] for row in rows]


def _label(table: ImageTable, row: int) -> str:
    text = _require_text(table, row, table.label, "label")
    if not table.class_names:
        return text
    number = int(text)
    if not 0 <= number < len(table.class_names):  # `datasets` writes -1 where a label is not known
        raise DataError(
            f"has the label {number}, which no class has", file=table.where(row), fix="Remove the row or label it"
        )
    return table.class_names[number]


def _at_paths(folder: Path, table: ImageTable, rows: Sequence[int]) -> Files:
    """Images at the paths of a column, which are relative to the folder of their table."""
    names = [_require_text(table, row, table.image, "image") for row in rows]
    if table.of_structs and all(map(os.path.isabs, names)):  # as the cache of `datasets` has local files
        folder = Path(os.path.commonpath([Path(name).parent for name in names]))
        return Files(folder, [os.path.relpath(name, folder) for name in names])
    folders = table.of_each_row([file.path.parent.relative_to(folder) for file in table.files])
    for row, name in zip(rows, names, strict=True):
        if leaves_folder(name):
            fix = "Write it relative to the folder of the table, with /"
            raise DataError(f"path leaves the data folder: {name!r}", file=table.where(row), fix=fix)
    names = [(folders[row] / name).as_posix() for row, name in zip(rows, names, strict=True)]
    require_inside(folder, names)
    return Files(folder, names)


def _role(table: ImageTable, row: int, name: str) -> Role:
    """The split of a row of a table that is divided into splits, and its part in a search."""
    if name not in _MEANS and name:
        fix = f"Known: {', '.join(_MEANS)}. {_USE_ONE}"
        raise DataError(f"{name!r} is not known as a split", file=table.where(row), fix=fix)
    split, *flags = _MEANS[name or "test"]
    for index, column in enumerate(_DIVIDING if split != "train" else ()):
        cell = table.cells[column][row] if column in table.cells and flags[index] else True
        if not (cell is None or isinstance(cell, bool)):
            raise DataError(f"{column} is {cell!r}", file=table.where(row), fix="Expected true or false")
        flags[index] &= cell is not False
    is_query, is_gallery = flags
    if not (is_query or is_gallery):
        fix = "Make one of them true or remove the row"
        raise DataError("is_query and is_gallery are both false", file=table.where(row), fix=fix)
    return split, is_query, is_gallery


def _require_divided(root: Path, roles: Sequence[Role], members: Mapping[str, Sequence[int]]) -> None:
    if any(roles[row][1:] != (True, True) for row in members["validation"]):
        problem = "only test rows are divided into queries and gallery, and validation rows are"
        raise DataError(problem, file=root, fix="If their classes are what you test on, call their split test")
    empty = {"test": "no row is a query of the split test", "gallery": "no row is in the gallery"}
    for name, problem in empty.items():
        if not members.get(name, True):
            raise DataError(problem, file=root, fix=_USE_ONE)


_COLUMNS = "columns image (bytes or a path) and label, others by data.image_column, data.label_column; perhaps split"

PARQUET = DatasetSpec(
    load=load,
    unchecked=partial(load_every_row, _FILES),
    argument="FILE",
    holds="images in the rows of parquet files",
    layout=f"FILE, a folder or 'DIR/*.parquet', with {_COLUMNS}; of one split, half of the classes trains",
)
HF_DATASET = DatasetSpec(
    load=load,
    unchecked=partial(load_every_row, _FILES),
    argument="DIR",
    holds="data sets of Hugging Face datasets",
    layout=f"DIR as Dataset.save_to_disk or the cache of datasets has it, or ORG/NAME[/CONFIG] of the Hub; {_COLUMNS}",
    where="https://huggingface.co/datasets",
)
