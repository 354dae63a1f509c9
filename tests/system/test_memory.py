from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from layerprobe.system import memory
from layerprobe.system.errors import EnvironmentFault
from layerprobe.system.memory import (
    free_memory,
    is_out_of_memory,
    keep_freed_memory,
    memory_faults_told,
    require_memory,
)
from tests.freed_memory import KEPT, takes_the_settings, untuned


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


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[tuple[int, int]]]:
    """A glibc whose mallopt returns this number; the calls of it are in the list."""
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.31")

    def returning(number: int) -> list[tuple[int, int]]:
        calls: list[tuple[int, int]] = []

        def mallopt(name: int, value: int) -> int:
            calls.append((name, value))
            return number

        monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
        return calls

    return returning


Settings = Callable[[int], list[tuple[int, int]]]


def test_both_thresholds_are_raised(settings: Settings) -> None:
    calls = settings(1)
    assert keep_freed_memory() == "freed memory is kept for the next tensors"
    assert calls == [(-3, 2**26), (-1, 2**31 - 1)]  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h


@pytest.mark.parametrize(
    ("name", "value"),
    [("GLIBC_TUNABLES", "glibc.cpu.x=1:glibc.malloc.trim_threshold=1"), ("MALLOC_MMAP_THRESHOLD_", "131072")],
)
def test_what_the_user_has_tuned_stays(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    calls = settings(1)
    monkeypatch.setenv(name, value)
    assert keep_freed_memory() == f"left to {name}"
    assert not calls


def test_tunables_of_other_parts_of_glibc_do_not_count(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = settings(1)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
    keep_freed_memory()
    assert calls


@pytest.mark.parametrize("fault", [ValueError("unrecognized configuration name"), OSError(22, "Invalid argument")])
def test_without_glibc_nothing_is_set(settings: Settings, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def confstr(_: str) -> str:
        raise fault

    calls = settings(1)
    monkeypatch.setattr(os, "confstr", confstr)
    assert keep_freed_memory() == "freed memory goes back to the system: there is no glibc"
    assert not calls


def test_a_glibc_that_refuses_one_is_not_asked_for_the_other(settings: Settings) -> None:
    calls = settings(0)
    assert keep_freed_memory() == "freed memory goes back to the system: glibc 2.31 does not take the settings"
    assert len(calls) == 1


def kept(program: str, **environment: str) -> bool:
    """Whether a process keeps what is freed, after it has run the program."""
    result = subprocess.run(
        [sys.executable, "-c", program + KEPT + "print(keeps())"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=untuned() | environment,
    )
    return result.stdout.splitlines()[-1] == "True"


COMMAND = """
import sys
from layerprobe.cli import main
sys.argv = ["layerprobe", "--version"]
try:
    main()
except SystemExit:
    pass
"""


@takes_the_settings
def test_the_command_line_keeps_what_is_freed() -> None:
    assert kept(COMMAND)
    assert not kept(COMMAND, GLIBC_TUNABLES="glibc.malloc.arena_test=8")  # glibc's default


@takes_the_settings
def test_an_import_keeps_nothing() -> None:
    assert not kept("import layerprobe; layerprobe.probe; import layerprobe.cli\n")


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
