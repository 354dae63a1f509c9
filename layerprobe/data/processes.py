"""Processes that read images for the main process: how many there are, how they start, when they end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def default_workers() -> int:
    """The number of processes where the user states none: one a core, at most 8."""
    return min(8, os.cpu_count() or 1)


def start_method() -> str:
    """The way to start a process, as `multiprocessing` calls it."""
    # A plain fork copies the locks of other libraries' threads, perhaps locked; Python 3.12 warns of it.
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def serve() -> None:
    """In a process just started: ignore Ctrl-C, and end when the main process has ended, in whatever way."""
    # A terminal's Ctrl-C reaches every process: the main one finishes its step, then ends us. In haste it does so by
    # SIGTERM, which therefore must not be ignored.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_main, daemon=True).start()


def _end_with_main() -> None:
    # The parent by process id is the fork server, which lives as long as we do. join waits for the end of a pipe whose
    # other end only the main process holds.
    main = multiprocessing.parent_process()
    if main is not None:
        main.join()
        os._exit(1)
