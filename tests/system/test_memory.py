from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from layerprobe.system import memory
from layerprobe.system.errors import EnvironmentFault
from layerprobe.system.memory import free_memory, is_out_of_memory, memory_faults_told, require_memory


def test_what_is_claimed_is_told_beside_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 3_100_000_000)
    with pytest.raises(EnvironmentFault, match=r"f\.npz: needs 7\.7 GB of memory, 3\.1 GB are free\. Free memory"):
        require_memory(7_700_000_000, "f.npz")
    require_memory(3_100_000_000, "f.npz")


def test_memory_is_free_on_this_machine() -> None:
    assert 0 < free_memory() < 2**50


def test_a_limit_of_the_process_counts() -> None:
    program = (
        "import resource; from layerprobe.system.memory import free_memory;"
        "resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9)); assert 0 < free_memory() < 10**9"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("controllers", "names"),
    [("", ("memory.max", "memory.current")), ("cpu,memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"))],
)
def test_a_control_group_above_limits_and_its_cached_files_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: str, names: tuple[str, str]
) -> None:
    # the job may take 1000 bytes, of which 700 are taken, 200 of these by files that are cached; the task has no limit
    job = tmp_path / ("memory" if controllers else "") / "job"
    (job / "task").mkdir(parents=True)
    for folder, limit in ((job, "1000"), (job / "task", "max")):
        for name, text in zip(
            (*names, "memory.stat"), (limit, "700", "inactive_file 150\nactive_file 50\n"), strict=True
        ):
            (folder / name).write_text(text)
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert list(memory._of_groups(controllers, "/job/task")) == [500]
    assert list(memory._of_groups("pids", "/job/task")) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to ..."
        ),
        OSError("Can't synchronously read data (memory allocation failed for raw data chunk)"),
    ],
)
def test_every_librarys_word_for_it_is_one_fault_with_the_file(error: Exception) -> None:
    with (
        pytest.raises(EnvironmentFault, match=r"a\.h5: out of memory\. Free memory") as told,
        memory_faults_told("a.h5"),
    ):
        raise error
    assert told.value.exit_code == 5


def test_any_other_error_stays_as_it_is() -> None:
    assert not is_out_of_memory(ValueError("out of memory"))
    with pytest.raises(RuntimeError, match="shape"), memory_faults_told("a.h5"):
        raise RuntimeError("shape")
