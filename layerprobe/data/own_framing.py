"""The transform `model`: from a decoded image to the square that the model's own library would make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from layerprobe.data.resizing import resize
from layerprobe.data.splits import Dataset, Image
from layerprobe.own_input import OwnInput


def own_framed(dataset: Dataset, own: OwnInput) -> Dataset:
    """The data set with every image as the model's own library makes it, before normalisation.

    Args:
        dataset: of images of any size.
        own: what the library does.
    """
    splits = {name: replace(split, image=_Own(split.image, own)) for name, split in dataset.splits.items()}
    return replace(dataset, splits=splits)


def own_square(image: Image, own: OwnInput) -> Image:
    """What a model's own library makes of an image, by PIL; uint8 (H, W, 3) of any size -> (size, size, 3).

    timm, torchvision, Hugging Face and open_clip cut the longer side of the resized image to whole pixels.
    """
    if own.resized is None:
        return resize(image, own.size, own.size, "exact", own.filter)
    height, width = image.shape[:2]
    shorter = min(height, width)
    to_height, to_width = (
        own.resized if own.squeezed else int(own.resized * side / shorter) for side in (height, width)
    )
    resized = resize(image, to_height, to_width, "exact", own.filter)
    top, left = (_start(side - own.size, own) for side in (to_height, to_width))
    return resized[top : top + own.size, left : left + own.size]


def own_steps(own: OwnInput) -> str:
    """What `own_square` does besides its filter, in words; equal words mean equal results."""
    if own.resized is None:
        return f"squeezed to {own.size}x{own.size}"
    first = f"squeezed to {own.resized}x{own.resized}" if own.squeezed else f"shorter side {own.resized}"
    return f"{first}, central {own.size}x{own.size} from half the rest rounded {_ROUNDED[own.crop_rounding]}"


_ROUNDED = {"down": "down", "even": "to even"}


def _start(rest: int, own: OwnInput) -> int:
    return rest // 2 if own.crop_rounding == "down" else round(rest / 2)


@dataclass(frozen=True, eq=False)
class _Own:
    image: Callable[[int], Image]
    own: OwnInput

    def __call__(self, index: int) -> Image:
        return own_square(self.image(index), self.own)
