"""What a person or a script sees: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from layerprobe.cli.streams import styled
from layerprobe.system.errors import InterruptedRun, LayerprobeError, RecipeError
from layerprobe.system.wording import BYTES, as_duration, as_size, encoded, one_line
from layerprobe.tables.formats import TERMINAL, as_rich, format_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from layerprobe.system.progress import Task
    from layerprobe.tables.tables import TextTable
    from layerprobe.values.costs import Estimate

SCHEMA = 1
# Seconds between two lines of progress where there is no terminal.
_PLAIN_INTERVAL = 15.0


@dataclass
class Terminal:
    """Shows progress and results; a `layerprobe.system.progress.Listener`."""

    as_json: bool = False
    quiet: bool = False
    form: str = TERMINAL
    # The bars that are shown on a terminal; whether lines of progress are, elsewhere.
    _bars: Progress | None = field(default=None, init=False)
    _running: bool = field(default=False, init=False)

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=styled(sys.stderr), highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line on stderr; a line feed in it is a name's, and is no line of ours."""
        if self.quiet:
            return
        text = one_line(text, keep=BYTES)
        if sys.stderr.isatty():
            # The console knows the progress bars, and prints above them.
            self._console.print(text, markup=False, emoji=False)
        else:
            print(text, file=sys.stderr)

    @contextlib.contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[Task]:
        """Show progress: a bar on a terminal, elsewhere a line every 15 seconds.

        A task within another is shown beside it; the outer one alone says how long it will take.
        """
        if self.quiet or total == 0:
            yield _Silent()
        elif sys.stderr.isatty():
            outermost = self._bars is None
            with _bars(self._console) if self._bars is None else contextlib.nullcontext(self._bars) as progress:
                self._bars = progress
                identity = progress.add_task(one_line(name), total=total, unit=unit, figures="")
                try:
                    yield _Bar(progress, identity, _Pace(total, outermost))
                finally:
                    if outermost:
                        self._bars = None
                    else:
                        progress.remove_task(identity)
        else:
            outermost, self._running = not self._running, True
            try:
                yield _Lines(self, name, unit, _Pace(total, outermost))
            finally:
                self._running = not outermost

    def result(self, values: object, *items: TextTable | str) -> None:
        """Print a command's result: `values` with --json, a mapping or a dataclass; else `items`, tables and lines."""
        if self.as_json:
            # In ASCII: invalid characters, such as a byte that is not UTF-8, have JSON's own escape.
            print(json.dumps({"schema": SCHEMA, **encoded(values)}))
            items = ()
        for number, item in enumerate(items):
            if isinstance(item, str):
                print(one_line(item, keep=BYTES))
            elif self.form == TERMINAL:
                if number:
                    print()
                _print_table(item)
            else:
                print("\n" * (number > 0) + format_table(item, self.form))
                for line in (*item.heading, *item.notes) if self.form == "csv" else ():
                    self.say(line)
        sys.stdout.flush()

    def estimate(self, run: str, estimate: Estimate) -> None:
        """Print the result of a dry run."""
        text = (
            f"{run}: about {as_duration(estimate.seconds)}, {as_size(estimate.memory)} of memory,"
            f" {as_size(estimate.disk)} on disk ({as_size(estimate.free)} free)"
        )
        self.result({"run": run, "estimate": estimate}, text)


def error_values(error: LayerprobeError) -> dict[str, Any]:
    """An error as JSON has it."""
    problems = list(error.problems) if isinstance(error, RecipeError) else []
    fault = {"code": error.code, "file": error.file, "message": error.message, "fix": error.fix}
    return fault | ({"problems": problems} if problems else {})


def show_error(error: LayerprobeError, *, as_json: bool) -> None:
    """Print an error: a line on stderr for each problem, or one JSON object on stdout."""
    if as_json:
        print(json.dumps({"schema": SCHEMA, "error": error_values(error)}))
        return
    problems = list(error.problems) if isinstance(error, RecipeError) else []
    for line in [f"{problem}." for problem in problems] or [str(error)]:
        # Pressing Ctrl-C is no error.
        prefix = "" if isinstance(error, InterruptedRun) else "error: "
        print(f"{prefix}{one_line(line)}", file=sys.stderr)


def _print_table(table: TextTable) -> None:
    from rich.console import Console

    # A pipe has no width: nothing may be cut there.
    console = Console(file=styled(sys.stdout), width=None if sys.stdout.isatty() else 200)
    # A terminal wraps long lines; rich would truncate them.
    console.print(as_rich(table, console.width), crop=False)


def _bars(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),  # the bar gives way
        TextColumn("{task.fields[unit]}"),
        TextColumn("{task.fields[figures]}"),
        console=console,
        transient=True,
    )


class _Silent:
    def advance(self, steps: int = 1, **figures: float) -> None:
        """Nobody listens."""


@dataclass
class _Pace:
    """How fast a task goes, and how long it will take at the mean speed so far."""

    total: int
    estimated: bool
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def words(self, figures: dict[str, float]) -> list[str]:
        """`12/s`, the figures, and `0.5 min left`."""
        rate = self.done / max(time.monotonic() - self.started, 1e-9)
        left = [f"{(self.total - self.done) / rate / 60:.1f} min left"] if self.estimated and rate else []
        return [f"{rate:.0f}/s", *(f"{name} {value:.3f}" for name, value in figures.items()), *left]


@dataclass
class _Bar:
    progress: Progress
    identity: TaskID
    pace: _Pace

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.pace.done += steps
        self.progress.update(self.identity, advance=steps, figures=" ".join(self.pace.words(figures)))


@dataclass
class _Lines:
    terminal: Terminal
    name: str
    unit: str
    pace: _Pace
    printed: float = field(default_factory=time.monotonic)

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.pace.done += steps
        now = time.monotonic()
        if now - self.printed < _PLAIN_INTERVAL:
            return
        self.printed = now
        words = ", ".join(self.pace.words(figures))
        self.terminal.say(f"{self.name}: {self.pace.done}/{self.pace.total} {self.unit}, {words}")
