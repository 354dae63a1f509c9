from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from layerprobe import recall_at_k
from layerprobe.system.computing import (
    default_workers,
    full_precision,
    require_numbers,
    usable_cores,
    with_float64,
)
from layerprobe.system.errors import DataError
from tests.freed_memory import KEPT, takes_the_settings, untuned

SWITCHES: dict[str, Any] = {
    "mkldnn": torch.backends.mkldnn.matmul,  # type: ignore[attr-defined] # made at import
    "cuda": torch.backends.cuda.matmul,
    "cudnn": torch.backends.cudnn.conv,  # type: ignore[attr-defined] # made at import
}


@pytest.mark.parametrize(("name", "fast"), [("mkldnn", "bf16"), ("cuda", "tf32"), ("cudnn", "tf32")])
def test_a_callers_faster_float32_is_off_inside_and_back_afterwards(name: str, fast: str) -> None:
    before = SWITCHES[name].fp32_precision
    SWITCHES[name].fp32_precision = fast
    try:
        with full_precision(torch.device("cpu")):
            assert SWITCHES[name].fp32_precision == "ieee"
        assert SWITCHES[name].fp32_precision == fast
    finally:
        SWITCHES[name].fp32_precision = before


@pytest.mark.parametrize(
    "name",
    [
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    ],
)
def test_sums_in_16_bits_are_off_inside_and_back_after_an_error(name: str) -> None:
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, name)
    setattr(matmul, name, True)

    def fail() -> None:
        with full_precision(torch.device("cpu")):
            assert not getattr(matmul, name)
            raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert getattr(matmul, name)
    finally:
        setattr(matmul, name, before)


def test_splits_of_a_sum_are_as_they_were() -> None:
    matmul, name = torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"
    if not hasattr(matmul, f"{name}_split_k"):
        pytest.skip("torch has no such setting")
    before = getattr(matmul, name), getattr(matmul, f"{name}_split_k")
    setattr(matmul, name, (False, False))
    try:
        with full_precision(torch.device("cpu")):
            pass
        assert not getattr(matmul, f"{name}_split_k")
    finally:
        setattr(matmul, name, before)


def test_autocast_is_off_inside() -> None:
    ones = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert (ones @ ones).dtype == torch.bfloat16
        with full_precision(torch.device("cpu")):
            assert (ones @ ones).dtype == torch.float32


def test_the_default_device_meta_is_refused_before_anything_is_computed() -> None:
    with torch.device("meta"), pytest.raises(DataError, match="default device is meta, whose tensors hold no numbers"):
        recall_at_k([[1.0], [2.0]], [0, 0], ks=[1])


def test_a_module_without_numbers_is_named() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    require_numbers(module)
    module[1].running_mean = torch.zeros(3, device="meta")
    with pytest.raises(DataError, match=r"^1\.running_mean of mine is on the device meta, and holds no numbers"):
        require_numbers(module, name="mine")


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
from layerprobe.system.computing import start_method
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


@pytest.mark.parametrize(("allowed", "processes", "cores"), [(12, None, 12), (12, "4", 3), (2, "4", 1)])
def test_the_processes_that_torchrun_starts_share_the_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, allowed: int, processes: str | None, cores: int
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(allowed)), raising=False)
    assert usable_cores() == cores
    assert default_workers() == min(8, allowed)  # the other processes wait until images are hashed and decoded


def test_where_the_system_does_not_say_which_cores_may_be_used_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores() == 5


@pytest.mark.parametrize(("device", "computes"), [("mps", "cpu"), ("cuda:1", "cuda:1"), ("cpu", "cpu")])
def test_the_cpu_takes_the_place_of_a_device_without_float64(device: str, computes: str) -> None:
    assert with_float64(torch.device(device)) == torch.device(computes)
