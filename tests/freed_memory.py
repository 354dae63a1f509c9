"""Whether a process keeps the memory that it frees."""

from __future__ import annotations

import os
import platform

import pytest

# A block of 48 MiB, above the 32 that glibc keeps by default; what is kept stays resident.
KEPT = """
import resource
from pathlib import Path
def keeps():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    before = resident()
    b"x" * (3 * 2**24)
    return resident() - before > 2**25
"""

_LIBRARY, _VERSION = platform.libc_ver()
takes_the_settings = pytest.mark.skipif(
    _LIBRARY != "glibc" or tuple(map(int, _VERSION.split("."))) < (2, 35), reason="earlier ones refuse above 32 MiB"
)


def untuned() -> dict[str, str]:
    """The environment without settings of malloc."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
