"""Writing files whole: a file is written under a temporary name, synced to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".tmp"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Add the path to a disk-full error; errors of writing to an open file carry none."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Write a file whole: the temporary path given is renamed to `path` when the block ends without an error.

    So a file with its final name is complete. After an error, a kill or a full disk the old file is still there.

    Args:
        path: the final name; its folder is created.

    Yields:
        A temporary path in the same folder. The caller writes and closes that file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield aside
        _sync(aside, os.O_RDWR)
        aside.replace(path)
        _sync(path.parent, os.O_RDONLY)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole, in UTF-8, with line feeds at the ends of lines."""
    with written_whole(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def remove_leftovers(*folders: Path) -> int:
    """Remove the temporary files that a killed process left in the folders, and return their number."""
    leftovers = [path for folder in folders for path in folder.glob(f".*{TEMPORARY}") if path.is_file()]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    import hashlib  # slow to import, and `layerprobe --help` imports this module

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
