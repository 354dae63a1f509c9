from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.freed_memory import KEPT, takes_the_settings, untuned

# Each holds one process that waits for work, and says its number.
LOADING = """
from layerprobe.data import glyphs
from layerprobe.data.loading import plain_batches
split = glyphs.load(train_classes=2, test_classes=2, images_per_class=9, image_size=8).splits["train"]
batches = plain_batches(split, batch_size=1, workers=1)
"""
CHECKING = """
from pathlib import Path
from layerprobe.data.check import examine
from layerprobe.data.image_files import Files
from layerprobe.data.splits import Split
import numpy as np
files = Files(Path("."), tuple(f"{i}.png" for i in range(50)))
batches = examine(Split("train", np.zeros(50, np.int64), files.names, files), workers=1)
"""
WAITING = """
import multiprocessing, time
next(batches)
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
time.sleep(60)
"""


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="is about the fork server")
@pytest.mark.parametrize("work", [LOADING, CHECKING], ids=["loading", "checking"])
def test_a_killed_process_leaves_none_behind(work: str) -> None:
    program = [sys.executable, "-c", work + WAITING]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as killed:
        assert killed.stdout is not None
        (worker,) = map(int, killed.stdout.readline().split())
        killed.kill()
        try:
            # They hold its stdout too: this returns when all of them are gone.
            killed.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.kill(worker, signal.SIGKILL)
            raise


@takes_the_settings
def test_a_process_that_is_started_keeps_no_freed_memory(tmp_path: Path) -> None:
    program = """
import multiprocessing
from layerprobe.data.processes import start_method
from layerprobe.system.memory import keep_freed_memory
if __name__ == "__main__":
    keep_freed_memory()
    with multiprocessing.get_context(start_method()).Pool(1) as pool:
        print(keeps(), pool.apply(keeps))
"""
    (tmp_path / "program.py").write_text(KEPT + program)
    command = [sys.executable, str(tmp_path / "program.py")]
    environment = untuned() | {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.split() == ["True", "False"]
