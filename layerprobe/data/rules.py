"""The rules by which `read_image` turns an image into RGB, read from its header."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import BinaryIO

import PIL.Image

from layerprobe.data.formats import formats_of
from layerprobe.data.images import EXIF_ORIENTATION, ImageFile

GREY_16 = "16-bit grey"
# PIL's mode -> kind and message of a rule.
_MODES = {
    "1": ("1-bit", "1-bit pixels, read as black and white"),
    "L": ("grey", "grey, read as three equal channels"),
    "P": ("palette", "a palette, read as its colours"),
    "CMYK": ("CMYK", "CMYK, converted to RGB without a colour profile"),
}


def rules_of(stream: BinaryIO, path: ImageFile, *, decode_png: bool) -> list[tuple[str, str]]:
    """The kind of each rule that the image in a file is read by, in a word or two, and the rule.

    Args:
        decode_png: decode PNGs, to see EXIF data that stand behind the pixels, where hardly a program writes them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with PIL.Image.open(stream, formats=formats_of(stream)) as image:
            if decode_png and image.format == "PNG":
                image.load()
            return list(_rules(image, path))


def _rules(image: PIL.Image.Image, path: ImageFile) -> Iterator[tuple[str, str]]:
    # MPO is a JPEG with further pictures behind the first, as cameras write it.
    kind = "JPEG" if image.format == "MPO" else image.format
    by_ending = PIL.Image.registered_extensions().get(path.suffix.lower())
    if by_ending not in (None, kind):
        yield "wrong ending", f"a {kind} file whose name ends in {path.suffix}"
    mode = image.mode.removesuffix("A")  # transparency has its own remark
    if mode in _MODES:
        yield _MODES[mode]
    elif mode.startswith("I"):
        yield GREY_16, "16-bit grey, divided by 257, or by data.white / 255"
    elif mode not in ("RGB", "RGBX"):
        yield "other mode", f"{image.mode}, converted to RGB"
    if image.has_transparency_data:
        yield "transparency", "transparent pixels, laid on white"
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        yield "animated", f"{frames} frames or pages, of which the first is read"
    # PngImageFile's own getexif would decode the pixels.
    orientation = PIL.Image.Image.getexif(image).get(EXIF_ORIENTATION, 1)
    if orientation != 1:
        yield "EXIF rotation", f"EXIF orientation {orientation}, which is applied only with data.exif_rotation"
