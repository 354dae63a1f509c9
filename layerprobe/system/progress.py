"""Long work: its progress, and how SIGINT and SIGTERM end it at its next step."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from types import FrameType
from typing import Protocol, TypeVar

from layerprobe.system.errors import InterruptedRun

Item = TypeVar("Item")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 3.0  # seconds without work after a signal that count as waiting
_LAST_PATIENCE = 2.0  # seconds to clean up after a second signal


class Stop:
    """Whether a signal has asked to stop."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def raise_if_asked(self, message: str) -> None:
        """End the command if a signal arrived."""
        if self.signal_number is not None:
            raise InterruptedRun(
                f"{message} ({signal.Signals(self.signal_number).name})", signal_number=self.signal_number
            )

    def between(self, items: Iterable[Item], message: str) -> Iterator[Item]:
        """The items, until a signal arrives."""
        for item in items:
            self.raise_if_asked(message)
            yield item


@contextlib.contextmanager
def stoppable(*, at_once: bool = False) -> Iterator[Stop]:
    """Catch SIGINT and SIGTERM inside the block; the former handlers are restored after it.

    After the first signal, computation ends at its next check of `Stop`; a process that waits for a disk or a data
    worker is sent a second signal after 3 seconds. A second signal raises KeyboardInterrupt; a process that does not
    end within 2 more seconds exits with 128 + the signal's number.

    The handlers are installed explicitly because a shell starts background commands with SIGINT ignored.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handler(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's signature
        is_second = bool(stop)
        stop.signal_number = stop.signal_number or number
        if is_second or at_once:
            raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")

    arrivals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    threading.Thread(target=_insist, args=(arrivals, threading.get_ident()), daemon=True).start()
    former = {number: signal.signal(number, handler) for number in _SIGNALS}
    # The interpreter writes the number of an arriving signal there, even while no Python code can run.
    former_wakeup = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    try:
        yield stop
    except KeyboardInterrupt:
        stop.raise_if_asked("stopped")
        raise
    finally:
        signal.set_wakeup_fd(former_wakeup)
        os.close(wakeup)
        for number, previous in former.items():
            signal.signal(number, previous)


def _insist(arrivals: int, main: int) -> None:
    """In a thread: make the block end after a signal."""
    with open(arrivals, "rb", buffering=0) as stream:
        if not (signal_number := _arrival(stream, None)):
            return
        second: int | None = 0
        while second == 0:
            used = time.process_time()
            second = _arrival(stream, _PATIENCE)
            if second == 0 and time.process_time() - used < _PATIENCE / 10:
                signal.pthread_kill(main, signal_number)  # it ends a blocking system call, and arrives here too
        deadline = time.monotonic() + _LAST_PATIENCE
        while second is not None and (patience := deadline - time.monotonic()) > 0:
            second = _arrival(stream, patience)
    if second is not None:
        show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # the cursor, which a progress bar hides
        ending = f"ended at once ({signal.Signals(signal_number).name}); stored files are complete\n"
        os.write(2, f"{show_cursor}{ending}".encode())
        os._exit(128 + signal_number)


def _arrival(stream: FileIO, seconds: float | None) -> int | None:
    """The next signal's number; 0 if none came in time, None if the block has ended."""
    while select.select([stream], [], [], seconds)[0]:
        number = stream.read(1)
        if not number:
            return None
        if number[0] in _SIGNALS:
            return number[0]
    return 0


def end_soon(code: int) -> None:
    """Exit with this code in 3 seconds, if the process still runs: a data worker may wait for a disk."""
    timer = threading.Timer(_PATIENCE, os._exit, (code,))
    timer.daemon = True
    timer.start()


class Task(Protocol):
    """A piece of work whose number of steps is known."""

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Report that further steps are done, with figures to show (loss=0.61)."""


class Listener(Protocol):
    """Shows progress."""

    def say(self, text: str) -> None:
        """Show a line of text."""

    def task(self, name: str, total: int, unit: str) -> AbstractContextManager[Task]:
        """Show a task of `total` steps, counted in `unit` (images), for the duration of the block."""


class Silent:
    """A listener, and its tasks, that show nothing."""

    def say(self, text: str) -> None:
        """Show nothing."""

    @contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[Task]:  # noqa: ARG002 - of a listener
        """A task that is not shown."""
        yield self

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Show nothing."""


_KNOWN = 5.0  # seconds after the first step from which on the pace counts as known
LONG = 1800.0  # seconds; what takes longer names a cheaper command


class Forecast:
    """A task that tells once how long it will take, as soon as its pace is known.

    Args:
        tell: takes the seconds of all steps; called where a few seconds have not sufficed.
    """

    def __init__(self, task: Task, total: int, tell: Callable[[float], None]) -> None:
        self._task, self._total, self._tell = task, total, tell
        self._done = 0
        # Steps and moment of the first report: what comes before it is set up once.
        self._first: tuple[int, float] | None = None
        self._is_told = False

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Pass the progress on."""
        self._task.advance(steps, **figures)
        self._done, now = self._done + steps, time.monotonic()
        if self._first is None:
            self._first = self._done, now
        elif not self._is_told and now - self._first[1] >= _KNOWN:
            self._is_told = True
            self._tell((now - self._first[1]) / (self._done - self._first[0]) * self._total)
