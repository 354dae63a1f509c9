"""Files and streams that a user names for a page, a figure or its numbers."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

from layerprobe.system.errors import LayerprobeError
from layerprobe.system.files import require_replaceable, require_target, require_writable, written_whole
from layerprobe.workflow.run.runs import Run

_STANDARD = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_LONGEST = 240  # bytes of a name: file systems allow 255, and the temporary name is longer
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,6})")


def stream_of(path: Path) -> int | None:
    """The file descriptor of `-`, /dev/stdout, /dev/stderr or /dev/fd/N; None for any other path."""
    number = _DESCRIPTOR.fullmatch(str(path))
    return int(number[1]) if number else _STANDARD.get(str(path))


def require_output(path: Path, *formats: str) -> None:
    """Check that a file or stream can be written to, before its content is computed."""
    number = stream_of(path)
    if number is not None:
        _require_open(path, number)
        return
    if any(len(os.fsencode(component)) > _LONGEST for component in path.parts):
        raise LayerprobeError(f"its name is longer than {_LONGEST} bytes", file=path, fix="Choose a shorter one")
    _require_outside_runs(path)
    if path.suffix.lower().removeprefix(".") not in formats:
        kind = repr(path.suffix) if path.suffix else "a file without a suffix"
        *first_suffixes, last_suffix = (f".{form}" for form in formats)
        choices = f"{', '.join(first_suffixes)} or {last_suffix}" if first_suffixes else last_suffix
        raise LayerprobeError(f"cannot be written as {kind}", file=path, fix=f"Name it {choices}")
    require_writable(path.parent, fix="Choose a path you may write to")


def write_output(path: Path, content: bytes) -> None:
    """Write a file or stream; a closed pipe is not an error."""
    number = stream_of(path)
    if number is None:
        _require_outside_runs(path)
        with written_whole(path, needed=len(content)) as aside:
            aside.write_bytes(content)
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with (
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
        os.fdopen(number, "wb", closefd=False) as target,
    ):
        target.write(content)


def _require_open(path: Path, number: int) -> None:
    import fcntl

    try:
        # The caller's descriptors are inheritable; those that this process opens are not.
        is_inherited = os.get_inheritable(number)
        writable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        is_inherited = writable = False
    if not (is_inherited and writable):
        raise LayerprobeError("is not open to write to", file=path, fix="Name a file, or - for standard output")


def _require_outside_runs(path: Path) -> None:
    require_replaceable(path)
    require_target(path.parent, fix="Name a file in another folder")
    folder = path.parent.resolve()  # a linked folder may lie in a run
    for run in map(Run, (folder, *folder.parents[:2])):
        its_report = folder == run.folder and path.name == "report.html"
        if os.path.lexists(run.record_file) and folder in run.written_folders and not its_report:
            raise LayerprobeError(
                f"in the folder of the run {run.name}, where only plots/ and report.html are replaced",
                file=path,
                fix="Choose another folder",
            )
