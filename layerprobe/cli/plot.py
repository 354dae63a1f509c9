"""layerprobe plot."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output, RunNames
from layerprobe.cli.requests import with_options
from layerprobe.cli.streams import printed_apart
from layerprobe.plots.options import PlotOptions
from layerprobe.registry import PLOTS
from layerprobe.workflow.plot.request import PlotRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(plot, "epoch metric key by classes query where queries"))


def plot(
    *,
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"Plot to draw: {', '.join(PLOTS)}.")],
    names: RunNames = None,
    options: PlotOptions,
    request: partial[PlotRequest],
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Plot scores, losses, features or nearest neighbours of runs."""
    from layerprobe.system.errors import UnknownNameError
    from layerprobe.workflow.run.runs import find_run

    if kind not in PLOTS:
        raise UnknownNameError("plot", kind, PLOTS)
    terminal = output.terminal()
    runs = [find_run(cache, name) for name in names] if names else [find_run(cache, None)]

    from layerprobe.workflow.plot.plot import plot as draw

    if not names:
        terminal.say(f"run {runs[0].name}")
    drawing = request(kind, runs, options=options)
    path = draw(drawing)
    csv = str(drawing.csv) if drawing.csv else None
    values = {"runs": [run.name for run in runs], "plot": kind, "file": str(path), "csv": csv}
    with printed_apart(drawing.out, drawing.csv):
        terminal.result(values, str(path))
