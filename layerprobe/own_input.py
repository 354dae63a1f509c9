"""OwnInput: the images that a model from elsewhere was trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from layerprobe import imagenet

Filter = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
_Channels = tuple[float, float, float]


@dataclass(frozen=True)
class OwnInput:
    """How a model's own library makes its input of an image: resized, cropped at the centre, normalised.

    Args:
        size: side of the square that the model takes, in pixels.
        resized: the side that an image's shorter side is resized to before the crop, `size` or more; None: the image is
            squeezed to the square, and nothing is cropped.
        squeezed: whether the image is squeezed to a square of `resized` pixels, out of which the centre is cropped.
        filter: of resizing, with antialiasing except for nearest.
        mean: of red, green and blue, in the scale 0 ... 1.
        std: likewise.
        crop_rounding: where the crop begins if the rest is odd: half of it rounded down, as Hugging Face does, or
            rounded to even, as torchvision does.

    Raises:
        ValueError: the crop would be larger than the resized image.
    """

    size: int
    resized: int | None = None
    filter: Filter = "bilinear"
    mean: _Channels = imagenet.MEAN
    std: _Channels = imagenet.DEVIATION
    crop_rounding: Literal["down", "even"] = "even"
    squeezed: bool = False

    def __post_init__(self) -> None:
        if self.resized is not None and self.resized < self.size:
            raise ValueError(f"a square of {self.size} pixels cannot be cropped out of {self.resized}")

    def at(self, size: int) -> OwnInput:
        """The same for a square of another size: the side that is resized to grows or shrinks with it, rounded."""
        resized = None if self.resized is None else round(self.resized * size / self.size)
        return replace(self, size=size, resized=resized)
