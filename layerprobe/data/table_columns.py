"""Which columns of parquet or Arrow files have the images, the labels and the rest, and their cells."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerprobe.data.table_files import TableFile
from layerprobe.data.table_images import ARROW, ARROW_ERRORS, arrow, read_arrow, unreadable_table
from layerprobe.system.errors import DataError, UnknownNameError

# What columns are called, where their types do not say what they have.
_LABELS = ("label", "labels")
_PATHS = ("image", "path", "image_path", "file", "file_path", "file_name", "filename")


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of some files that have the same columns.

    Args:
        files: in the order of the rows.
        counts: number of rows of each file.
        image: the column of images.
        label: the column of labels.
        class_names: of labels that are numbers of names; else empty.
        cells: column -> the value of each row, of all columns of plain values; of images the paths, where they have
            any.
        of_structs: whether an image is a struct, as `datasets` has it.
        embedded: whether the files have the images' bytes; else the images are at the paths.
    """

    files: Sequence[TableFile]
    counts: Sequence[int]
    image: str
    label: str
    class_names: Sequence[str]
    cells: Mapping[str, Sequence[Any]]
    of_structs: bool
    embedded: bool

    def __len__(self) -> int:
        return sum(self.counts)

    def where(self, row_index: int) -> str:
        """The file of a row and the row in it, as text for people."""
        ends = list(itertools.accumulate(self.counts))
        file = next(file for file, end in enumerate(ends) if row_index < end)
        return f"{self.files[file].path}: row {row_index - ends[file] + self.counts[file]}"


def read_table(root: Path, files: Sequence[TableFile], *, image: str, label: str) -> Table:
    """The table of some files; no image is read.

    Args:
        root: what the user named, for errors.
        image: name of the column of images; empty: the only one.
        label: name of the column of labels; empty: the only one.
    """
    schema = _schema(files[0].path)
    features = _features(schema)
    image = _choose_column(root, schema, "image", image, _image_columns(schema, features))
    labels = [name for name in schema.names if name in _LABELS or features.get(name, {}).get("_type") == "ClassLabel"]
    label = _choose_column(root, schema, "label", label, labels)
    of_images, of_labels = schema.field(image).type, schema.field(label).type
    if not (_is_text(of_images) or _is_bytes(of_images) or _has_bytes(of_images)):
        problem = f"the column {image} is {_short(of_images)}; an image is bytes, a path, or a struct of bytes and path"
        raise DataError(problem, file=root, fix="Name another by --set data.image_column=COLUMN")
    if not _is_label(of_labels):
        problem = f"the column {label} is {_short(of_labels)}; a label is one text or whole number"
        raise DataError(problem, file=root, fix="Name another by --set data.label_column=COLUMN, or change it")
    plain = [field.name for field in schema if field.name != image and _is_plain(field.type)]
    parts = [_cells(file.path, schema, plain, image) for file in files]
    has_bytes = image not in parts[0] or (
        not _is_text(of_images) and any(_some_bytes(file.path, image) for file in files)
    )
    return Table(
        files,
        counts=[len(file_cells[label]) for file_cells in parts],
        image=image,
        label=label,
        class_names=features.get(label, {}).get("names") or (),
        cells={name: [cell for file_cells in parts for cell in file_cells[name]] for name in parts[0]},
        of_structs=_has_bytes(of_images),
        embedded=has_bytes,
    )


def _schema(path: Path) -> Any:
    try:
        if path.suffix == ARROW:
            return arrow("pyarrow.ipc").open_stream(str(path)).schema
        return arrow("pyarrow.parquet").read_schema(path)
    except ARROW_ERRORS as error:
        raise unreadable_table(path, error) from error


def _features(schema: Any) -> Mapping[str, Mapping[str, Any]]:
    """Column -> its type as `datasets` notes it in the files that it writes; empty in others."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _image_columns(schema: Any, features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    typed = [name for name in schema.names if features.get(name, {}).get("_type") == "Image"]
    with_bytes = [field.name for field in schema if _is_bytes(field.type) or _has_bytes(field.type)]
    paths = [field.name for field in schema if field.name in _PATHS and _is_text(field.type)]
    return typed or with_bytes or paths


def _choose_column(root: Path, schema: Any, role: str, column: str, candidates: Sequence[str]) -> str:
    if column:
        if column not in schema.names:
            raise UnknownNameError(f"column in data.{role}_column:", column, schema.names, file=root)
        return column
    if len(candidates) == 1:
        return candidates[0]
    problem = f"{' and '.join(candidates)} may all be the {role}s" if candidates else f"no column of {role}s"
    columns = ", ".join(f"{field.name} ({_short(field.type)})" for field in schema)
    fix = f"Name one by --set data.{role}_column=COLUMN"
    raise DataError(f"{problem}; the columns are {columns}", file=root, fix=fix)


def _cells(path: Path, schema: Any, plain: Sequence[str], image: str) -> dict[str, list[Any]]:
    """The values of the columns of plain values, and the paths of the images if they have any."""
    kind = schema.field(image).type
    has_path = _has_bytes(kind) and kind.get_field_index("path") >= 0
    paths = [image] if _is_text(kind) else [f"{image}.path"] * has_path
    try:
        if path.suffix == ARROW:
            table = read_arrow(path).select([*plain, *[image] * len(paths)])
        else:
            table = arrow("pyarrow.parquet").ParquetFile(path).read(columns=[*plain, *paths])
        cells = {name: table.column(name).to_pylist() for name in plain}
        if paths:
            column = table.column(image)
            cells[image] = (arrow("pyarrow.compute").struct_field(column, "path") if has_path else column).to_pylist()
    except ARROW_ERRORS as error:
        if isinstance(error, LookupError):
            fix = "Name the files that belong together"
            raise DataError("has other columns than the first file of its data set", file=path, fix=fix) from error
        raise unreadable_table(path, error) from error
    return cells


def _some_bytes(path: Path, image: str) -> bool:
    """Whether a column of bytes has any; in parquet files its statistics say so."""
    if path.suffix == ARROW:
        column = read_arrow(path).column(image)
        in_struct = arrow().types.is_struct(column.type)
        column = arrow("pyarrow.compute").struct_field(column, "bytes") if in_struct else column
        return bool(column.null_count < len(column))
    metadata = arrow("pyarrow.parquet").read_metadata(path)
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    of_images = [column for column in columns if column.path_in_schema in (image, f"{image}.bytes")]
    # A column of nulls alone is of another type, without statistics.
    content = [column.statistics for column in of_images if column.physical_type == "BYTE_ARRAY"]
    return any(statistics is None or statistics.num_values > 0 for statistics in content)


def _is_text(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _has_bytes(kind: Any) -> bool:
    """Whether it is a struct that may have an image's bytes."""
    types = arrow().types
    if not types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    content = kind.field("bytes").type
    return _is_bytes(content) or bool(types.is_null(content))


def _is_label(kind: Any) -> bool:
    types = arrow().types
    if types.is_dictionary(kind):
        return _is_label(kind.value_type)
    return bool(_is_text(kind) or types.is_integer(kind) or types.is_boolean(kind))


def _is_plain(kind: Any) -> bool:
    types = arrow().types
    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    return bool(_is_text(kind) or types.is_primitive(kind) or types.is_decimal(kind))


def _short(kind: Any) -> str:
    text = " ".join(str(kind).split())
    return text if len(text) < 60 else f"{text[:56]} ..."
