"""Text -> the weights files that it means, in the order of training."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path

from layerprobe.system.errors import DataError


def split_part(text: str) -> tuple[Path, str | None]:
    """`FILE#PART` -> the file and the part; a file that exists under the whole name is taken literally."""
    file, mark, part = text.rpartition("#")
    if not mark or Path(text).is_file():
        return Path(text), None
    return Path(file), part


def natural_order(paths: Iterable[Path]) -> list[Path]:
    """Sort by name with numbers by their size: epoch2 before epoch10; of equal numbers the shorter text first."""
    return sorted(paths, key=lambda path: (_natural(str(path)), len(str(path)), str(path)))


def _natural(text: str) -> list[tuple[int, str]]:
    """Text and numbers by turns, so that a number is only compared with a number."""
    texts = re.split(r"([0-9]+)", text)
    return [(int(piece), "") if place % 2 else (0, piece) for place, piece in enumerate(texts)]


def expand(pattern: str) -> list[tuple[Path, str | None]]:
    """`ckpt/*.pt` or `ckpt/*.pt#teacher` -> the files in natural order, each with the part.

    A file that exists under the name is taken literally, whatever characters it has. Without `*`, `?` and `[` the
    result is that one file, also where it does not exist.
    """
    path, part = split_part(pattern)
    if path.is_file() or not glob.has_magic(str(path)):
        return [(path, part)]
    matches = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    found = [match for match in matches if match.is_file()]
    if not found:
        raise DataError("no file has such a name", file=path, fix="Name at least one weights file")
    return [(file, part) for file in natural_order(found)]
