"""The steps from a decoded image to the network's input: resizing, framing (D1, D2, D3, the model's own), normalising.

Each of D1, D2 and D3 has two steps, so that the result of the first can be cached: `keep` shrinks the decoded image,
`train` and `test` cut the network's square out of that. For testing, D1 shrinks the decoded image in one step of its
own, `tested`: shrunk twice, an image with a photograph's spectrum, 1/f, loses a third of its gradients' energy.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import PIL
import PIL.Image
from PIL.Image import Resampling, Transform

from layerprobe.data.images import WHITE
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.system.errors import RecipeError
from layerprobe.values import network_input
from layerprobe.values.network_input import Filter, ImageSize, OwnInput, height_width

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Method = Literal["exact", "fast"]


def resize(image: Image, height: int, width: int, method: Method) -> Image:
    """An image at another size; unchanged if it has that size already.

    Args:
        image: uint8 (H, W, 3).
        height: of the result, at least 1.
        width: of the result, at least 1.
        method: "exact" is PIL's, as in the papers' pipelines. "fast" is torch's with the same filter; it has weights of
            16 bits and rounds in other places. It differs by at most 1 grey level; in very smooth images, by 2 in one
            of 10^8 values, where both of its passes round to the other side.

    Returns:
        uint8 (height, width, 3), which may be read-only.
    """
    if image.shape[:2] == (height, width):
        return image
    if method == "exact":
        return np.asarray(PIL.Image.fromarray(image).resize((width, height), Resampling.BILINEAR))
    import torch.nn.functional as F

    # The permuted view is in channels_last format, which is the fastest in torch. Its first stride must say so, too: of
    # an image permuted before it is unsqueezed, the result would be in another format, and stacking that is slow.
    pixels = _tensor(image)[None].permute(0, 3, 1, 2)
    resized = F.interpolate(pixels, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def mirror(image: Image) -> Image:
    """(H, W, 3) with left and right exchanged, by torch, which takes a sixteenth of numpy's time."""
    return _tensor(image).flip(1).numpy()


def _tensor(image: Image) -> torch.Tensor:
    import torch

    with warnings.catch_warnings():
        # torch warns since it cannot make a tensor read-only; nobody writes to this one.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(image)


def describe(method: Method, filter: Filter = "bilinear") -> str:
    """The method and its filter in words; equal texts mean equal pixels."""
    words = filter if filter == "nearest" else f"{filter}, antialiased"
    if method == "exact":
        return words
    import torch

    return f"{words} by torch {torch.__version__}"


# Images are scaled up by at most as much before they are cropped (Vo & Hays, section 5).
_ENLARGEMENT = 0.1
# Zhai & Wu, Fehervari et al. and Zhang et al. crop 224 pixels out of 256.
_RATIO = 256 / 224


