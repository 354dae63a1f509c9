"""layerprobe summary."""

from __future__ import annotations

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Format, Output, RunName
from layerprobe.cli.requests import with_options
from layerprobe.workflow.summary.request import SummaryRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(summary))


def summary(
    *,
    name: RunName = None,
    request: SummaryRequest,
    form: Format = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Show the recall and gap of each layer with intervals.

    Train and test are compared in galleries of one size: the larger one is thinned by image, from stored ranks.
    """
    from layerprobe.workflow.run.runs import find_run

    terminal = output.terminal(form)
    run = find_run(cache, name)

    # All that takes long to import comes after what can be refused without it.
    from layerprobe.summary.table import summary_tables, summary_values
    from layerprobe.workflow.summary.summary import stored_summary

    if name is None:
        terminal.say(f"run {run.name}")
    layers = stored_summary(run, request)
    terminal.result(summary_values(layers), *summary_tables(layers))
