"""Files that are read once for as long as they do not change."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

_TICK = 20_000_000  # nanoseconds; the longest of Linux is 10 milliseconds


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Value = TypeVar("Value", bound=_Sized)


class ReadOnce(Generic[Value]):
    """Reads files, and keeps what it has read of the first ones, up to a number of bytes.

    A file that was replaced or written to since is read again.
    """

    def __init__(self, read: Callable[[Path], Value], limit: int) -> None:
        self._read = read
        self._limit = limit
        self._entries: dict[Path, tuple[tuple[int, ...], Value]] = {}

    def __call__(self, path: Path) -> Value:
        """What the file holds; errors of reading pass through."""
        now = time.time_ns()
        try:
            stat = path.stat()
        except OSError:
            return self._read(path)
        stamp = stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns
        entry = self._entries.get(path)
        if entry is not None and entry[0] == stamp:
            return entry[1]
        self._entries.pop(path, None)
        value = self._read(path)
        # A file that changes again within a tick of the clock may keep its size and times.
        is_settled = now - stat.st_ctime_ns > _TICK
        # A copy, as another thread may add to it.
        if is_settled and value.nbytes + sum(other.nbytes for _, other in list(self._entries.values())) <= self._limit:
            self._entries[path] = stamp, value
        return value

    def forget(self, path: Path) -> None:
        """Read a file again that this process has written, on a file system whose times are coarse."""
        self._entries.pop(path, None)
