"""Processes that one launch has started, as torchrun starts them, at the cost of forks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined] # torch's stub lacks it

from tests.processes import MAIN, run_python

__all__ = ["MAIN", "run_launch"]


def run_launch(
    program: str, *words: str, size: int, folder: Path, environment: Mapping[str, str] | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """What each process of a launch has printed, by rank; this process keeps the store.

    Unlike torchrun it does not end the others when one has ended.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = os.environ | {
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "OMP_NUM_THREADS": "1",
        **(environment or {}),
    }

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        return run_python(program, *words, folder=folder, environment=own)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
