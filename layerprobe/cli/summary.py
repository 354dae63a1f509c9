"""layerprobe summary."""

from __future__ import annotations

from typing import Annotated

import typer

from layerprobe.cli.formats import chosen_format
from layerprobe.cli.options import DEFAULT_CACHE, Cache, Debug, Device, Format, Json, Quiet, RunName
from layerprobe.cli.output import Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(summary)


def summary(
    run: RunName = None,
    epochs: Annotated[
        str,
        typer.Option("--epochs", metavar="last,best|all|0,5", help="Epochs to compare on equal terms."),
    ] = "last,best",
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="COLUMN", help="Resample the values of a column (parent: folders), not classes."
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option("--metric", metavar="NAME", help="Mean over queries to show: R@1, R@10, MAP@R, mAP ..."),
    ] = "R@1",
    device: Device = "auto",
    form: Format = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Show the recall and gap of each layer with intervals.

    Splits are compared on equal terms: the mean over 20 draws of equally many classes and images. Draws are stored.
    """
    from layerprobe.workflow.run.metric_values import require_mean_over_queries
    from layerprobe.workflow.run.runs import find_run

    terminal = Terminal(as_json, quiet, chosen_format(form, as_json=as_json))
    found = find_run(cache, run)
    require_mean_over_queries(metric)

    # All that imports torch comes after what can be refused without it.
    from layerprobe.summary.table import summary_tables, summary_values
    from layerprobe.workflow.summary.summary import SummaryRequest, summarise

    if run is None:
        terminal.say(f"run {found.name}")
    made = summarise(found, SummaryRequest(epochs, cluster, device, metric), terminal)
    terminal.result(summary_values(made), *summary_tables(made))
