"""Count a tile of similarities on a GPU in one pass, by a kernel of Triton; imported only where that is installed."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.errors import TritonError

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.ranking.tiles import Thresholds

# Queries and items that one program compares, and its warps; of seven tried on an H200 the fastest.
_HEIGHT, _WIDTH, _WARPS = 32, 128, 4
# Where there is no compiler of C, or Triton does not know the GPU.
FAULTS = (TritonError, RuntimeError, OSError, subprocess.SubprocessError)


# A kernel is compiled anew for values that are multiples of 16, unless they are named here.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["queries", "items", "first_query", "first_item", "most"]
)
def _count(  # type: ignore[no-untyped-def] # noqa: PLR0913 - pointers and sizes; Triton reads annotations as code
    similarities,
    query_stride,
    item_stride,
    queries,
    items,
    labels,
    item_labels,
    first_query,
    first_item,
    low,
    high,
    closer,
    unclear,
    pairs,
    number,
    most,
    height: tl.constexpr,
    width: tl.constexpr,
):
    i = tl.program_id(0) * height + tl.arange(0, height)
    j = tl.program_id(1) * width + tl.arange(0, width)
    here, there = i < queries, j < items
    negative = here[:, None] & there[None, :]
    similarity = tl.load(similarities + i[:, None] * query_stride + j[None, :] * item_stride, mask=negative, other=0)
    query_labels = tl.load(labels + i, mask=here, other=0)
    gallery_labels = tl.load(item_labels + j, mask=there, other=0)
    negative = negative & (query_labels[:, None] != gallery_labels[None, :])
    above = negative & (similarity > tl.load(high + i, mask=here, other=0)[:, None])
    between = negative & (similarity >= tl.load(low + i, mask=here, other=0)[:, None]) & ~above
    sure, open_ = tl.sum(above.to(tl.int32), 1), tl.sum(between.to(tl.int32), 1)
    tl.atomic_add(closer + i, sure, mask=sure > 0)
    tl.atomic_add(unclear + i, open_, mask=open_ > 0)
    if (most > 0) & (tl.sum(open_, 0) > 0):
        none = tl.zeros_like(between.to(tl.int32))
        slot = tl.atomic_add(number + none, 1, mask=between)
        fits = between & (slot < most)
        tl.store(pairs + slot, (first_query + i)[:, None] + none, mask=fits)
        tl.store(pairs + most + slot, (first_item + j)[None, :] + none, mask=fits)


def count_in_one_pass(  # noqa: PLR0913 - the tile, and where its counts go
    similarities: Tensor,
    labels: Tensor,
    item_labels: Tensor,
    origin: tuple[int, int],
    thresholds: Thresholds,
    closer: Tensor,
    unclear: Tensor,
    pairs: Tensor,
    number: Tensor,
) -> None:
    """Count the items of other classes that are closer to each query of a tile than its nearest positive.

    Args:
        similarities: (A, B) float32, of any strides.
        labels: (A,) of the queries.
        item_labels: (B,).
        origin: places of the tile's first query and first item.
        thresholds: of the queries.
        closer: (A,) int32, to which the number of similarities above `high` is added.
        unclear: (A,) int32, to which the number of those between is added.
        pairs: (2, P) int32; the places of the pairs between are written there, as many as fit.
        number: () int64, to which the number of such pairs is added; unless P is 0.
    """
    queries, items = similarities.shape
    grid = triton.cdiv(queries, _HEIGHT), triton.cdiv(items, _WIDTH)
    with torch.cuda.device_of(similarities):  # where Triton launches it
        _count[grid](
            similarities,
            *similarities.stride(),
            queries,
            items,
            labels,
            item_labels,
            *origin,
            thresholds.low,
            thresholds.high,
            closer,
            unclear,
            pairs,
            number,
            pairs.shape[1],
            _HEIGHT,
            _WIDTH,
            num_warps=_WARPS,
        )
