"""Layers or folds in parallel: a thread for each, with one core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

from layerprobe.system.numerics import full_precision

# Calls a function on each item; the results are in the items' order.
OfEach = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]


@contextmanager
def in_threads() -> Iterator[OfEach]:
    """As many threads as torch may use, with one core each for torch, numpy and scipy, inside the block.

    Ranking consists of many small products: two layers at once halve the time, two threads for each product lengthen
    it. Not reentrant: the threads would wait for each other.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Each search sets and restores the precision of the whole process: in two threads they would interleave.
        # BLAS's own threads would spin on the cores that these threads need.
        alone = threadpool_limits(1, user_api="blas")
        with full_precision(torch.device("cpu")), alone, ThreadPoolExecutor(threads) as pool:
            yield lambda function, items: list(pool.map(function, items))
    finally:
        torch.set_num_threads(threads)
