"""Image files -> RGB pixels, decoded by PIL.

A file that is not a complete image raises a `DataError` that names it and its fault; its `kind` is the word
that `data check` counts such files by.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps
from PIL.Image import DecompressionBombError, Transpose

from layerprobe.data.formats import HEIF_FIX, formats_of, is_heif, reads_heif
from layerprobe.data.jpeg import decode_jpeg
from layerprobe.data.splits import Image
from layerprobe.data.table_images import TableImage
from layerprobe.data.white_level import WHITE, in_8_bits, is_16_bit_grey
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file
from layerprobe.system.memory import memory_faults_told

ImageFile = Path | TableImage
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels; right and bottom are the first ones outside
_PIXEL_LIMIT = 89_000_000
# A thinner image, scaled to a shorter side of 247 pixels, would take gigabytes.
_THINNEST = 1000
EXIF_ORIENTATION = 0x0112
# EXIF orientation -> what undoes it.
_BACK = {
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_90, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_270,
}  # fmt: skip
# What PIL raises on broken pixels or metadata, besides OSError.
PIL_ERRORS = (
    SyntaxError, ValueError, RuntimeError, EOFError, IndexError, KeyError, TypeError, OverflowError, struct.error,
    zlib.error,
)  # fmt: skip
_AGAIN = "Get it again or remove it"


def read_image(path: ImageFile, *, exif_rotation: bool = False, fast: bool = False, white: int = WHITE) -> Image:
    """An image as 8-bit RGB, at its size.

    Grey, palette, 1-bit and CMYK images become RGB; 16-bit grey is divided by 257, or else by white / 255; transparent
    pixels are laid on white; of an animation the first frame is read.

    Args:
        path: JPEG, PNG, GIF, BMP, WebP, TIFF, PPM, AVIF, JPEG 2000 or HEIF, whatever the name's ending; or the bytes of
            one in a table.
        fast: let torchvision decode JPEGs that are not to be turned; pixels and errors are the same.
        white: the value of 16-bit grey that becomes 255, from 1 to 65535; so does every value above it.

    Returns:
        uint8 (H, W, 3); it may be read-only.
    """
    try:
        with warnings.catch_warnings(), memory_faults_told(path):
            # PIL warns of metadata, which is not used, and of sizes, which are checked below.
            warnings.simplefilter("ignore")
            require_file(path)
            # Given a path, PIL would map some uncompressed TIFFs into memory and not turn them when it loads them.
            with path.open("rb") as stream, PIL.Image.open(stream, formats=formats_of(stream)) as image:
                if image.width * image.height > _PIXEL_LIMIT:
                    raise _too_large(path, f"{image.width}x{image.height} pixels")
                _require_not_thin(image.width, image.height, path)
                pixels = decode_jpeg(stream, image) if fast and not exif_rotation else None
                return _rgb(_apply_orientation(image, exif_rotation), path, white) if pixels is None else pixels
    except DecompressionBombError as error:
        # Beyond about twice the limit PIL refuses to open the file; the size is in its message alone.
        raise _too_large(path, str(error).partition(" exceeds")[0]) from error
    except PIL.UnidentifiedImageError as error:
        raise _not_an_image(path) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except PIL_ERRORS as error:
        raise _broken(path, error) from error


def crop(image: Image, box: Box, path: ImageFile) -> Image:
    """The part of an image in a box, in memory of its own.

    Args:
        path: of the image, for errors.

    Raises:
        DataError: the box is not within the image, or too thin.
    """
    xmin, ymin, xmax, ymax = box
    height, width = image.shape[:2]
    if xmax > width or ymax > height:
        problem = f"the box from {xmin},{ymin} to {xmax},{ymax} leaves the image of {width}x{height} pixels"
        raise DataError(problem, file=path, fix="Correct the box in the table", kind="box")
    _require_not_thin(xmax - xmin, ymax - ymin, path)
    return image[ymin:ymax, xmin:xmax].copy()


def _require_not_thin(width: int, height: int, path: ImageFile) -> None:
    if max(width, height) > _THINNEST * min(width, height):
        raise DataError(
            f"{width}x{height} pixels, thinner than 1 to {_THINNEST:,}",
            file=path,
            fix="Crop it or remove it",
            kind="too thin",
        )


def _apply_orientation(image: PIL.Image.Image, exif_rotation: bool) -> PIL.Image.Image:
    """The image in its EXIF orientation, or as stored."""
    if image.format != "TIFF":
        return PIL.ImageOps.exif_transpose(image) if exif_rotation else image
    # PIL turns TIFFs by itself, when it loads their pixels.
    orientation = image.getexif().get(EXIF_ORIENTATION, 1)
    image.load()
    return image if exif_rotation or orientation not in _BACK else image.transpose(_BACK[orientation])


def _rgb(image: PIL.Image.Image, path: ImageFile, white: int) -> Image:
    # PIL's own conversion would clip 16 bits to 8. A PPM states its white, and mode I holds values that PIL has scaled
    # to 16 bits by it.
    is_scaled = image.mode == "I" and image.format == "PPM"
    if is_16_bit_grey(image) or is_scaled:
        grey = in_8_bits(np.asarray(image), WHITE if is_scaled else white)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise DataError(
            "32-bit pixels have no agreed range",
            file=path,
            fix="Save it with 8 or 16 bits a channel",
            kind="pixel range",
        )
    if image.has_transparency_data:
        above = image.convert("RGBA")
        below = PIL.Image.new("RGBA", image.size, "white")
        return np.asarray(PIL.Image.alpha_composite(below, above).convert("RGB"))
    # convert copies even where nothing changes
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _too_large(path: ImageFile, size: str) -> DataError:
    return DataError(f"{size}, limit 89 million", file=path, fix="Make it smaller or remove it", kind="oversized")


def _not_an_image(path: ImageFile) -> DataError:
    with path.open("rb") as stream:
        head = stream.read(256)
    if not head:
        return DataError("the file is empty", file=path, fix=_AGAIN, kind="empty")
    if head.startswith(b"version https://git-lfs"):
        kind = "git-lfs pointer"
        return DataError(f"this is a {kind}, not an image", file=path, fix="Run git lfs pull", kind=kind)
    if is_heif(head) and not reads_heif():
        return DataError("HEIC, which PIL does not read by itself", file=path, fix=HEIF_FIX, kind="HEIC")
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html")):
        return DataError("this is an HTML page, not an image", file=path, fix=_AGAIN, kind="HTML page")
    return DataError("not an image that can be read", file=path, fix=_AGAIN, kind="not an image")


def _unreadable(path: ImageFile, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError("no such image", file=path, fix="Restore it or leave it out of the data set", kind="missing")
    if isinstance(error, PermissionError):
        return DataError("permission denied", file=path, fix="Give yourself the right to read it", kind="forbidden")
    if error.errno is not None:
        return DataError.unreadable(error, file=path)
    # PIL's own errors have no number: the file ends too early, or its decoder cannot go on.
    return _broken(path, error)


def _broken(path: ImageFile, error: Exception) -> DataError:
    reason = " ".join(str(error).split())
    if "truncated" in reason.lower():
        return DataError("the image is truncated", file=path, fix=_AGAIN, kind="truncated")
    return DataError(f"the image is broken ({reason})", file=path, fix=_AGAIN, kind="broken")
