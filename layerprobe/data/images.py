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

from layerprobe.data.jpeg import decoded
from layerprobe.data.splits import Image
from layerprobe.data.table_images import TableImage
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file
from layerprobe.system.memory import memory_faults_told

ImageFile = Path | TableImage
# What the names of images end in, where a folder is searched for them.
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".jp2")
)

# What a file may hold, whatever its name ends in. PIL reads further formats; for EPS it would start Ghostscript.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
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


def read_image(path: ImageFile, *, exif_rotation: bool = False, fast: bool = False) -> Image:
    """An image as 8-bit RGB, at its size.

    Grey, palette, 1-bit and CMYK images become RGB; 16-bit grey is divided by 257; transparent pixels are laid on
    white; of an animation the first frame is read.

    Args:
        path: JPEG, PNG, GIF, BMP, WebP, TIFF, PPM, AVIF or JPEG 2000, whatever the name's ending; or the
            bytes of one in a table.
        fast: let torchvision decode JPEGs that are not to be turned; pixels and errors are the same.

    Returns:
        uint8 (H, W, 3); it may be read-only.
    """
    try:
        with warnings.catch_warnings(), memory_faults_told(path):
            # PIL warns of metadata, which is not used, and of sizes, which are checked below.
            warnings.simplefilter("ignore")
            require_file(path)
            # Given a path, PIL would map some uncompressed TIFFs into memory and not turn them when it loads them.
            with path.open("rb") as stream, PIL.Image.open(stream, formats=FORMATS) as image:
                if image.width * image.height > _PIXEL_LIMIT:
                    raise _too_large(path, f"{image.width}x{image.height} pixels")
                if max(image.size) > _THINNEST * min(image.size):
                    raise DataError(
                        f"{image.width}x{image.height} pixels, thinner than 1 to {_THINNEST:,}",
                        file=path,
                        fix="Crop it or remove it",
                        kind="too thin",
                    )
                pixels = decoded(stream, image) if fast and not exif_rotation else None
                return _rgb(_turned(image, exif_rotation), path) if pixels is None else pixels
    except DecompressionBombError as error:
        # Beyond about twice the limit PIL refuses to open the file; the size is in its message alone.
        raise _too_large(path, str(error).partition(" exceeds")[0]) from error
    except PIL.UnidentifiedImageError as error:
        raise _not_an_image(path) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except PIL_ERRORS as error:
        raise _broken(path, error) from error


def _turned(image: PIL.Image.Image, exif_rotation: bool) -> PIL.Image.Image:
    """The image in its EXIF orientation, or as stored."""
    if image.format != "TIFF":
        return PIL.ImageOps.exif_transpose(image) if exif_rotation else image
    # PIL turns TIFFs by itself, when it loads their pixels.
    orientation = image.getexif().get(EXIF_ORIENTATION, 1)
    image.load()
    return image if exif_rotation or orientation not in _BACK else image.transpose(_BACK[orientation])


def _rgb(image: PIL.Image.Image, path: ImageFile) -> Image:
    # PIL's own conversion would clip 16 bits to 8. A PPM's mode I holds values that PIL has scaled to 16 bits.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        grey = (np.asarray(image).astype(np.uint32) + 128) // 257
        return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise DataError(
            "32-bit pixels have no agreed range",
            file=path,
            fix="Save it with 8 or 16 bits a channel",
            kind="pixel range",
        )
    if image.has_transparency_data:
        above = image.convert("RGBA")
        white = PIL.Image.new("RGBA", image.size, "white")
        return np.asarray(PIL.Image.alpha_composite(white, above).convert("RGB"))
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
