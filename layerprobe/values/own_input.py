"""OwnInput: the preprocessing of images of a model from elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from layerprobe.values import imagenet

if TYPE_CHECKING:
    import PIL.Image

Filter = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
_Channels = tuple[float, float, float]


@dataclass(frozen=True)
class OwnInput:
    """How a model's own library makes its input of an image: resized, cropped at the centre, normalised.

    Args:
        size: side of the square that the model takes, in pixels.
        resized: the side that an image's shorter side is resized to before the crop, `size` or more; None: the image is
            squeezed to the square, and nothing is cropped.
        squeezed: whether the image is squeezed to a square of `resized` pixels, from which the centre is cropped.
        filter: of resizing, with antialiasing except for nearest.
        mean: of red, green and blue, in the scale 0 ... 1.
        crop_rounding: the start of the crop if the rest is odd: half of it rounded down, as Hugging Face does, or
            rounded to even, as torchvision does.
        kept: the share of the resized side that the crop keeps, if the library computes `resized` from it for any
            size; None: `resized` is proportional to the size.
    """

    size: int
    resized: int | None = None
    filter: Filter = "bilinear"
    mean: _Channels = imagenet.MEAN
    std: _Channels = imagenet.DEVIATION
    crop_rounding: Literal["down", "even"] = "even"
    squeezed: bool = False
    kept: float | None = None

    def __post_init__(self) -> None:
        if self.resized is not None and self.resized < self.size:
            raise ValueError(f"a square of {self.size} pixels cannot be cropped out of {self.resized}")

    def at(self, size: int) -> OwnInput:
        """The same preprocessing for a square of another size."""
        if self.resized is None:
            return replace(self, size=size)
        resized = round(self.resized * size / self.size) if self.kept is None else math.floor(size / self.kept)
        return replace(self, size=size, resized=resized)

    def square(self, image: PIL.Image.Image) -> PIL.Image.Image:
        """The preprocessing of an RGB image before normalisation, by PIL.

        timm, torchvision, Hugging Face and open_clip truncate the longer side of the resized image to whole pixels.
        """
        from PIL.Image import Resampling

        resampling = Resampling[self.filter.upper()]
        if self.resized is None:
            return image.resize((self.size, self.size), resampling)
        shorter = min(image.size)
        width, height = (self.resized if self.squeezed else int(self.resized * side / shorter) for side in image.size)
        left, top = self._start(width), self._start(height)
        resized = image.resize((width, height), resampling)
        return resized.crop((left, top, left + self.size, top + self.size))

    def steps(self) -> str:
        """The steps of `square` except its filter, in words; equal words mean equal results."""
        if self.resized is None:
            return f"squeezed to {self.size}x{self.size}"
        first = f"squeezed to {self.resized}x{self.resized}" if self.squeezed else f"shorter side {self.resized}"
        rounded = {"down": "down", "even": "to even"}[self.crop_rounding]
        return f"{first}, central {self.size}x{self.size} from half the rest rounded {rounded}"

    def _start(self, side: int) -> int:
        """The start of the crop on a side."""
        rest = side - self.size
        return rest // 2 if self.crop_rounding == "down" else round(rest / 2)
