"""Float32 that is computed as float32, whatever faster way the caller has allowed torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No TF32 and no bfloat16 in float32 products and convolutions, and no autocast, as long as the block lasts.

    GPUs convolve float32 in TF32 unless told; its 10-bit mantissa would change features. The settings belong to the
    process: another thread that changes them meanwhile changes the results.
    """
    import torch

    reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    switches = (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined] # made at import
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced
