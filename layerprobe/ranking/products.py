"""The machine's fastest ways to multiply matrices, each with a bound of its rounding."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

# A product that takes about a millisecond and is large enough to reach its speed.
_TIMED_ROWS, _TIMED_NUMBERS = 256, 512
# The share of a product's time at which another is worth more memory.
_HARDLY_FASTER = 0.9
# Similarities and marks of 0.6 GB each; smaller tiles launch more operations.
_TILE_OF_A_GPU = 12_288
# From this capability on a GPU multiplies both types of 16 bits fast.
_FAST_HALVES = (8, 0)
# A bias is at most twice the dimensions, and float16 at most 65,504.
_DIM_OF_FLOAT16 = 2**14
# Numbers in a row of a result.
_ALIGNED = 8
# Fewer pairs are copied and multiplied in less time than a sparse matrix is made.
_FEW_PAIRS = 128
# Pairs that are copied and multiplied together, which fit into the CPU's caches.
_PAIRS_TOGETHER = 512


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
        multiply: (A, P), (B, P) -> (A, B); in float32 a third argument is memory (A, B) that it may use.
    """

    name: str
    dtype: torch.dtype
    result: torch.dtype
    unit: float
    parts: int
    tile: int
    multiply: Callable[..., Tensor]


def float32(device: torch.device) -> Product:
    """float32, on a CPU by MKL or oneDNN, whichever is faster: MKL has no AVX-512 for other processors than Intel's."""
    if device.type != "cpu":
        return Product("float32", torch.float32, torch.float32, 2.0**-23, 1, _TILE_OF_A_GPU, _mm)
    return _fastest_float32()


def half_precision(device: torch.device, dim: int) -> Product | None:
    """16 bits with float32 sums, where that is faster than float32: float16 on a GPU, as it has more digits.

    Args:
        dim: numbers of a vector, whose largest is about 1.
    """
    if device.type == "cpu":
        return _fast_bfloat16()
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _FAST_HALVES:
        return None
    # AMD's GPUs may take the smallest numbers of float16 for 0.
    dtype = torch.float16 if dim < _DIM_OF_FLOAT16 and torch.version.hip is None else torch.bfloat16
    return Product(str(dtype).removeprefix("torch."), dtype, torch.float32, 2.0**-22, 3, _TILE_OF_A_GPU, _mm_wide)


@cache
def seconds_per_number(product: Product) -> float:
    """CPU time of one number of one pair, measured: flags do not tell what an environment variable has switched off."""
    factor = torch.ones(_TIMED_ROWS, _TIMED_NUMBERS, dtype=product.dtype)
    seconds = []
    for _ in range(4):  # the first sets things up
        started = time.perf_counter()
        product.multiply(factor, factor)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:]) / (_TIMED_ROWS**2 * _TIMED_NUMBERS)


@cache
def _fastest_float32() -> Product:
    mkl = Product("float32", torch.float32, torch.float32, 2.0**-24, 1, 1024, _mm)
    if not _one_dnn_works():
        return mkl
    one_dnn = Product("float32 oneDNN", torch.float32, torch.float32, 2.0**-24, 1, 768, _one_dnn)
    # It multiplies into new memory alone: no gain where it is hardly faster.
    return one_dnn if seconds_per_number(one_dnn) < _HARDLY_FASTER * seconds_per_number(mkl) else mkl


@cache
def _fast_bfloat16() -> Product | None:
    if not _cpu_sums_bfloat16_in_float32():
        return None
    product = Product("bfloat16", torch.bfloat16, torch.bfloat16, 2.0**-23, 3, 1024, _mm)
    return product if seconds_per_number(product) < seconds_per_number(_fastest_float32()) else None


def _mm(queries: Tensor, gallery: Tensor, memory: Tensor | None = None) -> Tensor:
    return torch.mm(queries, gallery.T, out=memory)


def _mm_wide(queries: Tensor, gallery: Tensor) -> Tensor:
    from torch.nn.functional import pad

    columns = len(gallery)  # rows of the result that are not aligned are twice as slow
    return torch.mm(queries, pad(gallery, (0, 0, 0, -columns % _ALIGNED)).T, out_dtype=torch.float32)[:, :columns]


def _one_dnn(queries: Tensor, gallery: Tensor, _memory: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(queries, gallery, None, "none", [], "")
    return product


@cache
def _one_dnn_works() -> bool:
    """Whether the private operator exists and multiplies."""
    factor = torch.arange(64.0 * 64).reshape(64, 64) / 4096
    try:
        product = _one_dnn(factor, factor)
    except (AttributeError, RuntimeError):
        return False
    return product.shape == (64, 64) and bool((product - factor @ factor.T).abs().max() < 1e-4)


@cache
def _cpu_sums_bfloat16_in_float32() -> bool:
    """Whether the processor has bfloat16 instructions, and torch's products with them sum in float32."""
    # Private, and absent where torch was built for another processor.
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if not any(getattr(torch.cpu, test, bool)() for test in tests):
        return False
    ones = torch.ones(64, 4096, dtype=torch.bfloat16)
    return bool((_mm(ones, ones) == 4096).all())  # a sum in bfloat16 would stop at 256


def pair_products(queries: Tensor, gallery: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Products of some rows of two matrices.

    Args:
        queries: (A, D).
        gallery: (B, D).
        rows: (P,) int64, rows of the queries, ascending.
        columns: (P,) int64, rows of the gallery.

    Returns:
        (P,) of the matrices' type, summed in any order.
    """
    if queries.device.type != "cpu":
        return (queries[rows] * gallery[columns]).sum(1)
    if len(rows) < _FEW_PAIRS or not _sampled_products_work():
        parts = zip(rows.split(_PAIRS_TOGETHER), columns.split(_PAIRS_TOGETHER), strict=True)
        return torch.cat([(queries[query_rows] * gallery[gallery_rows]).sum(1) for query_rows, gallery_rows in parts])
    return _sample_products(queries, gallery, rows, columns)


def _sample_products(queries: Tensor, gallery: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """By one call that copies no row: several times as fast."""
    ends = torch.searchsorted(rows, torch.arange(len(queries) + 1))
    places = torch.sparse_csr_tensor(
        ends, columns, queries.new_zeros(len(rows)), (len(queries), len(gallery)), check_invariants=False
    )
    products: Tensor = torch.sparse.sampled_addmm(places, queries, gallery.T, beta=0).values()
    return products


@cache
def _sampled_products_work() -> bool:
    """Whether torch has them for this processor."""
    factor = torch.arange(12.0).reshape(4, 3)
    rows, columns = torch.tensor([0, 2, 2]), torch.tensor([3, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once a process, torch says that its sparse matrices may change
        try:
            products = _sample_products(factor, factor, rows, columns)
        except (NotImplementedError, RuntimeError):
            return False
    return bool((products == (factor[rows] * factor[columns]).sum(1)).all())
