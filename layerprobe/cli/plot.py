"""layerprobe plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Debug, Json, Quiet, split_names
from layerprobe.cli.output import Terminal
from layerprobe.cli.streams import printed_apart
from layerprobe.registry import PLOTS


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plot)


def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"Plot to draw: {', '.join(PLOTS)}.")],
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Run names (default: the most recent).")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="L,...", help="Layers to show: LAYER[@pool][/reduction] or a glob."),
    ] = None,
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="Epoch to show (default: the last).")] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Metric to draw (default: R@1): R@10, MAP@R, NMI ...; loss (over-key only).",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="SECTION.KEY", help="Key of the recipe on the x axis: net.fc (over-key only)."),
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", metavar="ID", help="Image to show as the query (panels only).")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="TEXT",
            help="Rule for choosing queries: 'LAYER right, LAYER wrong', worst, random or 'class NAME' (panels only).",
        ),
    ] = None,
    queries: Annotated[
        int | None, typer.Option("--queries", min=1, help="Number of queries to show (panels only).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the figure to this .png, .pdf or .svg file, or to - (stdout).")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Also write the drawn numbers to this .csv file, or to - (stdout).")
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Plot scores, losses, features or nearest neighbours of runs."""
    from layerprobe.system.errors import UnknownNameError
    from layerprobe.workflow.run.runs import find_run

    if kind not in PLOTS:
        raise UnknownNameError("plot", kind, PLOTS)
    terminal = Terminal(as_json, quiet)
    chosen = [find_run(cache, name) for name in runs] if runs else [find_run(cache, None)]

    from layerprobe.plots.plot import PlotOptions
    from layerprobe.workflow.plot.plot import PlotRequest
    from layerprobe.workflow.plot.plot import plot as draw

    if not runs:
        terminal.say(f"run {chosen[0].name}")
    options = PlotOptions(split_names(layers), epoch, query, where, queries, metric, key)
    path = draw(PlotRequest(kind, chosen, out, csv, options))
    values = {"runs": [run.name for run in chosen], "plot": kind, "file": str(path), "csv": str(csv) if csv else None}
    with printed_apart(out, csv):
        terminal.result(values, str(path))
