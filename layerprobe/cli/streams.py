"""Standard streams that can end or be closed without ending the command."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path


def prepare_streams() -> None:
    """Make stdout and stderr streams to which writing does nothing once their reader has gone.

    A stream that was closed from the start (`>&-`) leads nowhere; the next file opened would take its place. Text that
    the stream's encoding lacks is escaped, but the bytes of a file's name that is not UTF-8 are written as they are.
    Streams that somebody has put in the place of the process's own stay.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It takes the lowest number that is free, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    codecs.register_error("layerprobe", _bytes_or_escape)
    for name, number in (("stdout", 1), ("stderr", 2)):
        former = getattr(sys, name)
        if former is not getattr(sys, f"__{name}__"):
            continue
        if former is not None:
            former.flush()
        terminal = os.isatty(number)
        stream = _WhileRead(
            io.BufferedWriter(io.FileIO(number, "wb", closefd=False)),
            encoding="utf-8" if former is None else former.encoding,
            errors="layerprobe",
            line_buffering=terminal or number == 2,
        )
        setattr(sys, name, stream)


@contextlib.contextmanager
def printed_apart(*outputs: Path | None) -> Iterator[None]:
    """Print to stderr what is printed in the block, if one of a command's outputs is stdout."""
    from layerprobe.workflow.outputs import stream_of

    taken = any(stream_of(path) == 1 for path in outputs if path)
    with contextlib.redirect_stdout(sys.stderr) if taken else contextlib.nullcontext():
        yield


def _bytes_or_escape(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


class _WhileRead(io.TextIOWrapper):
    """Text to a file descriptor, to which writing does nothing once nobody can read it any more."""

    def write(self, text: str) -> int:
        with self._once():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._once():
            super().flush()

    @contextlib.contextmanager
    def _once(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What is left in the buffer would fail again at exit.
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no path
                is_file = stat.S_ISREG(os.fstat(self.fileno()).st_mode)
                os.dup2(nowhere.fileno(), self.fileno())
            # A pipe whose reader has gone (`| head`), or a terminal that was closed.
            gone = isinstance(error, BrokenPipeError | ConnectionResetError)
            if not gone and (error.errno != errno.EIO or is_file):
                raise
