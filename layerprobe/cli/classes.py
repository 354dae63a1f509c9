"""layerprobe classes."""

from __future__ import annotations

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output, RunName
from layerprobe.cli.requests import with_options
from layerprobe.cli.streams import printed_apart
from layerprobe.workflow.classes.request import ClassesRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(classes))


def classes(*, name: RunName = None, request: ClassesRequest, cache: Cache = DEFAULT_CACHE, output: Output) -> None:
    """Show which classes lose by a new layer, and which are confused.

    Nothing is changed. Every class and every confused pair are in --csv, --confusions and --json.
    """
    from layerprobe.workflow.run.runs import find_run

    terminal = output.terminal()
    run = find_run(cache, name)

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.classes.class_tables import class_table, confusion_table
    from layerprobe.workflow.classes.classes import compare_classes

    if name is None:
        terminal.say(f"run {run.name}")
    compared = compare_classes(run, request, terminal)
    with printed_apart(request.csv, request.confusions):
        terminal.result(compared, compared.verdict, class_table(compared), confusion_table(compared))
