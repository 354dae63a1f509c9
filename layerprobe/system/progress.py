"""Progress of long work, shown by a terminal, a log or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


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
