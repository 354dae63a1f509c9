"""OwnInput: the images that a model from elsewhere was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from layerprobe import imagenet

Filter = Literal["nearest", "bilinear", "bicubic", "lanczos"]
_Channels = tuple[float, float, float]


@dataclass(frozen=True)
class OwnInput:
    """How a model's own library makes its input of an image: resized, cropped at the centre, normalised.

    Args:
        size: side of the square that the model takes, in pixels.
        resized: the side that an image's shorter side is resized to before the crop; None: the image is squeezed to the
            square, and nothing is cropped.
        filter: of resizing, with antialiasing.
        mean: of red, green and blue, in the scale 0 ... 1.
        std: likewise.
        crop_rounding: where the crop begins if the rest is odd: half of it rounded down, as Hugging Face does, or
            rounded to even, as torchvision does.
    """

    size: int
    resized: int | None = None
    filter: Filter = "bilinear"
    mean: _Channels = imagenet.MEAN
    std: _Channels = imagenet.DEVIATION
    crop_rounding: Literal["down", "even"] = "even"
