"""layerprobe report."""

from __future__ import annotations

from functools import partial

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output, RunNames
from layerprobe.cli.requests import with_options
from layerprobe.cli.streams import printed_apart
from layerprobe.workflow.report.request import ReportRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(report))


def report(
    *, names: RunNames = None, request: partial[ReportRequest], cache: Cache = DEFAULT_CACHE, output: Output
) -> None:
    """Write scores, plots and images of runs to an HTML page.

    The page is report.html in the folder of the first run, unless --out names another file. Ctrl-C ends --watch and
    keeps the page.
    """
    from layerprobe.workflow.run.runs import find_run

    terminal = output.terminal()
    runs = [find_run(cache, name) for name in names] if names else [find_run(cache, None)]
    if not names:
        terminal.say(f"run {runs[0].name}")
    asked = request(runs)

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.report.report import watch_report, write_report

    page = watch_report(asked, terminal) if asked.watch else write_report(asked)
    for note in page.notes:
        terminal.say(note)
    values = {
        "runs": [run.name for run in page.runs],
        "file": str(asked.page),
        "findings": list(page.findings),
        "notes": list(page.notes),
    }
    with printed_apart(asked.page):
        terminal.result(values, *page.findings, str(asked.page))
