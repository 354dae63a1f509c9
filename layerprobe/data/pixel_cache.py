"""Decoded images that are kept: on disk as a memory map that all runs share, small sets in memory.

On disk, each split and way of resizing has a folder, its entry. `pixels.u8` holds the bytes of all images, one after
the other; `images.i64` holds for each image its height and width, and the hash of the file that it was decoded from;
`about.json` says whether the entry is whole. Images of one size make one (N, H, W, 3) array. If a file's content
changes, its image and all images after it are decoded again. Decoding can be interrupted at any point.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, write_text
from layerprobe.system.progress import Task

if TYPE_CHECKING:
    from layerprobe.data.loading import Indices  # torch: only what decodes waits for it

SCHEMA = 2
FOLDER = "images"  # of all entries, in the folder of all runs
ROW = 32  # bytes of an image in images.i64
Digests = NDArray[np.int64]  # (N, 2) hash of each file's content, as `Split.digests`


@dataclass(frozen=True)
class Entry:
    """The decoded images of one split, perhaps not all of them yet."""

    folder: Path

    @classmethod
    def of(cls, images: Path, files: str, steps: str) -> Entry:
        """The entry of a split, which may have to be made."""
        return cls(
            images / hashlib.sha256(f"{SCHEMA}\0{steps}\0{files}".encode(errors="surrogateescape")).hexdigest()[:16]
        )

    @property
    def pixels(self) -> Path:
        """uint8, one image after the other, each (H, W, 3)."""
        return self.folder / "pixels.u8"

    @property
    def index(self) -> Path:
        """int64 (N, 4): height and width of each image, and the hash of its file in two numbers."""
        return self.folder / "images.i64"

    def about(self) -> dict[str, Any]:
        """The content of about.json: `data`, `split`, `images`, `bytes`, `complete`; empty if it is none."""
        try:
            require_file(self.folder / "about.json")
            about = json.loads((self.folder / "about.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, DataError):
            return {}
        if not isinstance(about, dict) or about.get("schema") != SCHEMA:
            return {}
        # An odd one describes nothing: the images are decoded again.
        counts, names = (about.get("images"), about.get("bytes")), (about.get("data", ""), about.get("split", ""))
        has_counts = all(type(count) is int and count >= 0 for count in counts)
        return about if has_counts and all(isinstance(name, str) for name in names) else {}

    def is_complete(self, digests: Digests | None = None) -> bool:
        """Whether every image is there and, if digests are given, was decoded from a file of that content."""
        about = self.about()
        with contextlib.suppress(OSError):
            return (
                bool(about.get("complete"))
                and self.pixels.stat().st_size == about["bytes"]
                and self.index.stat().st_size == ROW * about["images"]
                and (digests is None or np.array_equal(index_of(self)[:, 2:], digests))
            )
        return False

    def bytes_on_disk(self) -> int:
        """Bytes that its files take on the disk."""
        with contextlib.suppress(OSError):
            return self.pixels.stat().st_size + self.index.stat().st_size
        return 0

    def used(self) -> float:
        """When it was last opened or decoded, in seconds since 1970; 0 before decoding began."""
        with contextlib.suppress(OSError):
            return (self.folder / "about.json").stat().st_mtime
        return 0.0

    @contextlib.contextmanager
    def locked(self, *, shared: bool = False, wait: Callable[[], None] | None = None) -> Iterator[int]:
        """Hold its lock; the kernel releases it when the process ends, in whatever way.

        Args:
            wait: called before waiting for another holder; None: do not wait.

        Yields:
            A file descriptor; the lock is held as long as it, or a duplicate of it, is open.
        """
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / ".lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError:  # it belongs to another user and may only be read
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
        """Remove it from the disk, except for the empty lock file, which others may be waiting for."""
        with self.locked():
            # about.json last: if this is killed in between, the entry is still listed and can be removed again.
            for path in (self.pixels, self.index, self.folder / "about.json"):
                path.unlink(missing_ok=True)


class DecodedPixels:
    """i -> image of a whole entry, read-only uint8 (H, W, 3).

    Data workers are sent its path, not its pixels. While one exists in any process, the entry cannot be removed.

    Args:
        digests: of the present files; None: do not compare them.
    """

    def __init__(self, entry: Entry, digests: Digests | None = None) -> None:
        self.entry = entry
        with entry.locked(shared=True, wait=_nothing_to_say) as descriptor:
            if not entry.is_complete(digests):
                raise DataError("the decoded images were removed", file=entry.folder, fix="Run the same command again")
            weakref.finalize(self, os.close, os.dup(descriptor))
            _HELD.add(self)
            with contextlib.suppress(PermissionError):  # it belongs to another user
                os.utime(entry.folder / "about.json")
            self._sizes = index_of(entry)[:, :2]
            self._offsets = offsets(self._sizes)
            self._pixels = np.memmap(entry.pixels, np.uint8, "r")

    def __reduce__(self) -> tuple[object, ...]:
        return DecodedPixels, (self.entry,)

    def __call__(self, index: int) -> Image:
        """The index-th image."""
        pixels = self._pixels[self._offsets[index] : self._offsets[index + 1]]
        return pixels.reshape(*self._sizes[index], 3)


_HELD: weakref.WeakSet[DecodedPixels] = weakref.WeakSet()


def is_held_here(entry: Entry) -> bool:
    """Whether this process itself reads from an entry; waiting to change the entry would then never end."""
    return any(stored.entry == entry for stored in _HELD)


def _nothing_to_say() -> None:
    """Called before waiting for another process that only looks whether the entry is whole: a moment."""


def index_of(entry: Entry) -> NDArray[np.int64]:
    """(N, 4) the whole rows of images.i64: height, width, hash of the file in two numbers."""
    rows = np.fromfile(entry.index, np.int64)
    return rows[: len(rows) // 4 * 4].reshape(-1, 4)


def offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N + 1,) the place in pixels.u8 where each image begins, and where the last one ends.

    Args:
        sizes: (N, 2) height and width of each image.
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes.prod(axis=1, dtype=np.int64) * 3)])


def entries(images: Path) -> list[Entry]:
    """Every entry below a folder, incomplete ones included; the one used last comes first."""
    cached = [Entry(path.parent) for path in images.glob("*/about.json")]
    return sorted(cached, key=Entry.used, reverse=True)


# Bytes of all splits together.
_LIMIT = 256 * 2**20


@dataclass(eq=False)
class _Held:
    """Decodes each image when it is first used, and keeps it."""

    image: Callable[[int], Image]
    images: dict[int, Image] = field(default_factory=dict)

    def __call__(self, index: int) -> Image:
        if index not in self.images:
            self.images[index] = self.image(index)
        return self.images[index]

    def __reduce__(self) -> tuple[object, ...]:
        # A data worker lives for one epoch: it is sent the function that decodes, not all pixels.
        return _itself, (self.image,)


def _itself(image: Callable[[int], Image]) -> Callable[[int], Image]:
    return image


def held(dataset: Dataset) -> Dataset:
    """The same data set; if it is small, its pixels are kept in memory after they are first read."""
    if not is_small(dataset):
        return dataset

    def hold_images(split: Split) -> Split:
        test_image = _Held(split.test_image) if split.test_image else None
        return replace(split, image=_Held(split.image), test_image=test_image)

    return dataset.map_splits(hold_images)


def is_small(dataset: Dataset) -> bool:
    """Whether all images fit into 256 MiB, if they are as large as the first."""
    splits = dataset.splits
    split = next(iter(splits.values()))
    size = split.image(0).nbytes + (split.test_image(0).nbytes if split.test_image else 0)
    return size * sum(map(len, splits.values())) <= _LIMIT


_BATCH = 16  # images that a worker decodes at once
_COMMIT = 512  # images between two syncs; after a power failure, decoding goes on from the last sync


def count_decoded(entry: Entry, digests: Digests) -> int:
    """Number of leading images that are on the disk and were decoded from the present files."""
    return _count_intact(entry, digests)[0]


def bytes_to_remove(entry: Entry, digests: Digests) -> int:
    """Bytes of pixels that decoding removes before it goes on, since they belong to no image that it can keep."""
    return entry.pixels.stat().st_size - _count_intact(entry, digests)[1] if entry.pixels.exists() else 0


def _count_intact(entry: Entry, digests: Digests) -> tuple[int, int]:
    """Number of images that can be kept, and the place in pixels.u8 where the last of them ends."""
    if not entry.index.exists() or not entry.pixels.exists():
        return 0, 0
    rows = index_of(entry)[: len(digests)]
    # After a power failure there may be zeros where sizes should be.
    sound = rows[:, :2].all(axis=1) & (rows[:, 2:] == digests[: len(rows)]).all(axis=1)
    intact_rows = rows[: int(np.append(sound, False).argmin()), :2]
    ends = offsets(intact_rows)
    count = int(np.searchsorted(ends, entry.pixels.stat().st_size, side="right")) - 1
    return count, int(ends[count])


def fill(  # noqa: PLR0913 - what, where, and who hears of it
    entry: Entry, split: Split, task: Task, *, digests: Digests, about: dict[str, Any], workers: int
) -> None:
    """Decode the images that an entry does not have; the caller holds the entry's lock.

    If this is interrupted in whatever way, the next call goes on from the images that are on the disk.

    Args:
        workers: number of processes that decode; 0 decodes in this process.
    """
    from layerprobe.data.loading import in_order

    if entry.is_complete(digests):
        task.advance(len(split))
        return
    about = {"schema": SCHEMA, **about, "split": split.name, "images": len(split)}
    write_text(entry.folder / "about.json", json.dumps(about | {"bytes": 0, "complete": False}))
    with _Writer(entry, digests) as writer:
        task.advance(writer.count)
        size = _BATCH if workers else 1
        batches = [
            np.arange(start, min(start + size, len(split)), dtype=np.int64)
            for start in range(writer.count, len(split), size)
        ]
        # Closing the iterator ends its processes.
        with contextlib.closing(in_order(partial(_decode_images, split.image), batches, workers)) as decoded:
            for images in decoded:
                for image in images:
                    writer.add(image)
                task.advance(len(images))
    write_text(
        entry.folder / "about.json", json.dumps(about | {"bytes": entry.pixels.stat().st_size, "complete": True})
    )


def _decode_images(image: Callable[[int], Image], indices: Indices) -> list[Image]:
    return [image(index) for index in indices.tolist()]


class _Writer:
    """Appends images to an entry, of which `count` are there; syncs after every _COMMIT images and at the end."""

    def __init__(self, entry: Entry, digests: Digests) -> None:
        self.digests = digests
        self.count, offset = _count_intact(entry, digests)
        self._new: list[tuple[int, ...]] = []
        with contextlib.ExitStack() as streams:
            # Bytes behind the last whole image are cut off.
            self._index = streams.enter_context(_open_at(entry.index, ROW * self.count))
            self._pixels = streams.enter_context(_open_at(entry.pixels, offset))
            # Reserve the index first, with zeros: on a full disk the sizes of the images that did fit must be there.
            self._index.write(bytes(ROW * (len(digests) - self.count)))
            self._index.seek(ROW * self.count)
            self._streams = streams.pop_all()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        with self._streams:
            self._commit()

    def add(self, image: Image) -> None:
        self._pixels.write(np.ascontiguousarray(image).data)
        self._new.append((*image.shape[:2], *self.digests[self.count].tolist()))
        self.count += 1
        if len(self._new) >= _COMMIT:
            self._commit()

    def _commit(self) -> None:
        """Sync the pixels, then their sizes: after a power failure, an image whose size is there must be whole."""
        try:
            self._pixels.flush()
        finally:
            # Also on a full disk: the length of pixels.u8 shows which images are whole.
            os.fsync(self._pixels.fileno())
            self._index.write(np.array(self._new, np.int64).tobytes())
            self._new = []
            self._index.flush()
            os.fsync(self._index.fileno())


def _open_at(path: Path, length: int) -> BinaryIO:
    path.touch()
    os.truncate(path, length)
    stream = path.open("r+b")
    stream.seek(length)
    return stream
