"""Memory: what is free, what a process keeps, and one error for all that libraries raise when they run out of it."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe.system.errors import EnvironmentFault
from layerprobe.system.wording import as_size

if TYPE_CHECKING:
    import torch

# Messages of the system, torch, oneDNN, HDF5, PIL and C++ whose exception type is a general one.
_WORDS = (
    "Cannot allocate memory", "CPUAllocator", "MemoryError", "out of memory", "could not create a primitive",
    "memory allocation failed", "unable to allocate", "bad_alloc",
)  # fmt: skip
_GROUPS = Path("/sys/fs/cgroup")
_LITTLE = 2**24  # bytes; fewer are taken without reading the system's files on free memory
FIX = "Free memory, or run it where there is more"
# Numbers of glibc's malloc.h, and bytes. Larger kept blocks are faster at 224 pixels, but a probe's peak of 2.0 GiB
# becomes 2.6 with 128 MiB and 2.9 with 320; with 64 it is 2.2. All blocks of a small network at 96 pixels are smaller.
_SETTINGS = {"M_MMAP_THRESHOLD": (-3, 2**26), "M_TRIM_THRESHOLD": (-1, 2**31 - 1)}


def free_memory() -> int:
    """Bytes that this process can still allocate, on the machine, in its control groups and by `ulimit -v`."""
    import resource  # not needed by `layerprobe --help`, which imports this module

    limits = [os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()]
    with contextlib.suppress(OSError):  # no Linux
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            limits += _of_groups(*line.split(":", 2)[1:])
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):
            pages_used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            limits.append(limit - pages_used * resource.getpagesize())
    return max(0, min(limits))


def _of_groups(controllers: str, path: str) -> Iterator[int]:
    """Free bytes in a control group and its parents, of version 2 (no controllers) or 1."""
    if "memory" not in controllers.split(",") and controllers:
        return
    root = _GROUPS / (controllers and "memory")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
    folder = root / path.lstrip("/")
    for group in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):  # not mounted here, or `max`: no limit
            limit, used = (int((group / name).read_text(encoding="ascii")) for name in names)
            facts = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
            # The page cache is freed on demand.
            yield limit - used + sum(int(facts.get(name, 0)) for name in ("inactive_file", "active_file"))
        if group == root:
            return


def keep_freed_memory() -> str:
    """Let glibc keep freed memory for the next tensors of this process, and say whether it does.

    By default it maps every block above 32 MiB afresh, and the system zeroes its pages: 30 % of the CPU time of a
    small network's forward. A process that is started afterwards does not inherit it, unless by a plain fork.
    """
    import ctypes  # not needed by those who import this module

    back = "freed memory goes back to the system"
    for name, value in os.environ.items():
        if name.startswith("MALLOC_") or (name == "GLIBC_TUNABLES" and "glibc.malloc." in value):
            return f"left to {name}"
    try:
        library = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # macOS, musl
        return f"{back}: there is no glibc"
    mallopt = ctypes.CDLL(None).mallopt
    if not all(mallopt(number, value) for number, value in _SETTINGS.values()):
        return f"{back}: {library} does not take the settings"
    return "freed memory is kept for the next tensors"


def require_memory(needed: int, file: object) -> None:
    """Check that a file's content of `needed` bytes fits into memory, before it is read."""
    if needed > _LITTLE and needed > (free := free_memory()):
        raise EnvironmentFault(f"needs {as_size(needed)} of memory, {as_size(free)} are free", file=file, fix=FIX)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of Python, numpy, torch, HDF5 or the system means out of memory."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's, of a GPU
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError | OSError | KeyError) and any(word in str(error) for word in _WORDS))
    )


@contextlib.contextmanager
def memory_faults_told(file: object = None) -> Iterator[None]:
    """Raise any out-of-memory error as an `EnvironmentFault` that names the file read."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError, KeyError) as error:
        if not is_out_of_memory(error):
            raise
        raise EnvironmentFault("out of memory", file=file, fix=FIX) from error


def peak_memory(device: torch.device) -> int:
    """Peak memory of this process in bytes; on a GPU, of torch's allocations there."""
    import resource

    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kilobytes
