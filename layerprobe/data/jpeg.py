"""JPEG files decoded by torchvision's library: the pixels of PIL in less time, as it copies none of them."""

from __future__ import annotations

import functools
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import PIL.Image

from layerprobe.data.splits import Image

if TYPE_CHECKING:
    from torch import Tensor

    _Decode = Callable[[Tensor, int], Tensor]

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
