"""Images -> small files for a page."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL.Image import Resampling

SIDE = 64  # pixels of the longer side, at most
_QUALITY = 80  # of JPEG


def small_picture(image: NDArray[np.uint8]) -> bytes:
    """An image at no more than 64 pixels a side, as PNG or JPEG, whichever is shorter.

    Drawings are shorter as PNG, which loses nothing, and photographs as JPEG.

    Args:
        image: (H, W, 3) RGB.
    """
    # A grey image has three equal channels.
    grey = bool((image == image[:, :, :1]).all())
    picture = PIL.Image.fromarray(np.ascontiguousarray(image[:, :, 0] if grey else image))
    scale = SIDE / max(picture.size)
    if scale < 1:
        width, height = (max(1, round(side * scale)) for side in picture.size)
        picture = picture.resize((width, height), Resampling.LANCZOS)
    return min(_encode(picture, "PNG"), _encode(picture, "JPEG", quality=_QUALITY), key=len)


def _encode(picture: PIL.Image.Image, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()
