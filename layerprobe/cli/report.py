"""layerprobe report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output, RunNames
from layerprobe.cli.requests import with_options
from layerprobe.cli.streams import printed_apart
from layerprobe.system.options import Flag


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(report))


def report(
    *,
    names: RunNames = None,
    out: Annotated[Path, Flag("Write the page to this .html file, or to - (stdout).", default="./report.html")] = Path(
        "report.html"
    ),
    metric: Annotated[str, Flag("Metric of the findings, and first shown: R@1, MAP@R ...", metavar="NAME")] = "R@1",
    watch: Annotated[bool, Flag("Rewrite the page after every epoch while a run is trained or probed.")] = False,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Write scores, plots and images of runs to an HTML page.

    Runs are not changed. Ctrl-C ends --watch and keeps the page.
    """
    from layerprobe.workflow.run.metric_values import require_mean_over_queries
    from layerprobe.workflow.run.outputs import require_output
    from layerprobe.workflow.run.runs import find_run

    terminal = output.terminal()
    runs = [find_run(cache, name) for name in names] if names else [find_run(cache, None)]
    if not names:
        terminal.say(f"run {runs[0].name}")
    require_mean_over_queries(metric)
    require_output(out, "html")

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.report.report import write_report
    from layerprobe.workflow.report.report_watch import watch_report

    page = watch_report(runs, out, terminal, metric) if watch else write_report(runs, out, metric)
    for note in page.notes:
        terminal.say(note)
    values = {
        "runs": [run.name for run in page.runs],
        "file": str(out),
        "findings": list(page.findings),
        "notes": list(page.notes),
    }
    with printed_apart(out):
        terminal.result(values, *page.findings, str(out))
