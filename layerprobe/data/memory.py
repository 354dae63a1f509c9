"""Small data sets are kept decoded in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from layerprobe.data.splits import Dataset, Image, Split

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

    return replace(dataset, splits={name: hold_images(split) for name, split in dataset.splits.items()})


def is_small(dataset: Dataset) -> bool:
    """Whether all images fit into 256 MiB, if they are as large as the first."""
    splits = dataset.splits
    split = next(iter(splits.values()))
    size = split.image(0).nbytes + (split.test_image(0).nbytes if split.test_image else 0)
    return size * sum(map(len, splits.values())) <= _LIMIT
