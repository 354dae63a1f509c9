"""Processes that one launch has started, as torchrun starts them, at the cost of forks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined] # torch's stub lacks it

from tests.processes import MAIN, run_python

__all__ = ["LEAD", "MAIN", "run_launch"]

# `main(lead)`: the first process runs `lead(launch)`, the others serve, as `cli.main` does.
LEAD = """
import os, signal, sys, time
from layerprobe.system.errors import Bug, LayerprobeError
from layerprobe.system.launch import started

def main(lead):
    sys.modules["__main__"].__dict__.update(globals())
    launch, code = started(os.environ), 0
    launch.begin(lambda error: print(error, flush=True))
    try:
        if launch.rank:
            launch.serve()
        print(lead(launch), flush=True)
    except (LayerprobeError, RuntimeError) as error:
        fault = launch.cause(error) or (error if isinstance(error, LayerprobeError) else Bug(repr(error)))
        if launch.rank:
            launch.wait_for_end(None if launch.lost(error) else fault)
        print(fault, flush=True)
        code = fault.exit_code
    launch.end(code)
    sys.exit(code)
"""


def run_launch(
    program: str,
    *words: str,
    size: int,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    hosts: int = 1,
) -> list[subprocess.CompletedProcess[str]]:
    """What each process of a launch has printed, by rank; this process keeps the store.

    Unlike torchrun it does not end the others when one has ended.

    Args:
        hosts: that the processes are said to be on, equally many on each.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = os.environ | {
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size // hosts),
        "GROUP_WORLD_SIZE": str(hosts),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "OMP_NUM_THREADS": "1",
        **(environment or {}),
    }

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        host, local_rank = divmod(rank, size // hosts)
        own = shared | {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "GROUP_RANK": str(host)}
        return run_python(program, *words, folder=folder, environment=own)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
