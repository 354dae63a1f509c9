"""Bilinear resizing with antialiasing: PIL's, or torch's on 8-bit tensors, which is several times faster; mirroring."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from PIL.Image import Resampling

from layerprobe.data.splits import Image

Method = Literal["exact", "fast"]


def resize(image: Image, height: int, width: int, method: Method) -> Image:
    """An image at another size; as it is where it has that size already.

    Args:
        image: uint8 (H, W, 3); for "fast" also (H, W, 4), of which the last channel goes.
        height: of the result, at least 1.
        width: likewise.
        method: "exact" is PIL's, as the papers' pipelines have it. "fast" is torch's of the same filter, which rounds
            elsewhere and has weights of 16 bits: at most 1 grey level away, and 2 in one of 10^8 values where both
            of its passes fall on the other side of a half (very smooth images).

    Returns:
        uint8 (height, width, 3), which may be read-only.
    """
    if image.shape[:2] == (height, width):
        return image if image.shape[2] == 3 else image[:, :, :3]
    if method == "exact":
        return np.asarray(PIL.Image.fromarray(image).resize((width, height), Resampling.BILINEAR))
    pixels = _tensor(image)
    # The permuted view is in channels_last format, for which torch has its fastest kernel.
    resized = F.interpolate(
        pixels.permute(2, 0, 1)[None], (height, width), mode="bilinear", align_corners=False, antialias=True
    )
    return resized[0, :3].permute(1, 2, 0).numpy()


def mirrored(image: Image) -> Image:
    """(H, W, 3), its left and right exchanged; by torch, which takes a sixteenth of numpy's time for it."""
    return _tensor(image).flip(1).numpy()


def _tensor(image: Image) -> torch.Tensor:
    with warnings.catch_warnings():
        # torch cannot keep a tensor from being written to; nobody writes to this one.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(image)


def describe(method: Method) -> str:
    """How it is done, in words; equal texts mean equal pixels."""
    return "bilinear, antialiased" + ("" if method == "exact" else f" by torch {torch.__version__}")
