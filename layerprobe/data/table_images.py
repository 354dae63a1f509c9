"""The bytes of images in rows of parquet and Arrow files and in tar files, read one at a time like files."""

from __future__ import annotations

import bisect
import functools
import importlib
import io
import itertools
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from layerprobe.system.errors import DataError, EnvironmentFault
from layerprobe.system.requirements import install_line

ARROW = ".arrow"
# What pyarrow raises on files that it cannot read.
ARROW_ERRORS = (OSError, ValueError, LookupError, NotImplementedError)
_ROWS = 16  # of a parquet file that are read at once
_KEPT = 64 * 2**20  # bytes of images that are kept of a parquet file
_OPEN = 4  # files that a process keeps open


@dataclass(frozen=True)
class TableImage:
    """An image in a row of a table, with those methods of `Path` by which image files are read.

    Args:
        column: of bytes, or of structs that have them as `bytes`.
        row: from 0.
    """

    table: Path
    column: str
    row: int
    suffix: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"{self.table}: row {self.row}"

    def stat(self) -> os.stat_result:
        """The status of the table's file."""
        return self.table.stat()

    def open(self, _: Literal["rb"] = "rb") -> io.BytesIO:
        """The image's bytes."""
        stamp = _stamp(self.stat())
        try:
            content = _open_row(self.table, self.column, stamp)[self.row]
        except ARROW_ERRORS as error:
            raise unreadable_table(self.table, error) from error
        if content is None:
            raise DataError("has no image", file=self, fix="Remove the row", kind="missing")
        return io.BytesIO(content)


@dataclass(frozen=True)
class TarImage:
    """An image in a tar file, with those methods of `Path` by which image files are read."""

    shard: Path
    offset: int
    size: int
    suffix: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"{self.shard}: at byte {self.offset}"

    def stat(self) -> os.stat_result:
        """The status of the tar file."""
        return self.shard.stat()

    def open(self, _: Literal["rb"] = "rb") -> io.BytesIO:
        """The image's bytes."""
        content = os.pread(_open_shard(self.shard, _stamp(self.stat())).descriptor, self.size, self.offset)
        if len(content) < self.size:
            raise DataError("the tar file is shorter now", file=self, fix="Get it again", kind="unreadable")
        return io.BytesIO(content)


def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow, which is an optional dependency."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise EnvironmentFault("pyarrow is not installed", fix=install_line("datasets")) from error
    except ImportError as error:
        raise EnvironmentFault(f"pyarrow cannot be imported: {error}", fix=install_line("datasets")) from error


def unreadable_table(table: Path, error: Exception) -> DataError:
    """The error of a table that pyarrow cannot read."""
    if isinstance(error, OSError) and error.errno is not None:
        return DataError.unreadable(error, file=table)
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    kind = "an Arrow file" if table.suffix == ARROW else "parquet"
    return DataError(f"cannot be read as {kind} ({reason})", file=table, fix="Get it again", kind="unreadable")


def read_arrow(table: Path) -> Any:
    """The table in an Arrow file, of which nothing is read into memory."""
    pyarrow = arrow()
    return arrow("pyarrow.ipc").open_stream(pyarrow.memory_map(str(table), "r")).read_all()


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    """What tells that a file was changed or replaced since it was opened."""
    return status.st_ino, status.st_size, status.st_mtime_ns


class _OpenShard:
    """An open tar file, which is closed when it is forgotten."""

    def __init__(self, shard: Path) -> None:
        self.descriptor = os.open(shard, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)


# Data workers are sent paths and rows; each process opens the files for itself.
@functools.lru_cache(maxsize=_OPEN)
def _open_shard(shard: Path, stamp: tuple[int, ...]) -> _OpenShard:  # noqa: ARG001 - part of the key
    return _OpenShard(shard)


@functools.lru_cache(maxsize=_OPEN)
def _open_row(
    table: Path,
    column: str,
    stamp: tuple[int, ...],  # noqa: ARG001 - part of the key
) -> _ArrowRows | _ParquetRows:
    return _ArrowRows(table, column) if table.suffix == ARROW else _ParquetRows(table, column)


class _ArrowRows:
    """Row -> the bytes of an image, from an Arrow file in the memory map."""

    def __init__(self, table: Path, column: str) -> None:
        self._column = read_arrow(table).column(column)
        self._in_struct = arrow().types.is_struct(self._column.type)

    def __getitem__(self, row: int) -> bytes | None:
        value = self._column[row].as_py()
        content: bytes | None = value["bytes"] if self._in_struct and value is not None else value
        return content


class _ParquetRows:
    """Row -> the bytes of an image, from a parquet file.

    It is read in steps of a few rows, so that memory does not depend on the size of its row groups. A row before the
    last step that is no longer kept is reached by reading its row group again.
    """

    def __init__(self, table: Path, column: str) -> None:
        self._file = arrow("pyarrow.parquet").ParquetFile(table, pre_buffer=False)
        self._in_struct = arrow().types.is_struct(self._file.schema_arrow.field(column).type)
        self._leaf = f"{column}.bytes" if self._in_struct else column
        metadata = self._file.metadata
        self._ends: Sequence[int] = list(
            itertools.accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        )
        self._group, self._next = -1, 0  # what the next step reads: a row group, and a row of the file
        self._steps: Iterator[Any] = iter(())
        self._kept: dict[int, bytes | None] = {}
        self._size = 0

    def __getitem__(self, row: int) -> bytes | None:
        if row >= self._ends[-1]:
            raise IndexError(f"no row {row}")
        while row not in self._kept:
            self._read_step(row)
        return self._kept[row]

    def _read_step(self, row: int) -> None:
        while self._size > _KEPT:  # the rows that were read first are forgotten
            self._size -= len(self._kept.pop(next(iter(self._kept))) or b"")
        group = bisect.bisect_right(self._ends, row)
        if group != self._group or row < self._next:
            self._group, self._next = group, self._ends[group - 1] if group else 0
            self._steps = self._file.iter_batches(_ROWS, row_groups=[group], columns=[self._leaf])
        try:
            values = next(self._steps).column(0)
        except BaseException:  # a damaged page ends the iterator; the next row begins another one
            self._group = -1
            raise
        if self._in_struct:
            (values,) = values.flatten()
        for content in values.to_pylist():
            if self._next not in self._kept:
                self._kept[self._next] = content
                self._size += len(content or b"")
            self._next += 1
