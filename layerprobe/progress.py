"""What a long command tells while it works, without knowing who listens."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Task(Protocol):
    """A stretch of work with a known length."""

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Some steps are done; `figures` are worth showing beside them (loss=0.61)."""


class Listener(Protocol):
    """Who hears of progress: a terminal, a log, nobody."""

    def say(self, text: str) -> None:
        """One line worth reading."""

    def task(self, name: str, total: int, unit: str) -> AbstractContextManager[Task]:
        """Begin a stretch of `total` steps, counted in `unit`."""
