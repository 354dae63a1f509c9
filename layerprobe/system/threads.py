"""Several layers or folds at once: a thread each, which computes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from threadpoolctl import threadpool_limits

from layerprobe.system.numerics import full_precision

Item = TypeVar("Item")


class OfEach(Protocol):
    """Calls a function on each of some items; the results have the items' order."""

    def __call__(self, function: Callable[[Item], Any], items: Iterable[Item]) -> list[Any]:
        """The results."""


def in_turn(function: Callable[[Item], Any], items: Iterable[Item]) -> list[Any]:
    """One after the other, in this thread."""
    return [function(item) for item in items]


@contextmanager
def in_threads() -> Iterator[OfEach]:
    """As many threads as torch may use; torch, numpy and scipy use one in each, as long as the block lasts.

    Ranking consists of many small products: two layers at once take half the time, two threads for each product more.
    What is called so must not call this again, as every thread would wait for another.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Held here: each search sets and restores it for the whole process, and those of two threads would interleave.
        # Threads of BLAS would spin on the cores that these need.
        alone = threadpool_limits(1, user_api="blas")
        with full_precision(torch.device("cpu")), alone, ThreadPoolExecutor(threads) as pool:
            yield lambda function, items: list(pool.map(function, items))
    finally:
        torch.set_num_threads(threads)
