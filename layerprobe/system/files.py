"""Writing files whole: a file is written under a temporary name, synced to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError
from layerprobe.system.wording import as_size

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

# The names that `written_whole` writes under until a file is whole.
_ASIDE = re.compile(r"\..+\.\d+\.tmp")


def disk_fault(error: OSError, path: Path | None = None, needed: int | None = None) -> EnvironmentFault | None:
    """The error to show where a disk did not take a file; None for an error of another kind.

    Args:
        needed: its bytes, if they are known.
    """
    # A path that is too long cannot be looked up either.
    disk = "the disk" if path is None or error.errno == errno.ENAMETOOLONG else str(_mount_point(path))
    fix = "Free space, then run the same command again"
    match error.errno:
        case errno.ENOSPC:
            free = "" if path is None else f": {disk} has {as_size(free_bytes(path))} free"
            what = f"disk full{free}" + (f", this file needs {as_size(needed)}" if needed and path else "")
        case errno.EDQUOT:
            what = f"your quota on {disk} is used up"
        case errno.EFBIG:
            what, fix = _too_large(), "Raise the limit, then run the same command again"
        case errno.EIO:
            what, fix = f"{disk} reports an input/output error", "Check that disk, then run the same command again"
        case _:
            return None
    return EnvironmentFault(f"{what}; the files already written are complete", file=path, fix=fix)


def _too_large() -> str:
    import resource  # not needed by `layerprobe --help`, which imports this module

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return "the file is larger than its disk allows"
    return f"the file is larger than the {limit:,} bytes that `ulimit -f` allows"


def _mount_point(path: Path) -> Path:
    whole = path.resolve()
    return next(folder for folder in (whole, *whole.parents) if folder.is_mount())


def require_file(path: Path) -> None:
    """Refuse a pipe, socket or device before it is opened, which could block for ever."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = "a pipe, socket or device, not a file"
        raise DataError(what, file=path, fix="Put a file in its place, or remove it", kind="not a file")


def require_replaceable(path: Path) -> None:
    """Refuse what a file that is written whole must not take the place of: by then it would be gone."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    raise LayerprobeError(f"{kinds.get(stat.S_IFMT(mode), 'a device')}, not a file", file=path, fix="Name a file")


@contextlib.contextmanager
def disk_faults_told(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn the error of a disk that did not take a file into one that says so."""
    try:
        yield
    except OSError as error:
        fault = disk_fault(error, path, needed)
        if fault is None:
            raise
        raise fault from error


class SteadyFile(io.FileIO):
    """A file for a library to write to that never raises.

    HDF5 2.0 can crash if it cannot write while it closes a file; torch hides the system's error behind one of its own.
    The first error is kept in `fault`; after it nothing is written.
    """

    fault: OSError | None = None

    def write(self, data: Buffer, /) -> int:
        """Write all data, or keep the error."""
        rest = memoryview(data).cast("B")
        length = len(rest)
        with self._kept():
            while self.fault is None and len(rest):
                rest = rest[super().write(rest) :]
        return length

    def truncate(self, size: int | None = None, /) -> int:
        """Set the file's length, or keep the error."""
        with self._kept():
            if self.fault is None:
                super().truncate(size)
        return self.tell() if size is None else size

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fault = error

    def watched(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; raise the first error of a write before the next item."""
        for item in items:
            self.require_written()
            yield item

    def require_written(self) -> None:
        """Raise the first error of a write, if there was one."""
        if self.fault is not None:
            raise self.fault


@contextlib.contextmanager
def written_whole(path: Path, *, needed: int | None = None) -> Iterator[Path]:
    """Write a file whole: the temporary path given is renamed to `path` when the block ends without an error.

    So a file with its final name is complete. After an error, a kill or a full disk the old file is still there.

    Args:
        needed: bytes of the file, to be told where the disk is full.

    Yields:
        A temporary path in the same folder. The caller writes and closes that file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # a folder may take files and not be listed
        remove_leftovers(path.parent, names=re.compile(rf"\.{re.escape(path.name)}\.\d+\.tmp"))
    with disk_faults_told(path, needed):
        aside, descriptor = _begun(path)
        try:
            yield aside
            _sync(aside, os.O_RDWR)
            aside.replace(path)
        finally:
            # Only its own: once it is renamed, another machine's writer may have taken the name.
            if _leads_to(aside, descriptor):
                aside.unlink()
            os.close(descriptor)
        _sync(path.parent, os.O_RDONLY)


def _begun(path: Path) -> tuple[Path, int]:
    """Create the temporary file of a file and hold its lock, which is free once its writer is gone.

    No process number shows that: on a shared disk the writer may run on another machine.
    """
    import fcntl

    number = os.getpid()
    while True:
        aside = path.with_name(f".{path.name}.{number}.tmp")
        try:
            descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # another writer's, or a link which came with the folder
            number += 1
            continue
        with contextlib.suppress(OSError):  # a network disk may refuse locks: there nothing is removed
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _leads_to(aside, descriptor):  # `remove_leftovers` may have been faster
            return aside, descriptor
        os.close(descriptor)


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write_text(path: Path, text: str) -> None:
    """Write a text file whole, in UTF-8, with line feeds at the ends of lines."""
    with written_whole(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def remove_leftovers(*folders: Path, names: re.Pattern[str] = _ASIDE) -> int:
    """Remove the temporary files that killed processes left in the folders, and return their number.

    Those that a living process writes to stay: it holds their locks.

    Args:
        names: of temporary files; by default those that `written_whole` gives them.
    """
    leftovers = [
        path
        for folder in folders
        for path in (folder.iterdir() if folder.is_dir() else ())
        if names.fullmatch(path.name) and path.is_file() and not path.is_symlink()
    ]
    return sum(map(_is_removed, leftovers))


def _is_removed(leftover: Path) -> bool:
    import fcntl

    try:
        descriptor = os.open(leftover, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone meanwhile, or somebody else's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if found := _leads_to(leftover, descriptor):
            leftover.unlink()
        return found
    except OSError:  # its writer lives, or the disk has no locks
        return False
    finally:
        os.close(descriptor)


def bytes_below(folder: Path) -> int:
    """Bytes of the files below a folder; a link counts as itself, and a file that vanishes meanwhile as nothing."""
    count = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                count += Path(parent, name).lstat().st_size
    return count


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def require_writable(folder: Path, *, fix: str = "Choose another --cache") -> None:
    """Check that files can be put into a folder, which need not exist yet; nothing is written."""
    place = _existing(folder)
    # What keeps no files, such as /proc, has a disk of 0 bytes, and lets the system's administrator write.
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK) or not shutil.disk_usage(place).total:
        raise EnvironmentFault("cannot be written to", file=place, fix=fix)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    import hashlib  # slow to import, and `layerprobe --help` imports this module

    require_file(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
