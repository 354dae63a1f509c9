"""Entries of the cache that hold decoded noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from layerprobe.data.pixel_cache import Digests, Entry, fill
from layerprobe.data.splits import Image, Split
from layerprobe.system.errors import DataError


@dataclass
class Progress:
    done: int = 0

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.done += steps


@dataclass
class Noise:
    """Image i is noise of (3 + i % 4) x 5 pixels; counts what it is asked for, and refuses one."""

    bad: int | None = None
    asked: list[int] = field(default_factory=list)

    def __call__(self, index: int) -> Image:
        self.asked.append(index)
        if index == self.bad:
            raise DataError("the image is truncated", file=f"{index}.jpg")
        return np.random.default_rng(index).integers(0, 256, (3 + index % 4, 5, 3), np.uint8)


def split_of(image: Noise, count: int = 40) -> Split:
    return Split("train", np.arange(count) % 2, tuple(map(str, range(count))), image)


DIGESTS = np.arange(80).reshape(40, 2) + 1  # of files


def filled(folder: Path, image: Noise, workers: int = 0, digests: Digests = DIGESTS) -> tuple[Entry, int]:
    entry, task = Entry(folder), Progress()
    with entry.locked():
        fill(entry, split_of(image), task, digests=digests, about={"data": "noise"}, workers=workers)
    return entry, task.done
