"""A launch of real processes: calls, results, errors, and who prints what."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.system.errors import RecipeError
from layerprobe.system.launch import Launch, started
from tests.launches import LEAD, run_launch

TORCHRUN = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "4", "RANK": "2"}
# Signs of life are missed soon.
QUICK = """
from layerprobe.system import launch
launch._BEAT, launch._LOST = 0.1, 1.0
"""
# Stands still until the first process has ended.
STOP = """
def stop(launch, first):
    if os.fork() == 0:
        try:
            while True:
                os.kill(first, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    add(launch, 1)
"""
BEGIN = f"""{LEAD}
import torch, torch.distributed as dist
from layerprobe.system.errors import DataError

def add(launch, number):
    total = torch.tensor(float(number + launch.rank))
    dist.all_reduce(total, group=launch.group)
    return total.item()

def add_together(launch, number):
    launch.call(add, number)
    return add(launch, number)

def fail(launch, rank):
    if launch.rank == rank:
        raise DataError("truncated", file="a.png", fix="Restore it")
    add(launch, 1)

def vanish(launch, rank):
    if launch.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    add(launch, 1)
"""


def test_a_process_that_torchrun_has_not_started_is_alone() -> None:
    launch = started({"WORLD_SIZE": "4", "RANK": "2"})
    assert (launch.rank, launch.size, launch.group, launch.is_shared) == (0, 1, None, False)


def test_the_launch_is_what_torchrun_says() -> None:
    launch = started(TORCHRUN | {"LAYERPROBE_GROUP_TIMEOUT": "60"})
    assert (launch.rank, launch.size, launch.timeout) == (2, 4, 60)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_a_timeout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=f"LAYERPROBE_GROUP_TIMEOUT={text}: must be a number of seconds"):
        started(TORCHRUN | {"LAYERPROBE_GROUP_TIMEOUT": text, "RANK": "0"})
    with pytest.raises(SystemExit, match="^2$"):  # in silence
        started(TORCHRUN | {"LAYERPROBE_GROUP_TIMEOUT": text})


def test_a_call_of_a_process_alone_calls_nothing() -> None:
    Launch().call(pytest.fail, "called")


def test_all_processes_do_what_the_first_calls(tmp_path: Path) -> None:
    program = f"{BEGIN}\nmain(lambda launch: [add_together(launch, number) for number in (1, 10)])"
    ended = run_launch(program, size=3, folder=tmp_path)
    assert ended[0].stdout == f"{[1 + 2 + 3, 10 + 11 + 12]}\n".replace(",", ".0,").replace("]", ".0]")
    assert [(process.returncode, process.stderr) for process in ended] == [(0, "")] * 3
    assert not ended[1].stdout + ended[2].stdout


@pytest.mark.parametrize("before", ["None", "add_together(launch, 1)"])
def test_the_first_process_alone_tells_of_anothers_error(before: str, tmp_path: Path) -> None:
    lead = f"({before}, launch.call(fail, 1), fail(launch, 1))"
    ended = run_launch(f"{BEGIN}\nmain(lambda launch: {lead})", size=3, folder=tmp_path)
    assert ended[0].stdout.startswith("a.png: rank 1 on ")
    assert ended[0].stdout.endswith(": truncated. Restore it.\n")
    assert [process.returncode for process in ended] == [3] * 3
    assert not ended[1].stdout + ended[2].stdout


def test_an_error_of_the_first_process_ends_the_others_in_silence(tmp_path: Path) -> None:
    lead = "(launch.call(fail, 0), fail(launch, 0))"
    ended = run_launch(f"{BEGIN}\nmain(lambda launch: {lead})", size=2, folder=tmp_path)
    assert [process.returncode for process in ended] == [3] * 2
    assert [process.stdout for process in ended] == ["a.png: truncated. Restore it.\n", ""]


def test_the_first_process_tells_of_one_that_was_killed(tmp_path: Path) -> None:
    lead = "(add_together(launch, 1), launch.call(vanish, 1), vanish(launch, 1))"
    ended = run_launch(f"{BEGIN}{QUICK}\nmain(lambda launch: {lead})", size=3, folder=tmp_path)
    assert ended[0].stdout.startswith("rank 1 on ")
    assert "ended or does not answer. Run the same command again" in ended[0].stdout
    assert [process.returncode for process in ended] == [5, -9, 5]
    assert not ended[2].stdout


def test_a_process_that_stands_still_is_told_of_after_the_timeout(tmp_path: Path) -> None:
    program = f"{BEGIN}{QUICK}{STOP}\nmain(lambda launch: (launch.call(stop, os.getpid()), add(launch, 1)))"
    ended = run_launch(program, size=2, folder=tmp_path, environment={"LAYERPROBE_GROUP_TIMEOUT": "3"})
    assert ended[0].returncode == 5
    assert ended[0].stdout.startswith("rank 1 on ")
    assert "ended or does not answer" in ended[0].stdout
