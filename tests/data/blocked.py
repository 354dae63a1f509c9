"""A read that never ends, as from a disk that has gone."""

from __future__ import annotations

import os
from pathlib import Path

from layerprobe.data.loading import Indices


class Blocked:
    """Makes two pipes in a folder; called, it tells the process's number through one and waits for ever for the other.

    It is picklable: data workers call it.
    """

    def __init__(self, folder: Path) -> None:
        self.told, self.never = folder / "told", folder / "never"
        os.mkfifo(self.told)
        os.mkfifo(self.never)

    def __call__(self, indices: Indices) -> Indices:
        self.told.write_text(f"{os.getpid()}\n")
        self.never.open("rb").read()
        return indices

    def wait(self) -> int:
        """Wait until it was called; the number of a process that has."""
        with self.told.open() as stream:
            return int(stream.readline())
