"""Decoding the images of a split into an entry of the cache, so that it can be interrupted at any point."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from layerprobe.data.batches import Indices
from layerprobe.data.pixel_cache import ROW, SCHEMA, Digests, Entry, index_of, offsets
from layerprobe.data.splits import Image, Split
from layerprobe.system.files import write_text
from layerprobe.system.progress import Task

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
