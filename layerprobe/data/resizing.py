"""Bilinear resizing with antialiasing, by PIL or, several times faster, by torch on 8-bit tensors; and mirroring."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal

import numpy as np
import PIL.Image
from PIL.Image import Resampling

from layerprobe.data.splits import Image
from layerprobe.values.network_input import Filter

if TYPE_CHECKING:
    import torch

Method = Literal["exact", "fast"]


def resize(image: Image, height: int, width: int, method: Method) -> Image:
    """An image at another size; unchanged if it has that size already.

    Args:
        image: uint8 (H, W, 3).
        height: of the result, at least 1.
        width: of the result, at least 1.
        method: "exact" is PIL's, as in the papers' pipelines. "fast" is torch's with the same filter; it has weights of
            16 bits and rounds in other places. It differs by at most 1 grey level; in very smooth images, by 2 in one
            of 10^8 values, where both of its passes round to the other side.

    Returns:
        uint8 (height, width, 3), which may be read-only.
    """
    if image.shape[:2] == (height, width):
        return image
    if method == "exact":
        return np.asarray(PIL.Image.fromarray(image).resize((width, height), Resampling.BILINEAR))
    import torch.nn.functional as F

    # The permuted view is in channels_last format, which is the fastest in torch. Its first stride must say so, too: of
    # an image permuted before it is unsqueezed, the result would be in another format, and stacking that is slow.
    pixels = _tensor(image)[None].permute(0, 3, 1, 2)
    resized = F.interpolate(pixels, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def mirror(image: Image) -> Image:
    """(H, W, 3) with left and right exchanged, by torch, which takes a sixteenth of numpy's time."""
    return _tensor(image).flip(1).numpy()


def _tensor(image: Image) -> torch.Tensor:
    import torch

    with warnings.catch_warnings():
        # torch warns since it cannot make a tensor read-only; nobody writes to this one.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(image)


def describe(method: Method, filter: Filter = "bilinear") -> str:
    """The method and its filter in words; equal texts mean equal pixels."""
    words = filter if filter == "nearest" else f"{filter}, antialiased"
    if method == "exact":
        return words
    import torch

    return f"{words} by torch {torch.__version__}"
