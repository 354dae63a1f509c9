"""The machine's fastest ways to multiply matrices, each with a bound of its rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Product:
    """One way to multiply (A, P) by (B, P) transposed.

    Args:
        name: as a benchmark prints it.
        dtype: the factors are rounded to it.
        result: sums in float32 are rounded to it once.
        unit: relative error of one step of that sum.
        parts: how many numbers of `dtype` a bias is split into, to have more digits than the products.
        tile: rows and columns of a block that suit the caches.
        multiply: (A, P), (B, P) -> (A, B).
    """

    name: str
    dtype: torch.dtype
    result: torch.dtype
    unit: float
    parts: int
    tile: int
    multiply: Callable[[Tensor, Tensor], Tensor]


def float32(device: torch.device) -> Product:
    """float32, on a CPU by oneDNN where torch has it: MKL uses at most AVX2 on other processors than Intel's."""
    import torch

    if device.type != "cpu":
        return Product("float32", torch.float32, torch.float32, 2.0**-23, 1, 8192, _mm)
    if _one_dnn_works():
        return Product("float32 oneDNN", torch.float32, torch.float32, 2.0**-24, 1, 768, _one_dnn)
    return Product("float32", torch.float32, torch.float32, 2.0**-24, 1, 1024, _mm)


def bfloat16(device: torch.device) -> Product | None:
    """bfloat16 with float32 sums where the hardware has it: elsewhere it is slower than float32."""
    import torch

    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return Product("bfloat16", torch.bfloat16, torch.float32, 2.0**-22, 3, 8192, _mm_wide)
    if device.type == "cpu" and _cpu_sums_bfloat16_in_float32():
        return Product("bfloat16", torch.bfloat16, torch.bfloat16, 2.0**-23, 3, 1024, _mm)
    return None


def _mm(first: Tensor, second: Tensor) -> Tensor:
    return first @ second.T


def _mm_wide(first: Tensor, second: Tensor) -> Tensor:
    import torch

    return torch.mm(first, second.T, out_dtype=torch.float32)


def _one_dnn(first: Tensor, second: Tensor) -> Tensor:
    import torch

    product: Tensor = torch.ops.mkldnn._linear_pointwise(first, second, None, "none", [], "")
    return product


@cache
def _one_dnn_works() -> bool:
    """Whether the private operator exists and multiplies."""
    import torch

    factor = torch.arange(64.0 * 64).reshape(64, 64) / 4096
    try:
        found = _one_dnn(factor, factor)
    except (AttributeError, RuntimeError):
        return False
    return found.shape == (64, 64) and bool((found - factor @ factor.T).abs().max() < 1e-4)


@cache
def _cpu_sums_bfloat16_in_float32() -> bool:
    """Whether the processor has bfloat16 instructions, and torch's products with them sum in float32."""
    import torch

    # Private, and absent where torch was built for another processor.
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if not any(getattr(torch.cpu, test, bool)() for test in tests):
        return False
    ones = torch.ones(64, 4096, dtype=torch.bfloat16)
    return bool((_mm(ones, ones) == 4096).all())  # a sum in bfloat16 would stop at 256
