"""Which image formats are read, and which value of 16-bit grey is white."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any, BinaryIO

import numpy as np
import PIL.features
import PIL.Image
from numpy.typing import NDArray

# What a file may hold, whatever its name ends in. PIL reads further formats; for EPS it would start Ghostscript.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000")
# What the names of images end in, where a folder is searched for them.
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2")
)
HEIF_EXTENSIONS = frozenset((".heic", ".heif", ".hif"))  # of phones and cameras
HEIF_FIX = "pip install pillow-heif"
_AVIF_EXTENSION = ".avif"
# The kinds of HEIF, in the bytes 8 to 11 of a file: HEVC images and sequences, and the format at large.
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def ending_of(name: str) -> str:
    """The last dot of a name and what follows it, in lower case; empty where there is no dot."""
    _, dot, ending = name.rpartition(".")
    return dot and dot + ending.lower()


def is_image_name(name: str) -> bool:
    """Whether a file that is not hidden has a name that ends like an image's that can be read here."""
    ending = ending_of(name)
    if name.startswith("."):
        return False
    if ending in HEIF_EXTENSIONS:
        return reads_heif()
    return ending in EXTENSIONS or (ending == _AVIF_EXTENSION and _reads_avif())


def formats_of(stream: BinaryIO) -> tuple[str, ...]:
    """The formats among which PIL is to look for that of an open file; the stream is left at its beginning."""
    head = stream.read(12)
    stream.seek(0)
    if head[4:8] != b"ftyp":
        return _FORMATS
    # AVIF comes first: files of both kinds may call themselves mif1.
    avif, heif = _reads_avif(), is_heif(head) and reads_heif()
    return (*_FORMATS, *["AVIF"] * avif, *["HEIF"] * heif)


def is_heif(head: bytes) -> bool:
    """Whether a file begins like HEIF."""
    return head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS


@cache
def _reads_avif() -> bool:
    # PIL below 11.3 does not know the name, and warns.
    return "avif" in PIL.features.modules and bool(PIL.features.check("avif"))


@cache
def reads_heif() -> bool:
    """Whether PIL reads HEIF here; its plug-in is loaded when this is asked for the first time."""
    try:
        importlib.import_module("pillow_heif").register_heif_opener()
    except ImportError:
        return False
    return True


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
