"""SIGINT and SIGTERM end a command at its next step; a second SIGINT ends it at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

from layerprobe.errors import InterruptedRun

Item = TypeVar("Item")


class Stop:
    """Whether a signal has asked to stop."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def raise_if_asked(self, message: str) -> None:
        """End the command.

        Raises:
            InterruptedRun: a signal came.
        """
        if self.signal_number is not None:
            raise InterruptedRun(
                f"{message} ({signal.Signals(self.signal_number).name})", signal_number=self.signal_number
            )

    def between(self, items: Iterable[Item], message: str) -> Iterator[Item]:
        """The items, as long as nobody asks to stop.

        Raises:
            InterruptedRun: a signal came.
        """
        for item in items:
            self.raise_if_asked(message)
            yield item


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """Catch the signals inside the block; the former handlers return after it.

    The handlers are installed explicitly because a shell starts background commands with SIGINT ignored.
    """
    stop = Stop()

    def asked(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's signature
        if stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal_number = number

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    former = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
