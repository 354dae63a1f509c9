"""layerprobe report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Debug, Json, Quiet
from layerprobe.cli.output import Terminal
from layerprobe.cli.streams import printed_apart


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Run names (default: the most recent).")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="Write the page to this .html file, or to - (stdout).", show_default="./report.html"
        ),
    ] = Path("report.html"),
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="Metric of the findings, and first shown: R@1, MAP@R ...")
    ] = "R@1",
    watch: Annotated[
        bool, typer.Option("--watch", help="Rewrite the page after every epoch while a run is trained or probed.")
    ] = False,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Write scores, plots and images of runs to an HTML page.

    Runs are not changed. Ctrl-C ends --watch and keeps the page.
    """
    from layerprobe.workflow.run.metric_values import require_mean_over_queries
    from layerprobe.workflow.run.outputs import require_output
    from layerprobe.workflow.run.runs import find_run

    terminal = Terminal(as_json, quiet)
    found = [find_run(cache, name) for name in runs] if runs else [find_run(cache, None)]
    if not runs:
        terminal.say(f"run {found[0].name}")
    require_mean_over_queries(metric)
    require_output(out, "html")

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.report.report import write_report
    from layerprobe.workflow.report.report_watch import watch_report

    made = watch_report(found, out, terminal, metric) if watch else write_report(found, out, metric)
    for note in made.notes:
        terminal.say(note)
    values = {
        "runs": [page.name for page in made.runs],
        "file": str(out),
        "findings": list(made.findings),
        "notes": list(made.notes),
    }
    with printed_apart(out):
        terminal.result(values, *made.findings, str(out))
