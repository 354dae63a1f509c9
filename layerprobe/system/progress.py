"""How long work reports its progress, whether a terminal, a log or nobody shows it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Task(Protocol):
    """A piece of work whose number of steps is known."""

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Report that further steps are done; `figures` are shown beside them (loss=0.61)."""


class Listener(Protocol):
    """Shows progress: a terminal, a log, or nothing at all."""

    def say(self, text: str) -> None:
        """Show a line of text."""

    def task(self, name: str, total: int, unit: str) -> AbstractContextManager[Task]:
        """Begin a task of `total` steps, which are counted in `unit` (images); it lasts as long as the block."""
