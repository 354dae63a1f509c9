"""Float32 arithmetic in full precision, whatever the caller allows torch, on a device that computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from layerprobe.system.errors import DataError

if TYPE_CHECKING:
    import torch
    from torch import nn

_SUMS_OF_16_BITS = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)


def require_default_device() -> None:
    """Refuse torch's default device `meta`, whose tensors have shapes and no numbers."""
    import torch

    if torch.get_default_device().type == "meta":
        refusal = "torch's default device is meta, whose tensors hold no numbers"
        raise DataError(refusal, fix='Call torch.set_default_device("cpu") first')


def require_numbers(module: nn.Module, *, name: str = "the model") -> None:
    """Refuse a module on the device `meta`, and this device as the default."""
    require_default_device()
    for tensor_name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device.type == "meta":
            refusal = f"{tensor_name} of {name} is on the device meta, and holds no numbers"
            raise DataError(refusal, fix="Build it on the CPU, and load its weights")


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Disable TF32, bfloat16 and autocast in float32 products and convolutions, and sums of 16 bits, inside the block.

    GPUs convolve float32 in TF32 by default; its 10-bit mantissa would change features. The settings are global to the
    process: no other thread may change them meanwhile.
    """
    import torch

    reduced = {name: _allowed(name) for name in _SUMS_OF_16_BITS}
    switches = (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined] # made at import
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        for name in reduced:
            setattr(torch.backends.cuda.matmul, name, False)
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision
        for name, allowed in reduced.items():
            setattr(torch.backends.cuda.matmul, name, allowed)


def _allowed(name: str) -> bool | tuple[bool, bool]:
    """A setting of cuBLAS, with that of splits of the sum where torch has one."""
    import torch

    value: bool = getattr(torch.backends.cuda.matmul, name)
    split: bool | None = getattr(torch.backends.cuda.matmul, f"{name}_split_k", None)
    return value if split is None else (value, split)
