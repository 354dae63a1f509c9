"""Files: atomic writes (a temporary name, synced, renamed), and files that are read once."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError
from layerprobe.system.wording import as_size

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

# Temporary names of `written_whole`.
_ASIDE = re.compile(r"\..+\.\d+\.tmp")


def disk_fault(error: OSError, path: Path | None = None, needed: int | None = None) -> EnvironmentFault | None:
    """The fault of a disk that refused a file of `needed` bytes; None for an error of another kind."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return None
    disk = "the disk"
    if path is not None:
        resolved = path.resolve()
        disk = str(next(folder for folder in (resolved, *resolved.parents) if folder.is_mount()))
    fix = "Free space, then run the same command again"
    match error.errno:
        case errno.ENOSPC:
            free = "" if path is None else f": {disk} has {as_size(free_bytes(path))} free"
            size = as_size(needed) if needed and needed >= 1e6 else f"{needed:,} bytes" if needed else ""
            fault = f"disk full{free}" + (f", this file needs {size}" if needed and path else "")
        case errno.EDQUOT:
            fault = f"your quota on {disk} is used up"
        case errno.EFBIG:
            import resource  # not needed by `layerprobe --help`, which imports this module

            limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            fault, fix = "the file is larger than its disk allows", "Raise the limit, then run the same command again"
            if limit != resource.RLIM_INFINITY:
                fault = f"the file is larger than the {limit:,} bytes that `ulimit -f` allows"
        case _:
            fault, fix = f"{disk} reports an input/output error", "Check that disk, then run the same command again"
    return EnvironmentFault(f"{fault}; the files already written are complete", file=path, fix=fix)


class _HasStatus(Protocol):
    def stat(self) -> os.stat_result: ...


