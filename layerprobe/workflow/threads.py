"""Several layers at once: a thread each, which computes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from layerprobe.numerics import full_precision

Item = TypeVar("Item")


class InThreads(Protocol):
    """Calls a function on items, several at once; the results have the items' order."""

    def __call__(self, function: Callable[[Item], Any], items: Iterable[Item]) -> list[Any]:
        """The results."""


@contextmanager
def in_threads() -> Iterator[InThreads]:
    """As many threads as torch may use; torch itself uses one in each, as long as the block lasts.

    Ranking consists of many small products: two layers at once take half the time, two threads for each product more.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Held here: each search sets and restores it for the whole process, and those of two threads would interleave.
        with full_precision(torch.device("cpu")), ThreadPoolExecutor(threads) as pool:
            yield lambda function, items: list(pool.map(function, items))
    finally:
        torch.set_num_threads(threads)
