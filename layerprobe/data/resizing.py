"""From a decoded image to the size that the network takes: resizing, D1, D2, D3, the model's own.

Each of D1, D2 and D3 has two steps, so that the result of the first can be cached: `keep` shrinks the decoded image,
`train` and `test` cut the network's square out of that. For testing, D1 shrinks the decoded image in one step of its
own, `tested`: shrunk twice, an image with a photograph's spectrum, 1/f, loses a third of its gradients' energy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import PIL.Image
from PIL.Image import Resampling

from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.values.network_input import Filter, OwnInput

if TYPE_CHECKING:
    import torch

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
_SCALES = 0.1
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
        return math.ceil(self.size * (1 + _SCALES)) if self.name == "D1" else round(self.size * _RATIO)

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
            image = self._with_shorter_side(decoded, round(self.size * (1 + rng.uniform(0, _SCALES))))
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
class _Done:
    image: Callable[[int], Image]
    step: Callable[[Image], Image]

    def __call__(self, index: int) -> Image:
        return self.step(self.image(index))


def frame_dataset(dataset: Dataset, framing: Framing) -> Dataset:
    """The data set with `keep` done to every image and its splits' views: `train`, and `test` or, for D1, `tested`."""

    def frame_split(split: Split) -> Split:
        split, original = replace(split, image=_Done(split.image, framing.keep), train_view=framing.train), split.image
        if framing.name == "D1":
            return replace(split, test_image=_Done(original, framing.tested))
        return replace(split, test_view=framing.test)

    return replace(dataset, splits={name: frame_split(split) for name, split in dataset.splits.items()})


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
