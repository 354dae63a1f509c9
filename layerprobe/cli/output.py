"""What a person or a script sees: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from layerprobe.errors import InterruptedRun, LayerprobeError, RecipeError
from layerprobe.wording import as_duration, as_size, visible

if TYPE_CHECKING:
    from rich.table import Table

    from layerprobe.progress import Task
    from layerprobe.workflow.estimate import Estimate

SCHEMA = 1
# Seconds between two lines of progress where there is no terminal.
_PLAIN_INTERVAL = 15.0


@dataclass
class Terminal:
    """Hears of progress and shows results; a `layerprobe.progress.Listener`.

    Args:
        as_json: results as one JSON object, and no tables.
        quiet: no progress and no messages.
    """

    as_json: bool = False
    quiet: bool = False
    _console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True))

    def say(self, text: str) -> None:
        """A line on stderr."""
        if not self.quiet:
            self._console.print(text, markup=False)

    @contextlib.contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[Task]:
        """A bar on a terminal, a line now and then elsewhere."""
        if self.quiet or total == 0:
            yield _Silent()
        elif self._console.is_terminal:
            with _bar(self._console) as progress:
                identity = progress.add_task(escape(name), total=total, unit=unit, figures="")
                yield _Bar(progress, identity)
        else:
            yield _Lines(self, name, total, unit)

    def result(self, values: dict[str, Any], *shown: Table | str) -> None:
        """The command's result: `values` as JSON, or tables and lines."""
        try:
            if self.as_json:
                print(json.dumps({"schema": SCHEMA, **values}, ensure_ascii=False))
                shown = ()
            # A pipe has no width: nothing may be cut there.
            console = Console(width=None if sys.stdout.isatty() else 200)
            for item in shown:
                print(item) if isinstance(item, str) else console.print(item)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has gone (`| head`); what is left in the buffer must not fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def estimate(self, run: str, estimate: Estimate) -> None:
        """What a dry run found."""
        shown = (
            f"{run}: about {as_duration(estimate.seconds)}, {as_size(estimate.memory)} of memory,"
            f" {as_size(estimate.disk)} on disk ({as_size(estimate.free)} free)"
        )
        self.result({"run": run, "estimate": asdict(estimate)}, shown)


def show_error(error: LayerprobeError, *, as_json: bool) -> None:
    """One line an error on stderr, or one JSON object on stdout."""
    problems = list(error.problems) if isinstance(error, RecipeError) else []
    if as_json:
        fault: dict[str, Any] = {
            "code": error.code,
            "file": error.file,
            "message": error.message,
            "fix": error.fix,
        }
        print(json.dumps({"schema": SCHEMA, "error": fault | ({"problems": problems} if problems else {})}))
        return
    for line in [f"{problem}." for problem in problems] or [str(error)]:
        # Who pressed Ctrl-C made no error.
        prefix = "" if isinstance(error, InterruptedRun) else "error: "
        print(f"{prefix}{visible(line)}", file=sys.stderr)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


class _Silent:
    def advance(self, steps: int = 1, **figures: float) -> None:
        """Nobody listens."""


@dataclass
class _Bar:
    progress: Progress
    identity: TaskID

    def advance(self, steps: int = 1, **figures: float) -> None:
        task = self.progress.tasks[0]
        rate = f"{task.speed:.0f}/s" if task.speed else ""
        text = " ".join([rate, *(f"{name} {value:.3f}" for name, value in figures.items())])
        self.progress.update(self.identity, advance=steps, figures=text)


@dataclass
class _Lines:
    terminal: Terminal
    name: str
    total: int
    unit: str
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    told: float = field(default_factory=time.monotonic)

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.done += steps
        now = time.monotonic()
        if now - self.told < _PLAIN_INTERVAL:
            return
        self.told = now
        rate = self.done / (now - self.started)
        shown = "".join(f", {name} {value:.3f}" for name, value in figures.items())
        left = (self.total - self.done) / rate
        self.terminal.say(
            f"{self.name}: {self.done}/{self.total} {self.unit}, {rate:.0f}/s{shown}, {left / 60:.1f} min left"
        )
