"""What trackers are given; one that fails is reported in a line, and never ends what is tracked."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from layerprobe.registry import TRACKERS, load
from layerprobe.sources.hub import quiet

_REASON = 300  # characters of a tracker's error


class Tracker(Protocol):
    """A run in a tracker."""

    def __init__(self, where: str, run: str, config: Mapping[str, object]) -> None:
        """Begin a run.

        Args:
            where: what stands after `KIND:`; empty for the tracker's default.
            config: key of the recipe, such as `train.epochs`, -> its value.
        """

    @staticmethod
    def require(where: str) -> None:
        """Check that the package is installed, and what of `where` can be checked without a network."""

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log numbers of an epoch."""

    def log_figure(self, name: str, file: Path, epoch: int) -> None:
        """Log a .png file."""

    def log_file(self, file: Path) -> None:
        """Keep a copy of a file."""

    def close(self, *, failed: bool) -> None:
        """End the run, whose work has failed or been interrupted, or is done."""


def require_trackers(names: Sequence[str]) -> None:
    """Check trackers named `KIND[:WHERE]`, before the work.

    Raises:
        UnknownNameError: no such kind.
        EnvironmentFault: its package is not installed, or its folder cannot be written to.
    """
    for name in names:
        adapter, where = _adapter(name)
        adapter.require(where)


def _adapter(name: str) -> tuple[type[Tracker], str]:
    kind, _, where = name.partition(":")
    return load("tracker", TRACKERS, kind), where


class Trackers:
    """The trackers of a run. One that raises is reported in a line, and is given nothing more.

    Args:
        names: `KIND[:WHERE]` of each.
        config: of the run, by section.
        say: shows a line.
    """

    def __init__(
        self, names: Sequence[str], run: str, config: Mapping[str, Mapping[str, object]], say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._trackers: dict[str, Tracker] = {}
        keys = {f"{section}.{key}": value for section, values in config.items() for key, value in values.items()}
        for name in dict.fromkeys(names):
            with self._faults_told(name):
                adapter, where = _adapter(name)
                self._trackers[name] = adapter(where, run, keys)

    def __bool__(self) -> bool:
        return bool(self._trackers)

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log numbers of an epoch."""
        self._call(lambda tracker: tracker.log(numbers, epoch))

    def log_figure(self, name: str, file: Path, epoch: int) -> None:
        """Log a .png file."""
        self._call(lambda tracker: tracker.log_figure(name, file, epoch))

    def log_file(self, file: Path) -> None:
        """Keep a copy of a file."""
        self._call(lambda tracker: tracker.log_file(file))

    def close(self, *, failed: bool) -> None:
        """End the run, whose work has failed or been interrupted, or is done."""
        self._call(lambda tracker: tracker.close(failed=failed))
        self._trackers.clear()

    def _call(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in [*self._trackers.items()]:
            with self._faults_told(name):
                call(tracker)

    @contextlib.contextmanager
    def _faults_told(self, name: str) -> Iterator[None]:
        try:
            # Results alone are printed on stdout.
            with quiet(), contextlib.redirect_stdout(sys.stderr):
                yield
        except Exception as error:  # no fault of a tracker, whatever its package raises, may end a training
            self._trackers.pop(name, None)
            reason = textwrap.shorten(str(error) or type(error).__name__, _REASON, placeholder=" ...")
            self._say(f"--log {name}: nothing more is logged there: {reason}")
