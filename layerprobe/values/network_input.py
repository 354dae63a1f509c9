"""The images that a network takes: size, normalisation, and a foreign model's own preprocessing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import PIL.Image

ImageSize = int | tuple[int, int]  # side of a square, or (height, width), in pixels
Filter = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


def height_width(size: ImageSize) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else size


def as_size(height: int, width: int) -> ImageSize:
    """A size: of a square its side."""
    return height if height == width else (height, width)


def size_text(size: ImageSize) -> str:
    """`224`, or `256x128`: height before width."""
    return str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}"


def images_text(size: ImageSize, channels: int = 3) -> str:
    """`images of 224 px`, `images of 256x128 px and 1 channel`."""
    channels_text = "" if channels == 3 else f" and {channels} channel{'s' * (channels != 1)}"
    return f"images of {size_text(size)} px{channels_text}"


@dataclass(frozen=True)
class OwnInput:
    """How a model's own library makes its input of an image: resized, cropped at the centre, normalised.

    Args:
        size: of the images that the model takes.
        resized: what an image is resized to before the crop, `size` or more: its shorter side, or (height, width) that
            it covers in its own aspect ratio; None: the image is squeezed to `size`, and nothing is cropped.
        squeezed: whether the image is squeezed to `resized`, from which the centre is cropped.
        filter: of resizing, with antialiasing except for nearest.
        mean: of red, green and blue, in the scale 0 ... 1; one number of a model that takes grey images.
        std: as many.
        crop_rounding: the start of the crop if the rest is odd: half of it rounded down, as Hugging Face does, or
            rounded to even, as torchvision does.
        kept: the share of the resized side that the crop keeps, if the library computes `resized` from it for any
            size; None: `resized` is proportional to the size.
    """

    size: ImageSize
    resized: ImageSize | None = None
    filter: Filter = "bilinear"
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = DEVIATION
    crop_rounding: Literal["down", "even"] = "even"
    squeezed: bool = False
    kept: float | None = None

    def __post_init__(self) -> None:
        pairs = zip(*map(height_width, (self.size, self.resized or self.size)), strict=True)
        if any(size > resized for size, resized in pairs):
            raise ValueError(f"{_sides(self.size)} pixels cannot be cropped out of {_sides(self.resized or self.size)}")

    @property
    def channels(self) -> int:
        """1 of a model that takes grey images, else 3."""
        return len(self.mean)

    def at(self, size: ImageSize) -> OwnInput:
        """The same preprocessing for images of another size."""
        if self.resized is None or size == self.size:
            return replace(self, size=size)
        height, width = (
            round(resized * side / side_before) if self.kept is None else math.floor(side / self.kept)
            for resized, side, side_before in zip(*map(height_width, (self.resized, size, self.size)), strict=True)
        )
        return replace(self, size=size, resized=as_size(height, width))

    def framed(self, image: PIL.Image.Image) -> PIL.Image.Image:
        """The preprocessing of an RGB image before normalisation, by PIL.

        timm, torchvision, Hugging Face and open_clip truncate the longer side of the resized image to whole pixels.
        """
        from PIL.Image import Resampling

        resampling = Resampling[self.filter.upper()]
        height, width = height_width(self.size)
        if self.resized is None:
            return image.resize((width, height), resampling)
        resized = image.resize(self._resized(*image.size), resampling)
        left_edge, top_edge = self._start(resized.width - width), self._start(resized.height - height)
        return resized.crop((left_edge, top_edge, left_edge + width, top_edge + height))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that an image is resized to before the crop."""
        if self.squeezed or self.resized is None:
            resized = height_width(self.resized or self.size)
            return resized[1], resized[0]
        if isinstance(self.resized, int):
            shorter = min(width, height)
            return int(self.resized * width / shorter), int(self.resized * height / shorter)
        # As timm and open_clip do for images that are no squares.
        ratio = min(height / self.resized[0], width / self.resized[1])
        return round(width / ratio), round(height / ratio)

    def steps(self) -> str:
        """The steps of `framed` except its filter, in words; equal words mean equal results."""
        if self.resized is None:
            return f"squeezed to {_sides(self.size)}"
        resizing = f"squeezed to {_sides(self.resized)}" if self.squeezed else f"shorter side {self.resized}"
        if not self.squeezed and not isinstance(self.resized, int):
            resizing = f"as small as covers {_sides(self.resized)}"
        rounded = {"down": "down", "even": "to even"}[self.crop_rounding]
        return f"{resizing}, central {_sides(self.size)} from half the rest rounded {rounded}"

    def _start(self, margin: int) -> int:
        """The start of the crop on a side."""
        return margin // 2 if self.crop_rounding == "down" else round(margin / 2)


def _sides(size: ImageSize) -> str:
    """`224x224`."""
    return size_text(height_width(size))
