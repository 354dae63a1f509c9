"""Image files -> RGB pixels, decoded by PIL or torchvision, and the rules by which it is done.

A file that is not a complete image raises a `DataError` that names it and its fault; its `kind` is the word
that `data check` counts such files by.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import PIL.features
import PIL.Image
import PIL.ImageOps
from numpy.typing import NDArray
from PIL.Image import DecompressionBombError, Transpose

from layerprobe.data.splits import Image
from layerprobe.data.table_images import TableImage, TarImage
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file
from layerprobe.system.memory import memory_faults_told

if TYPE_CHECKING:
    from torch import Tensor

    _Decode = Callable[[Tensor, int], Tensor]

# What a file may hold, whatever its name ends in. PIL reads further formats; for EPS it would start Ghostscript.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000")
# What the names of images end in, where a folder is searched for them.
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2")
)
_ENDINGS = tuple(EXTENSIONS)
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
    if name.startswith("."):
        return False
    if name.lower().endswith(_ENDINGS):  # in half the time of `ending_of`
        return True
    ending = ending_of(name)
    if ending in HEIF_EXTENSIONS:
        return reads_heif()
    return ending == _AVIF_EXTENSION and _reads_avif()


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


_RGB = 3  # torchvision.io.ImageReadMode.RGB
_SCAN, _END = b"\xff\xda", b"\xff\xd9"  # JPEG's markers


def decode_jpeg(stream: BinaryIO, image: PIL.Image.Image) -> Image | None:
    """The pixels of an image that PIL has opened, and not decoded, as the file stores them.

    Args:
        stream: that PIL has opened the image from.

    Returns:
        uint8 (H, W, 3); None where PIL is to decode it: it is no JPEG in RGB or grey, or torchvision cannot decode it,
        so that errors are PIL's.
    """
    # PIL calls several pictures in one file MPO.
    if image.format != "JPEG" or image.mode not in ("RGB", "L"):
        return None
    decode = _decoder(progressive="progressive" in image.info)
    if decode is None:
        return None
    stream.seek(0)
    try:
        pixels = _pixels(decode, stream.read())
    except RuntimeError:
        return None
    return pixels if pixels.shape == (image.height, image.width, 3) else None


def _pixels(decode: _Decode, file: bytes) -> Image:
    import torch

    pixels: Image = decode(torch.frombuffer(bytearray(file), dtype=torch.uint8), _RGB).permute(1, 2, 0).numpy()
    return pixels


@functools.cache
def _decoder(*, progressive: bool) -> _Decode | None:
    """The operator; None where torchvision has none, or one whose pixels are not those of PIL's JPEG library.

    The libraries smooth a progressive file that lacks scans each in its own way.
    """
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    try:
        # `import torchvision` would take as long as a thousand photographs, in every data worker.
        for library in Path(spec.origin).parent.glob("image*.so"):
            torch.ops.load_library(library)
        decode: _Decode = torch.ops.image.decode_jpeg
        return decode if all(_agrees(decode, kind, progressive=progressive) for kind in range(3)) else None
    except (OSError, RuntimeError, AttributeError):
        return None


def _agrees(decode: _Decode, subsampling: int, *, progressive: bool) -> bool:
    """Whether a small JPEG of noise, of a progressive one the first scan, has PIL's pixels."""
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (35, 45, 3), np.uint8)
    PIL.Image.fromarray(noise).save(stream, "JPEG", subsampling=subsampling, progressive=progressive)
    file = stream.getvalue()
    if progressive:
        file = _SCAN.join(file.split(_SCAN)[:2]) + _END
    return np.array_equal(_pixels(decode, file), np.asarray(PIL.Image.open(io.BytesIO(file))))


ImageFile = Path | TableImage | TarImage
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
    SyntaxError, ValueError, RuntimeError, EOFError, IndexError, KeyError, TypeError, AssertionError, OverflowError,
    struct.error, zlib.error,
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
    reason = " ".join(str(error).split()) or type(error).__name__
    if "truncated" in reason.lower():
        return DataError("the image is truncated", file=path, fix=_AGAIN, kind="truncated")
    return DataError(f"the image is broken ({reason})", file=path, fix=_AGAIN, kind="broken")


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
