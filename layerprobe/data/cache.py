"""Decoded images on disk: written once, shared by all runs, read by memory map.

A folder for each split and way of resizing: `pixels.u8`, the images' bytes one after the other; `images.i64`, of each
its height and width and its file's size and time; `about.json`, which says whether it is whole. Images of one size make
one (N, H, W, 3) array. An image whose file has another size or time than it had is decoded again, and all after it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.batches import Indices
from layerprobe.data.loading import in_order
from layerprobe.data.splits import Image, Split
from layerprobe.errors import DataError
from layerprobe.files import write_text
from layerprobe.progress import Task

SCHEMA = 2
_ROW = 32  # bytes of an image in images.i64
Stamps = NDArray[np.int64]  # (N, 2) of each file its size in bytes and its time of change in ns
_BATCH = 16  # images that a worker decodes at once
# Images between two points that building goes on from.
_COMMIT = 512


@dataclass(frozen=True)
class Entry:
    """The decoded images of one split, whole or in the making."""

    folder: Path

    @classmethod
    def of(cls, images: Path, files: str, steps: str) -> Entry:
        """Where a split's images belong.

        Args:
            images: folder of all entries.
            files: which they are and in which order, paths from the root of the disk.
            steps: the way from a file to what is kept, decoder included.
        """
        return cls(images / hashlib.sha256(f"{SCHEMA}\0{steps}\0{files}".encode()).hexdigest()[:16])

    @property
    def pixels(self) -> Path:
        """uint8, one image after the other, each (H, W, 3)."""
        return self.folder / "pixels.u8"

    @property
    def index(self) -> Path:
        """int64 (N, 4), height, width, and the stamp of its file."""
        return self.folder / "images.i64"

    def about(self) -> dict[str, Any]:
        """What it holds: `data`, `split`, `steps`, `images`, `bytes`, `complete`; empty where nothing was begun."""
        try:
            about = json.loads((self.folder / "about.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) and about.get("schema") == SCHEMA else {}

    def is_whole(self, stamps: Stamps | None = None) -> bool:
        """Whether every image is there and, where stamps are given, of the files as they are now."""
        about = self.about()
        with contextlib.suppress(OSError):
            return (
                bool(about.get("complete"))
                and self.pixels.stat().st_size == about["bytes"]
                and self.index.stat().st_size == _ROW * about["images"]
                and (stamps is None or np.array_equal(_rows(self)[:, 2:], stamps))
            )
        return False

    def bytes_on_disk(self) -> int:
        """What it takes, whole or not."""
        with contextlib.suppress(OSError):
            return self.pixels.stat().st_size + self.index.stat().st_size
        return 0

    def used(self) -> float:
        """Seconds since 1970 when it was last opened or built; 0 where nothing was begun."""
        with contextlib.suppress(OSError):
            return (self.folder / "about.json").stat().st_mtime
        return 0.0

    @contextlib.contextmanager
    def locked(self, *, shared: bool = False, wait: Callable[[], None] | None = None) -> Iterator[int]:
        """Hold its lock; the kernel frees it when the process ends, however it ends.

        Args:
            shared: with others who read.
            wait: called before waiting for another holder; None does not wait.

        Yields:
            A descriptor: the lock is held as long as it, or a duplicate, is open.

        Raises:
            BlockingIOError: another process holds it, and `wait` is None.
        """
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / ".lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError:  # another user's, which may be read
            descriptor = os.open(path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if wait is None:
                    raise
                wait()
                fcntl.flock(descriptor, operation)
            yield descriptor
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove it from the disk, but for the lock's empty file, which others may be waiting for.

        Raises:
            BlockingIOError: a process builds it or reads from it.
        """
        with self.locked():
            # Last what it is known by: after a kill in between it is still listed, as begun, and can be removed.
            for path in (self.pixels, self.index, self.folder / "about.json"):
                path.unlink(missing_ok=True)


class Stored:
    """i -> image of a whole entry, read-only uint8 (H, W, 3).

    Travels to data workers as a path. While it lives, in any process, the entry cannot be removed.

    Args:
        entry: where it is.
        stamps: of the files as they are now; None where that was looked at before.

    Raises:
        DataError: it is not whole, or was removed.
    """

    def __init__(self, entry: Entry, stamps: Stamps | None = None) -> None:
        self.entry = entry
        with entry.locked(shared=True, wait=_patiently) as descriptor:
            if not entry.is_whole(stamps):
                raise DataError("the decoded images were removed", file=entry.folder, fix="Run the same command again")
            weakref.finalize(self, os.close, os.dup(descriptor))
            _HELD.add(self)
            with contextlib.suppress(PermissionError):  # another user's
                os.utime(entry.folder / "about.json")
            self._sizes = _rows(entry)[:, :2]
            self._offsets = _offsets(self._sizes)
            self._pixels = np.memmap(entry.pixels, np.uint8, "r")

    def __reduce__(self) -> tuple[object, ...]:
        return Stored, (self.entry,)

    def __call__(self, index: int) -> Image:
        """The index-th image."""
        pixels = self._pixels[self._offsets[index] : self._offsets[index + 1]]
        return pixels.reshape(*self._sizes[index], 3)


_HELD: weakref.WeakSet[Stored] = weakref.WeakSet()


