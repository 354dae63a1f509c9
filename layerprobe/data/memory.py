"""Small data sets, held decoded in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import Dataset, Image, Split

# All splits together. Larger sets are decoded anew each epoch.
_LIMIT = 256 * 2**20


@dataclass(eq=False)
class _Held:
    """Decodes an image when it is first asked for, and keeps it."""

    split: Split
    pixels: NDArray[np.uint8]  # (N, H, W, 3)
    known: NDArray[np.bool_]  # (N,)

    def __call__(self, index: int) -> Image:
        if not self.known[index]:
            self.pixels[index] = self.split.image(index)
            self.known[index] = True
        image: Image = self.pixels[index]
        return image

    def __reduce__(self) -> tuple[object, ...]:
        # A data worker lives for an epoch and would be sent every pixel for it: it gets the decoding alone.
        return _itself, (self.split.image,)


def _itself(image: Callable[[int], Image]) -> Callable[[int], Image]:
    return image


def held(dataset: Dataset) -> Dataset:
    """The same data set, its pixels kept after the first reading if all of them fit in 256 MiB.

    Args:
        dataset: resized: every image has the size of the first.
    """
    splits = dataset.splits
    first = next(iter(splits.values())).image(0)
    if first.nbytes * sum(map(len, splits.values())) > _LIMIT:
        return dataset
    return replace(dataset, splits={name: _kept(split, first.shape) for name, split in splits.items()})


def _kept(split: Split, shape: tuple[int, ...]) -> Split:
    image = _Held(split, np.zeros((len(split), *shape), np.uint8), np.zeros(len(split), np.bool_))
    return replace(split, image=image)
