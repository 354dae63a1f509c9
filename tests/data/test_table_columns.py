from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow
import pytest

from layerprobe.data.table_columns import Table, read_table
from layerprobe.data.table_files import TableFile
from layerprobe.system.errors import DataError, UnknownNameError
from tests.data.tabled import IMAGES, LABELS, PATHS, rows, write

STRUCTS = [{"bytes": content, "path": path} for content, path in zip(IMAGES, PATHS, strict=True)]


def read(root: Path, columns: dict[str, Sequence[Any]], *, image: str = "", label: str = "") -> Table:
    table = write(root / "t.parquet", columns)
    return read_table(table, [TableFile(table, "")], image=image, label=label)


def test_columns_are_found_by_their_types_and_names(tmp_path: Path) -> None:
    table = read(tmp_path, {"picture": STRUCTS, "labels": LABELS, "camera": range(8), "parts": [[1]] * 8})
    assert (table.image, table.label, table.embedded, len(table)) == ("picture", "labels", True, 8)
    assert table.cells == {"labels": LABELS, "camera": list(range(8)), "picture": PATHS}


def test_structs_without_bytes_are_paths(tmp_path: Path) -> None:
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    structs = pyarrow.array([{"bytes": None, "path": path} for path in PATHS], kind)
    table = read(tmp_path, {"image": structs, "label": LABELS})
    assert (table.embedded, table.of_structs, table.cells["image"]) == (False, True, PATHS)


def test_a_column_of_paths_is_found_by_its_name(tmp_path: Path) -> None:
    table = read(tmp_path, {"file_name": PATHS, "title": PATHS, "label": LABELS})
    assert (table.image, table.embedded, table.of_structs) == ("file_name", False, False)


def test_class_names_are_those_that_datasets_notes(tmp_path: Path) -> None:
    features = datasets.Features({"img": datasets.Image(), "fine": datasets.ClassLabel(names=["a", "b"])})
    made = datasets.Dataset.from_dict({"img": STRUCTS, "fine": [0, 1] * 4}, features=features)
    datasets.disable_progress_bars()
    made.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path, [TableFile(tmp_path / "t.parquet", "")], image="", label="")
    assert (table.image, table.label, table.class_names) == ("img", "fine", ["a", "b"])


def test_what_pandas_writes_is_read(tmp_path: Path) -> None:
    frame = pd.DataFrame({"image": IMAGES, "label": pd.Categorical(LABELS)})
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path, [TableFile(tmp_path / "t.parquet", "")], image="", label="")
    assert table.cells["label"] == LABELS


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            rows(mask=IMAGES),
            r"image and mask may all be the images; the columns are image \(binary\), label \(string\)",
        ),
        (rows(labels=LABELS), "label and labels may all be the labels; .*--set data.label_column=COLUMN"),
        ({"label": LABELS}, r"no column of images; the columns are label \(string\)"),
        ({"image": IMAGES, "name": LABELS}, "no column of labels"),
        (rows(label=[[label] for label in LABELS]), "column label is list<.*; a label is one text or whole number"),
        (rows(label=[0.5] * 8), "column label is double; a label is one text or whole number"),
    ],
)
def test_what_cannot_be_guessed_or_used_is_told_with_the_columns(
    tmp_path: Path, columns: dict[str, Sequence[Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, columns)


def test_columns_that_are_named_are_taken(tmp_path: Path) -> None:
    columns = rows(mask=IMAGES, labels=LABELS)
    table = read(tmp_path, columns, image="mask", label="labels")
    assert (table.image, table.label) == ("mask", "labels")
    with pytest.raises(UnknownNameError, match="unknown column in data.image_column: 'mark'. Did you mean 'mask'?"):
        read(tmp_path, columns, image="mark")
    with pytest.raises(DataError, match="column parts is list<.*; an image is bytes"):
        read(tmp_path, rows(parts=[[b"x"]] * 8), image="parts")


def test_files_of_other_columns_do_not_belong_together(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.parquet", rows(camera=LABELS)), write(tmp_path / "b.parquet", rows())]
    with pytest.raises(DataError, match=r"b\.parquet: has other columns than the first file"):
        read_table(tmp_path, [TableFile(file, "") for file in files], image="", label="")


@pytest.mark.parametrize(("name", "kind"), [("t.parquet", "parquet"), ("t.arrow", "an Arrow file")])
def test_a_file_of_something_else_is_named(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_text("path,label\n")
    with pytest.raises(DataError, match=f"{name}: cannot be read as {kind} "):
        read_table(tmp_path, [TableFile(tmp_path / name, "")], image="", label="")
