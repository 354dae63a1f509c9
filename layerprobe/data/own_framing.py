"""The transform `model`: from a decoded image to what the model's own library would make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import PIL.Image

from layerprobe.data.splits import Dataset, Image
from layerprobe.values.network_input import OwnInput


def frame_as_model(dataset: Dataset, own_input: OwnInput) -> Dataset:
    """The data set with every image as the model's own library makes it, before normalisation."""
    splits = {name: replace(split, image=_Own(split.image, own_input)) for name, split in dataset.splits.items()}
    return replace(dataset, splits=splits)


@dataclass(frozen=True, eq=False)
class _Own:
    image: Callable[[int], Image]
    own: OwnInput

    def __call__(self, index: int) -> Image:
        return np.asarray(self.own.framed(PIL.Image.fromarray(self.image(index))))
