"""Text and separator of a csv file, as spreadsheets, pandas and Windows write it."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file

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
