"""Csv files that list images: their text and separator, and the paths as the disk spells them."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from layerprobe.data.image_files import leaves_folder
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
