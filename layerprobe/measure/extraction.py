"""Images -> batches of pooled features per layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.system.numerics import full_precision
from layerprobe.taps import Tap, tapped
from layerprobe.values.keys import LayerKey

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def extract(
    module: nn.Module,
    taps: Sequence[Tap],
    batches: Iterable[Tensor],
    normalise: Callable[[Tensor], Tensor] | None = None,
    *,
    device: torch.device,
) -> Iterator[dict[LayerKey, NDArray[np.float32]]]:
    """Run batches of images through a network and yield the features at its taps.

    Between two batches the module is as it was: no hook, its own modes. Float32 is computed as float32:
    no TF32, no autocast.

    Args:
        normalise: a batch on `device`, such as bytes (B, H, W, 3) -> float32 (B, 3, H, W); None where the batches are
            already the network's input.

    Yields:
        For each batch {tap.key: float32 (B, dim)}.
    """
    for batch in batches:
        with full_precision(device), tapped(module, taps) as features_of:
            placed = batch.to(device)
            features = features_of(normalise(placed) if normalise else placed)
        # After the block, which is left while a GPU still computes.
        yield on_host(features)


def on_host(features: Mapping[LayerKey, Tensor]) -> dict[LayerKey, NDArray[np.float32]]:
    """Features as arrays, by one copy from each device: each copy would wait for it."""
    arrays = {key: each.numpy() for key, each in features.items() if each.device.type == "cpu"}
    for device in {each.device for each in features.values() if each.device.type != "cpu"}:
        arrays |= copied_at_once({key: each for key, each in features.items() if each.device == device})
    return {key: arrays[key] for key in features}


def copied_at_once(features: Mapping[LayerKey, Tensor]) -> dict[LayerKey, NDArray[np.float32]]:
    """Features of one device as arrays of their own, so that each can be freed."""
    import torch

    parts = torch.cat([each.flatten() for each in features.values()]).cpu()
    own = parts.split([each.numel() for each in features.values()])
    return {key: part.view(each.shape).clone().numpy() for (key, each), part in zip(features.items(), own, strict=True)}
