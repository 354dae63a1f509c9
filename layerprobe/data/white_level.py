"""Which value of 16-bit grey is white."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, BinaryIO

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from layerprobe.data.formats import formats_of

WHITE = 65535
# Values from here on are of images that use all 16 bits.
FULL_RANGE = 2**14
# The largest value of each depth that devices have, in 16 bits.
_LEVELS = (2**8 - 1, 2**10 - 1, 2**12 - 1, 2**14 - 1)


def is_16_bit_grey(image: PIL.Image.Image) -> bool:
    """Whether the pixels of an image that PIL has opened have 16 bits as they are stored."""
    return image.mode.startswith("I;16")


def in_8_bits(values: NDArray[np.integer[Any]], white: int) -> NDArray[np.uint8]:
    """16-bit grey as 8 bits: v * 255 / white, rounded, and 255 for what is above white.

    Args:
        white: from 1 to 65535, which divides by 257.
    """
    return _of_each_value(white).take(values)


@cache
def _of_each_value(white: int) -> NDArray[np.uint8]:
    """The 8 bits of 0 ... 65535."""
    clipped = np.minimum(np.arange(WHITE + 1, dtype=np.uint32), np.uint32(white))
    return ((510 * clipped + white) // (2 * white)).astype(np.uint8)


def largest_value(stream: BinaryIO) -> int:
    """The largest value of an image of 16-bit grey; 0 for other images. PIL's errors are raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with PIL.Image.open(stream, formats=formats_of(stream)) as image:
            return int(np.asarray(image).max()) if is_16_bit_grey(image) else 0


def level_note(largest: int, white: int) -> str | None:
    """What is to be said of 16-bit grey images with a largest value: that they are dark, or that values are clipped."""
    if largest > white:
        return f"16-bit grey images have values up to {largest}: those above data.white = {white} become white"
    if white < WHITE or not 0 < largest < FULL_RANGE:
        return None
    level = next(level for level in _LEVELS if level >= largest)
    return (
        f"16-bit grey images have values up to {largest} of {WHITE}, and become dark: --set data.white={level} makes"
        f" {level} white"
    )
