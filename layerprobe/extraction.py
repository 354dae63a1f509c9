"""Images -> batches of pooled features per layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.keys import LayerKey
from layerprobe.numerics import full_precision
from layerprobe.taps import Tap, tapped


def extract(
    module: nn.Module,
    taps: Sequence[Tap],
    pixels: Iterable[Tensor],
    normalise: Callable[[Tensor], Tensor],
    *,
    device: torch.device,
) -> Iterator[dict[LayerKey, NDArray[np.float32]]]:
    """Run batches of images through a network and yield the features at its taps.

    Between two batches the module is as it was: no hook, its own modes. Float32 is computed as float32:
    no TF32, no autocast.

    Args:
        module: on `device`, in channels_last format.
        taps: of this module.
        pixels: uint8 (B, H, W, 3) batches, in the order of the split; the last may be smaller.
        normalise: uint8 (B, H, W, 3) on `device` -> float32 (B, 3, H, W) in channels_last format.
        device: where the network runs; pixels travel there as bytes.

    Yields:
        For each batch {tap.key: float32 (B, dim)}.
    """
    for batch in pixels:
        with full_precision(device), tapped(module, taps) as features_of:
            features = features_of(normalise(batch.to(device)))
            arrays = {key: values.cpu().numpy() for key, values in features.items()}
        yield arrays
