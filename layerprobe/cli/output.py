"""What a person or a script sees: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from layerprobe.cli.streams import styled
from layerprobe.system.errors import InterruptedRun, LayerprobeError, RecipeError
from layerprobe.system.progress import Silent
from layerprobe.system.wording import BYTES, as_duration, as_size, encoded, one_line
from layerprobe.tables.formats import TERMINAL, as_rich, format_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from layerprobe.system.progress import Task
    from layerprobe.tables.tables import TextTable
    from layerprobe.values.costs import Estimate

SCHEMA = 2
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
            yield Silent()
        elif sys.stderr.isatty():
            outermost = self._bars is None
            with _bars(self._console) if self._bars is None else contextlib.nullcontext(self._bars) as progress:
                self._bars = progress
                identity = progress.add_task(one_line(name), total=total, unit=unit, figures="")

                def draw(done: int, words: list[str]) -> None:
                    progress.update(identity, completed=done, figures=" ".join(words))

                try:
                    yield _Pace(total, outermost, draw)
                finally:
                    if outermost:
                        self._bars = None
                    else:
                        progress.remove_task(identity)
        else:
            outermost, self._running = not self._running, True
            printed = time.monotonic()

            def print_line(done: int, words: list[str]) -> None:
                nonlocal printed
                if time.monotonic() - printed >= _PLAIN_INTERVAL:
                    printed = time.monotonic()
                    self.say(f"{name}: {done}/{total} {unit}, {', '.join(words)}")

            try:
                yield _Pace(total, outermost, print_line)
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
                for line in filter(None, (*item.heading, *item.notes)) if self.form == "csv" else ():
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


@dataclass
class _Pace:
    """A task: how fast it goes, and how long it will take at the mean speed so far."""

    total: int
    estimated: bool
    show: Callable[[int, list[str]], None]
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Show the steps that are done, `12/s`, the figures, and `0.5 min left`."""
        self.done += steps
        rate = self.done / max(time.monotonic() - self.started, 1e-9)
        left = [f"{(self.total - self.done) / rate / 60:.1f} min left"] if self.estimated and rate else []
        self.show(self.done, [f"{rate:.0f}/s", *(f"{name} {value:.3f}" for name, value in figures.items()), *left])
