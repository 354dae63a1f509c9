"""The papers' ways from a decoded image to a square one: what is kept of it, and how it is framed.

Every way has two steps, so that what is kept may be cached: `keep` shrinks the decoded image, the same for training and
test; `train` and `test` take the network's square out of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from layerprobe.data.resizing import Method, mirrored, resize
from layerprobe.data.splits import Dataset, Image, Split

# Paper 004 (section 5): images are scaled up by as much before they are cropped.
_SCALES = 0.1
# What 224 pixels are cropped out of in papers 000, 002 and 003.
_RATIO = 256 / 224


@dataclass(frozen=True)
class Framing:
    """One way, for one size.

    D1 (paper 004, section 5): the shorter side is scaled to 1 to 1.1 times the network's, a random square cropped and
    mirrored with probability 0.5; tested on the central square of the image with the shorter side at the network's.
    D2 (paper 000, section 6.1; papers 002 and 003): squeezed to a square of 256 for a network of 224, a random square
    cropped and mirrored; tested on the central one. D3 (the released code of paper 003) is D2 with pixels in -1 ... 1.

    Args:
        name: D1, D2 or D3.
        size: the network's side in pixels.
        method: of resizing.
    """

    name: str
    size: int
    method: Method = "exact"

    @property
    def side(self) -> int:
        """Pixels of what is kept: of the shorter side for D1, of the square for the others."""
        return math.ceil(self.size * (1 + _SCALES)) if self.name == "D1" else round(self.size * _RATIO)

    @property
    def kept(self) -> str:
        """What `keep` does, in words; equal for framings that keep the same."""
        return f"shorter side {self.side}" if self.name == "D1" else f"{self.side}x{self.side}"

    def keep(self, image: Image) -> Image:
        """(H, W, 3) of any size -> what both views are made of."""
        if self.name == "D1":
            return self._with_shorter_side(image, self.side)
        return resize(image, self.side, self.side, self.method)

    def test(self, kept: Image) -> Image:
        """(size, size, 3), the central square."""
        image = self._with_shorter_side(kept, self.size) if self.name == "D1" else kept
        height, width = image.shape[:2]
        return self._square(image, (height - self.size) // 2, (width - self.size) // 2)

    def train(self, kept: Image, rng: np.random.Generator) -> Image:
        """(size, size, 3), a random square, perhaps mirrored."""
        image = kept
        if self.name == "D1":
            image = self._with_shorter_side(kept, round(self.size * (1 + rng.uniform(0, _SCALES))))
        height, width = image.shape[:2]
        top, left = rng.integers(height - self.size + 1), rng.integers(width - self.size + 1)
        square = self._square(image, int(top), int(left))
        return mirrored(square) if rng.random() < 0.5 else square

    def _square(self, image: Image, top: int, left: int) -> Image:
        return image[top : top + self.size, left : left + self.size]

    def _with_shorter_side(self, image: Image, side: int) -> Image:
        height, width = image.shape[:2]
        shorter = min(height, width)
        return resize(image, round(height * side / shorter), round(width * side / shorter), self.method)


@dataclass(frozen=True, eq=False)
class _Kept:
    image: Callable[[int], Image]
    framing: Framing

    def __call__(self, index: int) -> Image:
        return self.framing.keep(self.image(index))


def framed(dataset: Dataset, framing: Framing) -> Dataset:
    """The data set with every image shrunk to what the views are made of, and the views with it."""

    def one(split: Split) -> Split:
        return replace(split, image=_Kept(split.image, framing), test_view=framing.test, train_view=framing.train)

    return replace(dataset, splits={name: one(split) for name, split in dataset.splits.items()})
