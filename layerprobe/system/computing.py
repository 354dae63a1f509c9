"""Float32 in full precision, threads for layers and folds, processes that read images."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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

    matmul, reduced = torch.backends.cuda.matmul, {}
    for name in _SUMS_OF_16_BITS:
        allowed, split = getattr(matmul, name), getattr(matmul, f"{name}_split_k", None)
        # With the setting of splits of the sum, where torch has one.
        reduced[name] = allowed if split is None else (allowed, split)
    switches = (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined] # made at import
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        for name in reduced:
            setattr(matmul, name, False)
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision
        for name, allowed in reduced.items():
            setattr(matmul, name, allowed)


# Calls a function on each item; the results are in the items' order.
OfEach = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]


@contextmanager
def in_threads() -> Iterator[OfEach]:
    """As many threads as torch may use, with one core each for torch, numpy and scipy, inside the block.

    Ranking consists of many small products: two layers at once halve the time, two threads for each product lengthen
    it. Not reentrant: the threads would wait for each other.
    """
    import torch
    from threadpoolctl import threadpool_limits

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


def with_float64(device: torch.device) -> torch.device:
    """The device, or the CPU in place of one that has no float64, as Apple's (mps)."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


def local_rank() -> int | None:
    """This process's number, from 0, among those that torchrun has started on this machine; None without torchrun."""
    rank = os.environ.get("LOCAL_RANK")
    return None if rank is None else int(rank)


def usable_cores() -> int:
    """The cores that this process may use, at least 1; those that torchrun starts on this machine share them."""
    return max(1, _cores() // processes_here())


def processes_here() -> int:
    """How many processes torchrun has started on this machine; 1 without torchrun."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def host() -> tuple[int, int]:
    """This host's number, from 0, among those of torchrun, and how many there are; (0, 1) without torchrun."""
    return int(os.environ.get("GROUP_RANK", "0")), int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def default_workers() -> int:
    """The number of processes that hash and decode where the user states none: one a core, at most 8.

    The first process that torchrun has started on a host has the cores of the others, which wait for it.
    """
    return min(8, _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_method() -> str:
    """The way to start a process, as `multiprocessing` calls it."""
    # A plain fork copies the locks of other libraries' threads, perhaps locked; Python 3.12 warns of it.
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def serve() -> None:
    """In a process just started: ignore Ctrl-C, and end when the main process has ended, in whatever way."""
    # A terminal's Ctrl-C reaches every process: the main one finishes its step, then ends us. In haste it does so by
    # SIGTERM, which therefore must not be ignored.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_main, daemon=True).start()


def _end_with_main() -> None:
    # The parent by process id is the fork server, which lives as long as we do. join waits for the end of a pipe whose
    # other end only the main process holds.
    main = multiprocessing.parent_process()
    if main is not None:
        main.join()
        os._exit(1)
