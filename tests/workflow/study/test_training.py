from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.freed_memory import KEPT, takes_the_settings, untuned

PROGRAM = """
import multiprocessing
from layerprobe.system.computing import start_method
from layerprobe.system.errors import DataError
from layerprobe.workflow.study.training import _serve

class Training:
    def request(self):
        raise DataError(str(keeps()))

if __name__ == "__main__":
    context = multiprocessing.get_context(start_method())
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(Training(), theirs))
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
