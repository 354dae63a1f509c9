"""layerprobe explain."""

from __future__ import annotations

from functools import partial

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output, RunName
from layerprobe.cli.requests import with_options
from layerprobe.cli.streams import printed_apart
from layerprobe.workflow.explain.request import ExplainRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(explain, "where model out"))


def explain(
    *, name: RunName = None, request: partial[ExplainRequest], cache: Cache = DEFAULT_CACHE, output: Output
) -> None:
    """Show which pixels make an image and its neighbour similar.

    The neighbour is the nearest one by each layer, which explains it by integrated gradients and Grad-CAM.
    Without --out the figure is kept with the run, where report shows it.
    """
    from layerprobe.workflow.run.runs import find_run

    terminal = output.terminal()
    run = find_run(cache, name)
    if name is None:
        terminal.say(f"run {run.name}")
    explaining = request(run)

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.explain.explain import explain as explain_query
    from layerprobe.workflow.explain.explain_text import explanation_table, explanation_values

    explanation, path = explain_query(explaining, terminal)
    with printed_apart(explaining.out):
        values = {**explanation_values(explanation), "file": str(path)}
        terminal.result(values, explanation_table(explanation), str(path))
