"""Small data sets, held decoded in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from layerprobe.data.splits import Dataset, Image, Split

# All splits together. Larger sets are decoded anew each epoch.
_LIMIT = 256 * 2**20


@dataclass(eq=False)
class _Held:
    """Decodes an image when it is first asked for, and keeps it."""

    split: Split
    images: dict[int, Image] = field(default_factory=dict)

    def __call__(self, index: int) -> Image:
        if index not in self.images:
            self.images[index] = self.split.image(index)
        return self.images[index]

    def __reduce__(self) -> tuple[object, ...]:
        # A data worker lives for an epoch and would be sent every pixel for it: it gets the decoding alone.
        return _itself, (self.split.image,)


def _itself(image: Callable[[int], Image]) -> Callable[[int], Image]:
    return image


def held(dataset: Dataset) -> Dataset:
    """The same data set, its pixels kept after the first reading if it is small."""
    if not is_small(dataset):
        return dataset
    return replace(dataset, splits={name: replace(s, image=_Held(s)) for name, s in dataset.splits.items()})


def is_small(dataset: Dataset) -> bool:
    """Whether all images, if they are like the first, fit in 256 MiB."""
    splits = dataset.splits
    return next(iter(splits.values())).image(0).nbytes * sum(map(len, splits.values())) <= _LIMIT
