"""layerprobe labels."""

from __future__ import annotations

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output, RunName
from layerprobe.cli.requests import with_options
from layerprobe.cli.streams import printed_apart
from layerprobe.workflow.labels.request import LabelsRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(labels))


def labels(*, name: RunName = None, request: LabelsRequest, cache: Cache = DEFAULT_CACHE, output: Output) -> None:
    """List labels that look wrong, by the neighbours of each image.

    Also duplicates with different labels, and classes that may be two. Nothing is changed.
    """
    from layerprobe.workflow.run.runs import find_run

    terminal = output.terminal()
    run = find_run(cache, name)

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.labels.label_tables import divided_table, duplicate_table, suspect_table
    from layerprobe.workflow.labels.labels import review_labels

    if name is None:
        terminal.say(f"run {run.name}")
    reviewed = review_labels(run, request, terminal)
    with printed_apart(request.csv):
        tables = [suspect_table(reviewed), duplicate_table(reviewed), divided_table(reviewed)]
        terminal.result(reviewed, reviewed.verdict, *reviewed.notes, *filter(None, tables))
