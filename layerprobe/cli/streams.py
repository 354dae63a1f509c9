"""Standard streams that can end or be closed without ending the command, and that no name can steer."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from layerprobe.system.wording import BYTES, visible

# A carriage return is of the progress of a download, on stderr.
_KEPT = {"stdout": f"\n\t{BYTES}", "stderr": f"\n\t\r{BYTES}"}
# What rich writes for colours and progress bars: a colour, up some lines, a line erased, the cursor hidden or shown.
_STYLES = re.compile(r"(\x1b\[[0-9;]*m|\x1b\[[0-9]*A|\x1b\[2K|\x1b\[\?25[lh])")


def prepare_streams() -> None:
    """Make stdout and stderr streams to which writing does nothing once their reader has gone.

    A stream that was closed from the start (`>&-`) leads nowhere; the next file opened would take its place. Text that
    the stream's encoding lacks is escaped, but the bytes of a file's name that is not UTF-8 are written unchanged.
    Control characters are replaced, whoever writes them. Streams that somebody has put in the place of the process's
    own stay.
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
        stream.kept = _KEPT[name]
        setattr(sys, name, stream)


@contextlib.contextmanager
def printed_apart(*outputs: Path | None) -> Iterator[None]:
    """Redirect printing in the block to stderr, if one of a command's outputs is stdout."""
    from layerprobe.workflow.run.outputs import stream_of

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

    kept = ""  # control characters that are written unchanged

    def write(self, text: str) -> int:
        with self._once():
            super().write(visible(text, keep=self.kept))
        return len(text)

    def write_styled(self, text: str) -> int:
        """Write text of rich, whose own sequences are no name's: `one_line` has gone over the names before."""
        parts = _STYLES.split(text)
        parts[::2] = [visible(part, keep=f"\r{self.kept}") for part in parts[::2]]
        with self._once():
            super().write("".join(parts))
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


def styled(stream: TextIO) -> TextIO:
    """The stream as rich is to write to it: its colours and the movements of its progress bars pass."""
    return _Styled(stream)  # type: ignore[return-value] # it has all that the stream has


class _Styled:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.write = getattr(stream, "write_styled", stream.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
