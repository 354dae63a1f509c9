from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerprobe.system.errors import EnvironmentFault
from layerprobe.system.progress import Silent
from layerprobe.workflow.study.study import StudyRequest, run_study
from layerprobe.workflow.study.study_file import load_study
from layerprobe.workflow.study.training import _Crew
from tests.freed_memory import KEPT, takes_the_settings, untuned

PROGRAM = """
import multiprocessing
from layerprobe.system.computing import start_method
from layerprobe.system.errors import DataError
from layerprobe.workflow.study.training import _serve

class Training:
    def request(self, device):
        raise DataError(str(keeps()))

if __name__ == "__main__":
    context = multiprocessing.get_context(start_method())
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(Training(), "cpu", theirs))
    process.start()
    print(ours.recv().message)
    process.join()
"""


@takes_the_settings
def test_the_process_of_a_training_keeps_freed_memory(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(KEPT + PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py")]
    environment = untuned() | {"PYTHONPATH": str(Path(__file__).parents[3])}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.strip() == "True"


def free_place(devices: tuple[str, ...], taken: list[int]) -> int:
    nobody: Any = None
    crew = _Crew([], StudyRequest(nobody, Path(), devices=devices), lambda training: False, Silent(), nobody)
    crew.running = {number: (nobody, nobody, place) for number, place in enumerate(taken)}  # type: ignore[misc] # connections
    return crew._free_place()


@pytest.mark.parametrize(
    ("taken", "place"), [([], 0), ([0], 1), ([0, 1], 2), ([0, 2], 1), ([0, 1, 2], 0), ([0, 1, 2, 0], 1), ([1, 1, 2], 0)]
)
def test_a_training_takes_the_first_device_that_has_the_fewest(taken: list[int], place: int) -> None:
    assert free_place(("cuda:0", "cuda:1", "cuda:2"), taken) == place


def test_a_device_that_is_listed_twice_takes_two_trainings() -> None:
    assert free_place(("cpu", "cpu"), [0]) == 1


@pytest.mark.parametrize(("jobs", "at_once"), [(None, 2), (1, 1), (8, 8)])
def test_by_default_each_device_has_a_training(jobs: int | None, at_once: int) -> None:
    study: Any = None
    assert StudyRequest(study, Path(), jobs, ("cuda:0", "cuda:1")).at_once == at_once


def test_a_device_that_is_not_there_is_told_before_the_trainings(file_of: Callable[..., str], tmp_path: Path) -> None:
    request = StudyRequest(load_study(file_of()), tmp_path / "cache", devices=("cpu", "cuda:99"))
    with pytest.raises(EnvironmentFault, match="^no device cuda:99: "):
        run_study(request, Silent())
    assert not (tmp_path / "cache").exists()
