"""Processes that read images for the main one: how they start, and when they end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def start_method() -> str:
    """How a process is started."""
    # A fork would copy the locks of other libraries' threads in whatever state they are; Python 3.12 warns of it.
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def serve() -> None:
    """In a process just started: leave an interrupt to the main one, and end when that is gone, however it went."""
    # A terminal's Ctrl-C reaches every process: the main one finishes its step, then ends us. It does so by SIGTERM
    # where it has no time left, which therefore must not be ignored.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_main, daemon=True).start()


def _end_with_main() -> None:
    # The parent by number is the fork server, which lives as long as we do. This waits for the end of a pipe whose
    # other end the main process alone holds.
    main = multiprocessing.parent_process()
    if main is not None:
        main.join()
        os._exit(1)
