"""Processes of Python that cost little: forks of one that has imported torch and layerprobe."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

# Runs the command whose words follow.
MAIN = "from layerprobe.__main__ import main; main()"


def run_python(
    program: str, *words: str, folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As `python -c PROGRAM WORDS` in a folder, for tests that do not ask what a process imports.

    Args:
        environment: all variables. None: those of this process.
    """
    with tempfile.TemporaryDirectory() as streams:
        out, err = Path(streams) / "out", Path(streams) / "err"
        given = dict(os.environ if environment is None else environment)
        process = multiprocessing.get_context("forkserver").Process(
            target=_run, args=(program, words, folder, given, out, err)
        )
        process.start()
        process.join(300)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(words)
        return subprocess.CompletedProcess(words, process.exitcode, out.read_text(), err.read_text())


def _run(program: str, words: tuple[str, ...], folder: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    for file, number in ((out, 1), (err, 2)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["-c", *words]
    sys.path.insert(0, "")
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
