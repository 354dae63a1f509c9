"""Tensors to a device and back, without waiting for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    import torch

    # Copied from memory that is not pinned, the host would wait for all that the GPU has to do. Pinned memory of the
    # caller's is copied too, as a loader may fill it again before the GPU has read it.
    pinned = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
    return pinned.to(device, non_blocking=True)


def fetch(tensor: Tensor) -> Callable[[], Tensor]:
    """A function that waits for a tensor in main memory; a GPU begins to copy it at once."""
    if tensor.device.type != "cuda":
        return tensor.cpu
    import torch

    copy, copied = tensor.to("cpu", non_blocking=True), torch.cuda.Event()
    copied.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Tensor:
        copied.synchronize()
        return copy

    return wait