@dataclass(frozen=True)
class Framing:
    """One of the transforms, for one size of the network's square.

    D1 (Vo & Hays, section 5): for training, the shorter side is scaled to 1 to 1.1 times the network's size, and a
    random square is cropped and mirrored with probability 0.5; for testing, the shorter side is scaled to the network's
    size and the central square is cropped.

    D2 (Zhai & Wu 2019, section 6.1; Fehervari et al. 2019; Zhang et al. 2018): the image is squeezed to a square, of
    256 pixels for a network of 224. For training, a random square is cropped and mirrored with probability 0.5; for
    testing, the central square is cropped.

    D3 (the released code of Zhang et al. 2018): D2 with pixels in -1 ... 1.

    Args:
        name: D1, D2 or D3.
        size: the network's side in pixels.
    """

    name: str
    size: int
    method: Method = "exact"

    @property
    def side(self) -> int:
        """Size in pixels of what `keep` gives: the shorter side for D1, the side of the square for D2 and D3."""
        return math.ceil(self.size * (1 + _ENLARGEMENT)) if self.name == "D1" else round(self.size * _RATIO)

    @property
    def kept(self) -> str:
        """What `keep` does, in words; equal words mean equal results."""
        return f"shorter side {self.side}" if self.name == "D1" else f"{self.side}x{self.side}"

    def keep(self, image: Image) -> Image:
        """The first step: (H, W, 3) of any size -> what `train` and `test` take."""
        if self.name == "D1":
            return self._with_shorter_side(image, self.side)
        return resize(image, self.side, self.side, self.method)

    def test(self, decoded: Image) -> Image:
        """The second step for testing by D2 or D3: the central square, (size, size, 3)."""
        height, width = decoded.shape[:2]
        return self._square(decoded, (height - self.size) // 2, (width - self.size) // 2)

    @property
    def tested_as(self) -> str:
        """What `tested` does by D1, in words; equal words mean equal results."""
        return f"central square of shorter side {self.size}"

    def tested(self, image: Image) -> Image:
        """All that D1 does for testing: (H, W, 3) of any size -> the central square of the shrunk image."""
        return self.test(self._with_shorter_side(image, self.size))

    def train(self, decoded: Image, rng: np.random.Generator) -> Image:
        """The second step for training: a random square, perhaps mirrored, (size, size, 3)."""
        image = decoded
        if self.name == "D1":
            image = self._with_shorter_side(decoded, round(self.size * (1 + rng.uniform(0, _ENLARGEMENT))))
        height, width = image.shape[:2]
        top_edge, left_edge = rng.integers(height - self.size + 1), rng.integers(width - self.size + 1)
        square = self._square(image, int(top_edge), int(left_edge))
        return mirror(square) if rng.random() < 0.5 else square

    def _square(self, image: Image, top_edge: int, left_edge: int) -> Image:
        return image[top_edge : top_edge + self.size, left_edge : left_edge + self.size]

    def _with_shorter_side(self, image: Image, side: int) -> Image:
        height, width = image.shape[:2]
        shorter = min(height, width)
        return resize(image, round(height * side / shorter), round(width * side / shorter), self.method)


@dataclass(frozen=True, eq=False)
class _Processed:
    """i -> image after a step."""

    image: Callable[[int], Image]
    step: Callable[[Image], Image]

    def __call__(self, index: int) -> Image:
        return self.step(self.image(index))


def frame_dataset(dataset: Dataset, framing: Framing) -> Dataset:
    """The data set with `keep` done to every image and its splits' views: `train`, and `test` or, for D1, `tested`."""

    def frame_split(split: Split) -> Split:
        kept = replace(split, image=_Processed(split.image, framing.keep), train_view=framing.train)
        if framing.name == "D1":
            return replace(kept, test_image=_Processed(split.image, framing.tested))
        return replace(kept, test_view=framing.test)

    return dataset.map_splits(frame_split)


def frame_as_model(dataset: Dataset, own_input: OwnInput) -> Dataset:
    """The data set with every image as the model's own library makes it, before normalisation."""
    step = partial(_frame_as_model, own_input)
    return dataset.map_splits(lambda split: replace(split, image=_Processed(split.image, step)))


def _frame_as_model(own_input: OwnInput, image: Image) -> Image:
    return np.asarray(own_input.framed(PIL.Image.fromarray(image)))


Channels = float | Sequence[float] | str
Augmentation = Callable[[Image, np.random.Generator], Image]

_IMAGENET = {"mean": network_input.MEAN, "std": network_input.DEVIATION}

# Small enough for a character to stay the same character.
_DEGREES, _SCALES, _SHIFT = 10.0, (0.9, 1.1), 0.06
_PHOTO_SCALE = 0.1


def resize_dataset(dataset: Dataset, size: ImageSize, method: Method = "exact") -> Dataset:
    """The data set with its images resized to one size, whatever their aspect ratio."""
    height, width = height_width(size)
    step = partial(resize, height=height, width=width, method=method)
    return dataset.map_splits(lambda split: replace(split, image=_Processed(split.image, step)))


def invert_dataset(dataset: Dataset) -> Dataset:
    """The data set with 255 - x for every pixel: black strokes on white become white on black."""

    def invert_split(split: Split) -> Split:
        test_image = _Processed(split.test_image, np.invert) if split.test_image else None
        return replace(split, image=_Processed(split.image, np.invert), test_image=test_image)

    return dataset.map_splits(invert_split)


@dataclass(frozen=True)
class Normalise:
    """Pixels x -> (x / 255 - mean) / std, for each channel.

    Args:
        mean: of red, green and blue, in 0 ... 1; one number for a network that takes grey images.
        std: as many, above 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, mean: Channels, std: Channels, channels: int = 3) -> Normalise:
        """From a recipe's values: one number for all channels, three numbers, or "imagenet".

        Args:
            channels: 3 or, of a network that takes grey images, 1. For these the mean of three numbers counts.
        """
        means, stds = _channels("mean", mean, channels), _channels("std", std, channels)
        if min(stds) <= 0:
            raise RecipeError(f"data.std = {std}: must be above 0", fix="Raise data.std")
        return cls(means, stds)

    def __call__(self, pixels: Tensor) -> Tensor:
        """The network's input.

        Args:
            pixels: uint8 (B, H, W, 3), or (B, H, W, 1) of grey values, on any device.

        Returns:
            float32 (B, 3, H, W), or (B, 1, H, W) of grey values, in channels_last format, on the same device.
        """
        import torch

        if len(self.mean) == 1 and pixels.shape[3] == 3:
            pixels = in_grey(pixels)
        batch, height, width, channels = pixels.shape
        # Mean and std are repeated for a whole row: broadcasting three numbers along the last axis is not vectorised.
        mean, std = (torch.tensor(x).repeat(width) for x in (self.mean, self.std))
        if pixels.device.type != "cpu":  # torch.tensor(x, device=...) would wait for all that a GPU has to do
            mean, std = (row.to(pixels.device, non_blocking=pixels.is_cuda) for row in (mean, std))
        rows = pixels.reshape(batch, height, width * channels).float().div_(255).sub_(mean).div_(std)
        # The channels stay last in memory, so that the permuted view is in channels_last format.
        return rows.view(pixels.shape).permute(0, 3, 1, 2)


def _channels(name: str, value: Channels, channels: int) -> tuple[float, ...]:
    values = _IMAGENET[name] if value == "imagenet" else value
    numbers = [values] if isinstance(values, int | float) else values
    if isinstance(numbers, str) or len(numbers) not in (1, 3) or not all(math.isfinite(x) for x in numbers):
        raise RecipeError(f"data.{name} = {value!r}", fix='Give one number, three numbers or "imagenet"')
    if len(numbers) == channels:
        return tuple(map(float, numbers))
    return (sum(numbers) / len(numbers),) * channels


def in_grey(pixels: Tensor) -> Tensor:
    """Uint8 (B, H, W, 3) -> (B, H, W, 1), as PIL converts to L: ITU-R 601-2 luma in units of 1/65536, rounded."""
    import torch

    red, green, blue = pixels.to(torch.int32).unbind(3)
    luma = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return luma.to(torch.uint8).unsqueeze(3)


# Framing -> its suffix to the name of the resizing, other than its own name.
_FRAMED = {"square": "", "D1": ", D1 in one step"}


def describe_transform(  # noqa: PLR0913 - an argument for each step
    *,
    image_size: ImageSize,
    channels: int = 3,
    invert: bool,
    mean: Channels,
    std: Channels,
    framing: str = "square",
    method: Method = "exact",
    filter: Filter = "bilinear",
    exif_rotation: bool = False,
    white: int = WHITE,
) -> str:
    """All steps from a file to the network's input, as canonical JSON that is stored with features.

    Equal texts mean equal inputs from equal files. The decoder's version is included, as it may change pixels.

    Args:
        channels: that the network takes, 3 or 1.
        invert: whether pixels are inverted.
        framing: "square", D1, D2, D3, or what else is done besides resizing, in words.
    """
    normalise = Normalise.of(mean, std, channels)
    height, width = height_width(image_size)
    steps = {
        "decoder": f"PIL {PIL.__version__}",
        "alpha": "on white",
        "exif": _exif(exif_rotation),
        "resize": [height, width, describe(method, filter) + _FRAMED.get(framing, f", {framing}")],
        "invert": invert,
        "mean": normalise.mean,
        "std": normalise.std,
    }
    if white != WHITE:  # as it was before there was another level
        steps["white"] = white
    return json.dumps(steps, sort_keys=True, separators=(",", ":"))


def describe_decoding(
    size: str,
    *,
    method: Method = "exact",
    filter: Filter = "bilinear",
    exif_rotation: bool = False,
    white: int = WHITE,
) -> str:
    """The steps from a file to the pixels that are kept decoded, in words.

    Equal texts mean equal pixels from equal files.

    Args:
        size: the size of the result ("224x224").
    """
    exif, level = _exif(exif_rotation), "" if white == WHITE else f"white {white}; "
    return f"PIL {PIL.__version__}; alpha on white; EXIF {exif}; {level}{size}, {describe(method, filter)}"


def _exif(rotation: bool) -> str:
    return "applied" if rotation else "ignored"


def _unchanged(image: Image, rng: np.random.Generator) -> Image:  # noqa: ARG001 - an augmentation's signature
    return image


def _affine(image: Image, rng: np.random.Generator) -> Image:
    """Rotated by up to 10 degrees, scaled by 0.9 to 1.1, shifted by up to 6 % of each side; never mirrored.

    Pixels from outside the image get the median colour of the four corners.
    """
    height, width = image.shape[:2]
    angle = math.radians(rng.uniform(-_DEGREES, _DEGREES))
    scale = rng.uniform(*_SCALES)
    shift_x, shift_y = rng.uniform(-_SHIFT, _SHIFT, 2) * (width, height)
    # PIL takes the inverse map, from each pixel of the result to its source; it rotates and scales about the centre.
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
    """Scaled up by 1 + U[0, 0.1], cropped to the former size at random, mirrored with probability 0.5.

    The random scaling, cropping and flipping of Vo & Hays (section 5), applied after the square resize.
    """
    height, width = image.shape[:2]
    side = 1 / (1 + rng.uniform(0, _PHOTO_SCALE))
    left_edge, top_edge = rng.uniform(0, 1 - side, 2)
    # Enlarging a window of the original is the same, in one step.
    box = (left_edge * width, top_edge * height, (left_edge + side) * width, (top_edge + side) * height)
    cropped = np.asarray(PIL.Image.fromarray(image).resize((width, height), Resampling.BILINEAR, box))
    return mirror(cropped) if rng.random() < 0.5 else cropped


# Name -> (uint8 (H, W, 3), generator) -> an image of the same size.
AUGMENTATIONS: Mapping[str, Augmentation] = {"none": _unchanged, "affine": _affine, "photo": _photo}
