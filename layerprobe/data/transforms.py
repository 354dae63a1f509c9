"""What is done to pixels: resizing, inverting, augmentation by name, normalisation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import PIL
import PIL.Image
import torch
from PIL.Image import Resampling, Transform
from torch import Tensor

from layerprobe import imagenet
from layerprobe.data import resizing
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.errors import RecipeError

Channels = float | Sequence[float] | str
Augmentation = Callable[[Image, np.random.Generator], Image]

_IMAGENET = {"mean": imagenet.MEAN, "std": imagenet.DEVIATION}

# Mild enough that a character stays itself.
_DEGREES, _SCALES, _SHIFT = 10.0, (0.9, 1.1), 0.06
_PHOTO_SCALE = 0.1


@dataclass(frozen=True, eq=False)
class _Resized:
    split: Split
    size: int
    method: resizing.Method

    def __call__(self, index: int) -> Image:
        return resizing.resize(self.split.image(index), self.size, self.size, self.method)


@dataclass(frozen=True, eq=False)
class _Inverted:
    split: Split

    def __call__(self, index: int) -> Image:
        return ~self.split.image(index)


def resized(dataset: Dataset, size: int, method: resizing.Method = "exact") -> Dataset:
    """The data set with square images, the aspect ratio ignored.

    Args:
        dataset: of images of any size.
        size: side in pixels, at least 1.
        method: see `resizing.resize`.
    """

    def one(split: Split) -> Split:
        return replace(split, image=_Resized(split, size, method))

    return replace(dataset, splits={name: one(split) for name, split in dataset.splits.items()})


def inverted(dataset: Dataset) -> Dataset:
    """The data set with 255 - x for every pixel: black strokes on white become white on black."""
    return replace(dataset, splits={name: replace(s, image=_Inverted(s)) for name, s in dataset.splits.items()})


@dataclass(frozen=True)
class Normalise:
    """(x / 255 - mean) / std of each channel.

    Args:
        mean: of red, green and blue, in 0 ... 1.
        std: likewise, above 0.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def of(cls, mean: Channels, std: Channels) -> Normalise:
        """From a recipe's values: one number for all channels, three, or "imagenet".

        Raises:
            RecipeError: neither of these, or a std that is not above 0.
        """
        means, stds = _channels("mean", mean), _channels("std", std)
        if min(stds) <= 0:
            raise RecipeError(f"data.std = {std}: must be above 0")
        return cls(means, stds)

    def __call__(self, pixels: Tensor) -> Tensor:
        """What a network takes.

        Args:
            pixels: uint8 (B, H, W, 3), on any device.

        Returns:
            float32 (B, 3, H, W) in channels_last format, on the same device.
        """
        batch, height, width, channels = pixels.shape
        # By rows of all channels: broadcasting three numbers along the last axis would not be vectorised.
        mean, std = (torch.tensor(x, device=pixels.device).repeat(width) for x in (self.mean, self.std))
        rows = pixels.reshape(batch, height, width * channels).float().div_(255).sub_(mean).div_(std)
        # Channels that come last in memory stay there: the permuted view is in channels_last format already.
        return rows.view(pixels.shape).permute(0, 3, 1, 2)


def _channels(name: str, value: Channels) -> tuple[float, float, float]:
    if value == "imagenet":
        return _IMAGENET[name]
    numbers = [value] * 3 if isinstance(value, int | float) else value
    if isinstance(numbers, str) or len(numbers) != 3 or not all(math.isfinite(x) for x in numbers):
        raise RecipeError(f"data.{name} = {value!r}", fix='One number, three, or "imagenet"')
    red, green, blue = (float(x) for x in numbers)
    return red, green, blue


def describe_transform(  # noqa: PLR0913 - a step of the way each
    *,
    image_size: int,
    invert: bool,
    mean: Channels,
    std: Channels,
    framing: str = "square",
    method: resizing.Method = "exact",
    exif_rotation: bool = False,
) -> str:
    """Canonical JSON of the way from a file to a network's input, as recorded with features.

    Equal texts mean equal inputs from equal files. The decoder's version is part of it, since it may change pixels.
    """
    normalise = Normalise.of(mean, std)
    steps = {
        "decoder": f"PIL {PIL.__version__}",
        "alpha": "on white",
        "exif": _exif(exif_rotation),
        "resize": [image_size, image_size, resizing.describe(method) + ("" if framing == "square" else f", {framing}")],
        "invert": invert,
        "mean": normalise.mean,
        "std": normalise.std,
    }
    return json.dumps(steps, sort_keys=True, separators=(",", ":"))


def describe_decoding(kept: str, *, method: resizing.Method = "exact", exif_rotation: bool = False) -> str:
    """The way from a file to what is kept of it: equal texts mean equal pixels from equal files.

    Args:
        kept: what the resize makes ("224x224").
        method: of resizing.
        exif_rotation: whether images are turned as their EXIF says.
    """
    exif = _exif(exif_rotation)
    return f"PIL {PIL.__version__}; alpha on white; EXIF {exif}; {kept}, {resizing.describe(method)}"


def _exif(rotation: bool) -> str:
    return "applied" if rotation else "ignored"


def _unchanged(image: Image, rng: np.random.Generator) -> Image:  # noqa: ARG001 - an augmentation's signature
    return image


def _affine(image: Image, rng: np.random.Generator) -> Image:
    """Turned up to 10 degrees, scaled by 0.9 to 1.1, shifted up to 6 % of each side; never flipped.

    What comes in from outside has the median colour of the four corners.
    """
    height, width = image.shape[:2]
    angle = math.radians(rng.uniform(-_DEGREES, _DEGREES))
    scale = rng.uniform(*_SCALES)
    shift_x, shift_y = rng.uniform(-_SHIFT, _SHIFT, 2) * (width, height)
    # PIL asks where each pixel of the result comes from: the inverse turn and scale about the centre.
    a, b = math.cos(angle) / scale, math.sin(angle) / scale
    x, y = width / 2, height / 2
    matrix = (a, b, x - a * (x + shift_x) - b * (y + shift_y), -b, a, y + b * (x + shift_x) - a * (y + shift_y))
    corners = np.median(image[[0, 0, -1, -1], [0, -1, 0, -1]], axis=0)
    red, green, blue = (round(float(x)) for x in corners)
    return np.asarray(
        PIL.Image.fromarray(image).transform(
            (width, height), Transform.AFFINE, matrix, Resampling.BILINEAR, fillcolor=(red, green, blue)
        )
    )


def _photo(image: Image, rng: np.random.Generator) -> Image:
    """Scaled up by 1 + U[0, 0.1], cropped back at random, mirrored with probability 0.5.

    The random scaling, cropping and flipping of paper 004 (section 5), applied after the square resize.
    """
    height, width = image.shape[:2]
    side = 1 / (1 + rng.uniform(0, _PHOTO_SCALE))
    left, top = rng.uniform(0, 1 - side, 2)
    # Cutting the window out of the original and enlarging it is the same and one step.
    box = (left * width, top * height, (left + side) * width, (top + side) * height)
    cropped = np.asarray(PIL.Image.fromarray(image).resize((width, height), Resampling.BILINEAR, box))
    return resizing.mirrored(cropped) if rng.random() < 0.5 else cropped


# Each: uint8 (H, W, 3) and a generator -> the same size.
AUGMENTATIONS: Mapping[str, Augmentation] = {"none": _unchanged, "affine": _affine, "photo": _photo}
