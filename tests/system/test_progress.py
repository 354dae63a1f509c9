"""What a signal ends, and how soon: a step that computes, a wait, and what nothing else ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from layerprobe.data.loading import in_order
from layerprobe.system import progress
from layerprobe.system.errors import InterruptedRun
from layerprobe.system.progress import stoppable
from tests.data.blocked import Blocked

# Prints a line when the block has begun, and one for how it ended.
PROGRAM = """
import os, sys, time
from layerprobe.system.errors import InterruptedRun
from layerprobe.system import progress as signals
signals._PATIENCE = signals._LAST_PATIENCE = 0.5
def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def wait():
    os.read(os.pipe()[0], 1)
try:
    with signals.stoppable() as stop:
        print("begun", flush=True)
        {body}
except InterruptedRun as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


def signalled(body: str, *numbers: int) -> tuple[int, str, str]:
    """Run a block, send it signals once it has begun: exit code, the line printed at its end, stderr."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{body}", body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.1)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_one_signal_ends_a_wait(number: int, code: int) -> None:
    assert signalled("wait()", number) == (code, f"stopped ({signal.Signals(number).name}).\n", "")


def test_what_computes_ends_by_itself_at_its_next_step() -> None:
    body = "compute(1); stop.raise_if_asked('after the step')"
    assert signalled(body, signal.SIGTERM) == (143, "after the step (SIGTERM).\n", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_what_computes(number: int, code: int) -> None:
    started = time.monotonic()
    assert signalled("compute(60)", number, number)[0] == code
    assert time.monotonic() - started < 50


def test_what_nothing_else_ends_is_ended_with_the_signals_code() -> None:
    body = """
        while True:
            try: wait()
            except KeyboardInterrupt: pass
    """.strip()
    code, out, err = signalled(body, signal.SIGTERM)
    assert (code, out, err) == (143, "", "ended at once (SIGTERM); stored files are complete\n")


def ends(process: int) -> bool:
    for _ in range(200):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_a_wait_of_a_data_worker_ends_and_so_does_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.5)
    monkeypatch.setattr(progress, "_LAST_PATIENCE", 60.0)
    blocked, found = Blocked(tmp_path), []

    def signal_once_it_waits() -> None:
        found.append(blocked.wait())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=signal_once_it_waits, daemon=True).start()
    with pytest.raises(InterruptedRun, match=r"stopped \(SIGTERM\)") as caught, stoppable():
        list(in_order(blocked, [np.zeros(1, np.int64)], workers=1))
    assert caught.value.exit_code == 143
    caught.value.__context__ = None  # it holds the iterator, which ends its worker
    del caught
    assert ends(found[0])


def test_the_former_handlers_return() -> None:
    former = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = threading.active_count()
    with stoppable():
        assert signal.getsignal(signal.SIGTERM) not in former
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == former
    assert signal.set_wakeup_fd(-1) == -1
    for _ in range(100):
        if threading.active_count() <= threads:
            break
        time.sleep(0.05)
    assert threading.active_count() <= threads


def test_the_time_of_all_is_told_once_from_the_pace_after_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first report comes after 60 s of setup, and then every 2 s brings 10 of 1,000 images: 200 s.
    now, seconds = 0.0, list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    task = progress.Forecast(progress.Silent(), 1000, seconds.append)
    for i in range(10):
        now = 60 + 2 * i
        task.advance(10)
        assert bool(seconds) == (i >= 3)  # after 6 s, the first that are more than 5
    assert seconds == [200]