def is_held_here(entry: Entry) -> bool:
    """Whether this process itself reads from an entry: who would then wait to change it would wait for ever."""
    return any(stored.entry == entry for stored in _HELD)


def _patiently() -> None:
    """Another process looks whether it is whole."""


def _rows(entry: Entry) -> NDArray[np.int64]:
    rows = np.fromfile(entry.index, np.int64)
    return rows[: len(rows) // 4 * 4].reshape(-1, 4)


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N + 1,) where each image begins, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes.prod(axis=1, dtype=np.int64) * 3)])


def begun(entry: Entry, stamps: Stamps) -> int:
    """How many images of an entry, from the first on, are on disk, synced, and of the files as they are now."""
    return _begun(entry, stamps)[0]


def dropped(entry: Entry, stamps: Stamps) -> int:
    """Bytes of pixels that decoding removes before it goes on: they belong to no image that it could keep."""
    return entry.pixels.stat().st_size - _begun(entry, stamps)[1] if entry.pixels.exists() else 0


def _begun(entry: Entry, stamps: Stamps) -> tuple[int, int]:
    """How many images can be kept, and where in the pixels the last of them ends."""
    if not entry.index.exists() or not entry.pixels.exists():
        return 0, 0
    rows = _rows(entry)[: len(stamps)]
    # A power failure may leave zeros where sizes were to come.
    sound = rows[:, :2].all(axis=1) & (rows[:, 2:] == stamps[: len(rows)]).all(axis=1)
    known = rows[: int(np.append(sound, False).argmin()), :2]
    offsets = _offsets(known)
    count = int(np.searchsorted(offsets, entry.pixels.stat().st_size, side="right")) - 1
    return count, int(offsets[count])


def fill(  # noqa: PLR0913 - what, where, and who hears of it
    entry: Entry, split: Split, task: Task, *, stamps: Stamps, about: dict[str, Any], workers: int
) -> None:
    """Decode what an entry lacks; the caller holds its lock.

    However it ends, what is on disk is kept: the next call goes on from there.

    Args:
        entry: of the split.
        split: `image` gives what is to be kept.
        task: is told of every image that is there; what it raises ends the decoding.
        stamps: of the split's files.
        about: what to record with the entry.
        workers: processes that decode; 0 decodes in this one.

    Raises:
        DataError: an image cannot be read; it is named.
        EnvironmentFault: a worker died.
        OSError: the disk is full.
    """
    if entry.is_whole(stamps):
        task.advance(len(split))
        return
    about = {"schema": SCHEMA, **about, "split": split.name, "images": len(split)}
    write_text(entry.folder / "about.json", json.dumps(about | {"bytes": 0, "complete": False}))
    with _Writer(entry, stamps) as writer:
        task.advance(writer.count)
        size = _BATCH if workers else 1
        batches = [
            np.arange(start, min(start + size, len(split)), dtype=np.int64)
            for start in range(writer.count, len(split), size)
        ]
        # The open iterator holds processes.
        with contextlib.closing(in_order(partial(_decoded, split.image), batches, workers)) as decoded:
            for images in decoded:
                for image in images:
                    writer.add(image)
                task.advance(len(images))
    write_text(
        entry.folder / "about.json", json.dumps(about | {"bytes": entry.pixels.stat().st_size, "complete": True})
    )


def _decoded(image: Callable[[int], Image], indices: Indices) -> list[Image]:
    return [image(index) for index in indices.tolist()]


class _Writer:
    """Appends images to an entry of which `count` are there; synced now and then, and at the end."""

    def __init__(self, entry: Entry, stamps: Stamps) -> None:
        self.stamps = stamps
        self.count, offset = _begun(entry, stamps)
        self._new: list[tuple[int, ...]] = []
        with contextlib.ExitStack() as streams:
            # What a kill left behind the last whole image goes.
            self._index = streams.enter_context(_opened(entry.index, _ROW * self.count))
            self._pixels = streams.enter_context(_opened(entry.pixels, offset))
            # Its room is taken now, by zeros: of what a full disk has room for, the sizes must be known.
            self._index.write(bytes(_ROW * (len(stamps) - self.count)))
            self._index.seek(_ROW * self.count)
            self._streams = streams.pop_all()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        with self._streams:
            self._commit()

    def add(self, image: Image) -> None:
        self._pixels.write(np.ascontiguousarray(image).data)
        self._new.append((*image.shape[:2], *self.stamps[self.count].tolist()))
        self.count += 1
        if len(self._new) >= _COMMIT:
            self._commit()

    def _commit(self) -> None:
        """Pixels first: after a power failure, an image whose size is there must be whole."""
        try:
            self._pixels.flush()
        finally:
            # Also on a full disk: which images are whole shows in the length of the pixels.
            os.fsync(self._pixels.fileno())
            self._index.write(np.array(self._new, np.int64).tobytes())
            self._new = []
            self._index.flush()
            os.fsync(self._index.fileno())


def _opened(path: Path, length: int) -> BinaryIO:
    path.touch()
    os.truncate(path, length)
    stream = path.open("r+b")
    stream.seek(length)
    return stream


def entries(images: Path) -> list[Entry]:
    """Every entry below a folder, the one used last first; also those in the making."""
    found = [Entry(path.parent) for path in images.glob("*/about.json")]
    return sorted(found, key=Entry.used, reverse=True)
