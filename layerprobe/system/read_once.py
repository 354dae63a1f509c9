"""Files that are read once for as long as they do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

Value = TypeVar("Value")


class ReadOnce(Generic[Value]):
    """Reads files, and keeps what it has read of the first ones, up to a number of bytes of the files.

    A file that was replaced or written to since is read again.
    """

    def __init__(self, read: Callable[[Path], Value], limit: int) -> None:
        self._read = read
        self._limit = limit
        self._kept: dict[Path, tuple[tuple[int, ...], Value]] = {}

    def __call__(self, path: Path) -> Value:
        """What the file holds; errors of reading pass through."""
        try:
            stat = path.stat()
        except OSError:
            return self._read(path)
        stamp = stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns
        if path in self._kept and self._kept[path][0] == stamp:
            return self._kept[path][1]
        self._kept.pop(path, None)
        value = self._read(path)
        if stat.st_size + sum(of[0] for of, _ in self._kept.values()) <= self._limit:
            self._kept[path] = stamp, value
        return value
