"""Which image formats are read here, by what files hold and by what their names end in."""

from __future__ import annotations

import importlib
from functools import cache
from typing import BinaryIO

import PIL.features

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