def require_file(path: _HasStatus) -> None:
    """Refuse a pipe, socket or device before it is opened, which could block forever."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        refusal = "a pipe, socket or device, not a file"
        raise DataError(refusal, file=path, fix="Put a file in its place, or remove it", kind="not a file")


def require_replaceable(path: Path) -> None:
    """Refuse a path that is not a regular file: an atomic write would replace it."""
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
    """Raise the error of a disk that refused a file as an `EnvironmentFault`."""
    try:
        yield
    except OSError as error:
        fault = disk_fault(error, path, needed)
        if fault is None:
            raise
        raise fault from error


class SteadyFile(io.FileIO):
    """A file whose writes never raise: the first error is kept in `fault`, and nothing is written after it.

    HDF5 2.0 can crash if a write fails while it closes a file; torch hides the system's error behind its own.
    """

    fault: OSError | None = None

    def write(self, data: Buffer, /) -> int:
        """Write all data, or store the error."""
        remaining = memoryview(data).cast("B")
        length = len(remaining)
        with self._stored_fault():
            while self.fault is None and len(remaining):
                remaining = remaining[super().write(remaining) :]
        return length

    def truncate(self, size: int | None = None, /) -> int:
        """Set the file's length, or store the error."""
        with self._stored_fault():
            if self.fault is None:
                super().truncate(size)
        return self.tell() if size is None else size

    @contextlib.contextmanager
    def _stored_fault(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fault = error

    def watched(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; raise the first write error before the next item."""
        for item in items:
            self.require_written()
            yield item

    def require_written(self) -> None:
        """Raise the first write error, if there was one."""
        if self.fault is not None:
            raise self.fault


@contextlib.contextmanager
def written_whole(path: Path, *, needed: int | None = None) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` if the block ends without an error.

    A file under its final name is complete; after an error, a kill or a full disk the old file is still there.
    """
    with _written_aside(path, needed) as aside:
        yield aside
        _sync(aside, os.O_RDWR)
        aside.replace(path)


@contextlib.contextmanager
def folder_written_whole(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside a folder, and rename it to `path` if the block ends without an error.

    A folder under its final name is complete; after an error, a kill or a full disk there is none, or the old one.
    Where a kill came between the two renames of a replacement, the next call puts the old one back, as `put_back` does.

    Args:
        replace: whether an existing folder is moved aside first, and removed afterwards.
    """
    path = path.resolve()  # `.` and `..` have no name beside which there is room
    put_back(path)
    with _written_aside(path, folder=True) as aside:
        yield aside
        for file in aside.iterdir():
            _sync(file, os.O_RDWR)
        _sync(aside, os.O_RDONLY)
        _put_in_place(aside, path, replace)


@contextlib.contextmanager
def _written_aside(path: Path, needed: int | None = None, *, folder: bool = False) -> Iterator[Path]:
    """Yield the temporary file or folder beside a path, and remove it unless the block has renamed it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # a folder may take files and not be listed
        _remove_leftovers(path.parent, re.compile(rf"\.{re.escape(path.name)}\.\d+\.tmp"), folders=folder)
    with disk_faults_told(path, needed):
        aside, descriptor = _locked_aside(path, folder=folder)
        try:
            yield aside
        finally:
            # Only its own: once it is renamed, another machine's writer may have taken the name.
            if _leads_to(aside, descriptor):
                shutil.rmtree(aside) if folder else aside.unlink()
            os.close(descriptor)
        _sync(path.parent, os.O_RDONLY)


def _locked_aside(path: Path, *, folder: bool) -> tuple[Path, int]:
    """Create a temporary file or folder and lock it: the lock of a dead writer is free, even on another machine."""
    import fcntl

    flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT | os.O_EXCL
    number = os.getpid()
    while True:
        aside = path.with_name(f".{path.name}.{number}.tmp")
        try:
            if folder:
                aside.mkdir()
            descriptor = os.open(aside, flags, 0o666)
        except FileExistsError:  # another writer's, or a link which came with the folder
            number += 1
            continue
        except FileNotFoundError:  # another writer may have removed the folder as a leftover
            if folder and path.parent.exists():
                continue
            raise
        with contextlib.suppress(OSError):  # a network disk may refuse locks: nothing is removed there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _leads_to(aside, descriptor):  # as above, of a file too
            return aside, descriptor
        os.close(descriptor)


def _put_in_place(aside: Path, path: Path, replace: bool) -> None:
    if not path.exists():
        aside.rename(path)
        return
    if not replace:
        raise LayerprobeError("it exists already", file=path, fix="Name another folder")
    import fcntl

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # as of a temporary folder: a living writer's is not put back
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        number = os.getpid()
        while (old := path.with_name(f".{path.name}.{number}.old")).exists():
            number += 1
        path.rename(old)
        try:
            aside.rename(path)
        except BaseException:
            old.rename(path)
            raise
        shutil.rmtree(_as_leftover(old))
    finally:
        os.close(descriptor)


def put_back(path: Path) -> None:
    """Give a folder its name again where a writer was killed between moving it aside and naming the new one."""
    path = path.resolve()
    with contextlib.suppress(OSError):  # of its parent: it is told where the folder is written
        for old in _unused(path.parent, re.compile(rf"\.{re.escape(path.name)}\.\d+\.old"), folders=True):
            if path.exists():
                shutil.rmtree(_as_leftover(old))
            else:
                old.rename(path)


def _as_leftover(old: Path) -> Path:
    """The old folder under a temporary name: whatever is called .old is whole."""
    return old.rename(old.with_suffix(".tmp"))


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write_text(path: Path, text: str) -> None:
    """Write a text file whole, in UTF-8, with line feeds at the ends of lines."""
    with written_whole(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def remove_leftovers(*folders: Path) -> None:
    """Remove the temporary files that killed processes left in the folders."""
    for folder in folders:
        if folder.is_dir():
            _remove_leftovers(folder, _ASIDE)


def _remove_leftovers(folder: Path, names: re.Pattern[str], *, folders: bool = False) -> None:
    for path in _unused(folder, names, folders=folders):
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if folders else path.unlink()


def _unused(folder: Path, names: re.Pattern[str], *, folders: bool) -> Iterator[Path]:
    """Files or folders of these names whose writer has ended, each locked while it is looked at."""
    import fcntl

    flags = os.O_RDONLY | os.O_DIRECTORY if folders else os.O_RDWR
    leftovers = [path for path in folder.iterdir() if names.fullmatch(path.name)]
    for path in [path for path in leftovers if (path.is_dir() if folders else path.is_file())]:
        # A file that is gone, somebody else's, or locked by its living writer stays, as do all on a disk without locks.
        with contextlib.suppress(OSError):
            descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _leads_to(path, descriptor):
                    yield path
            finally:
                os.close(descriptor)


def bytes_below(folder: Path) -> int:
    """Total size of the files below a folder, in bytes; links are not followed."""
    count = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                count += Path(parent, name).lstat().st_size
    return count


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def require_target(path: Path, *, fix: str = "Choose another --cache") -> None:
    """Refuse a link that leads nowhere, in the place of a path or of a folder above it."""
    for link in (path, *path.absolute().parents):
        if link.is_symlink() and not link.exists():
            raise DataError("a link that leads nowhere", file=link, fix=fix)


def require_writable(folder: Path, *, fix: str = "Choose another --cache") -> None:
    """Check that a folder, which need not exist yet, is writable; nothing is written."""
    require_target(folder, fix=fix)
    existing = _existing(folder)
    # A virtual file system such as /proc has 0 bytes, and root may write to it.
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK) or not shutil.disk_usage(existing).total:
        raise EnvironmentFault("cannot be written to", file=existing, fix=fix)


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
