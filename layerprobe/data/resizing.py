"""Bilinear resizing with antialiasing: PIL's, or torch's on 8-bit tensors, which is several times faster."""

from __future__ import annotations

from typing import Literal

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from PIL.Image import Resampling

from layerprobe.data.splits import Image

Method = Literal["exact", "fast"]


def resize(image: Image, height: int, width: int, method: Method) -> Image:
    """An image at another size; the same array where it has that size already.

    Args:
        image: uint8 (H, W, 3).
        height: of the result, at least 1.
        width: likewise.
        method: "exact" is PIL's, as the papers' pipelines have it. "fast" is torch's of the same filter, which rounds
            elsewhere: at most 1 grey level away.

    Returns:
        uint8 (height, width, 3), which may be read-only.
    """
    if image.shape[:2] == (height, width):
        return image
    if method == "exact":
        return np.asarray(PIL.Image.fromarray(image).resize((width, height), Resampling.BILINEAR))
    # torch warns of arrays that it could write to and must not.
    pixels = torch.from_numpy(image if image.flags.writeable else image.copy())
    # The permuted view is in channels_last format, for which torch has its fastest kernel.
    resized = F.interpolate(
        pixels.permute(2, 0, 1)[None], (height, width), mode="bilinear", align_corners=False, antialias=True
    )
    return resized[0].permute(1, 2, 0).numpy()


def describe(method: Method) -> str:
    """How it is done, in words; equal texts mean equal pixels."""
    return "bilinear, antialiased" + ("" if method == "exact" else f" by torch {torch.__version__}")
