"""Files that are whole or absent: written aside, synced, renamed."""

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
    """Name a file or folder in the error of a full disk, where it names none: an open file's does not."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name when the block ends without an error.

    A file that has its final name is complete; after an error, a kill or a full disk the old one still stands.

    Args:
        path: the final name; its folder is made.

    Yields:
        The temporary path to write to, in the same folder; the writer closes it.
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
    """Write a text file whole, in UTF-8, lines ending in a line feed."""
    with written_whole(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def remove_leftovers(*folders: Path) -> int:
    """Remove the temporary files that a killed process left in the folders; how many there were."""
    leftovers = [path for folder in folders for path in folder.glob(f".*{TEMPORARY}") if path.is_file()]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk that a folder is on, or will be once it is made."""
    return shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    import hashlib  # slow to import, and `layerprobe --help` imports this module

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
