"""layerprobe study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.cli.formats import chosen_format
from layerprobe.cli.options import DEFAULT_CACHE, Cache, Debug, Device, DryRun, Format, Json, Quiet
from layerprobe.cli.output import Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(study)


def study(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A study's name, or a .toml file.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the studies.")] = False,
    small: Annotated[bool, typer.Option("--small", help="Run its small version, on data made by code.")] = False,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="NAME:DIR", help="Where a data set of its recipes lies; repeatable."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Trainings at once, each with one CPU thread.")] = 1,
    scores: Annotated[
        Path | None,
        typer.Option("--scores", metavar="FILE", help="CSV of finished trainings' scores: read, and completed."),
    ] = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    form: Format = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Train what a study lacks, and show its table or figure."""
    from layerprobe.system.errors import RecipeError
    from layerprobe.system.files import require_writable
    from layerprobe.workflow.study.study_file import load_study, studies

    terminal = Terminal(as_json, quiet, chosen_format(form, as_json=as_json))
    if listed:
        from layerprobe.tables.tables import plain_table

        found = studies()
        rows = [(each, about.title, about.paper, "yes" * has_small) for each, (about, has_small) in found.items()]
        values = [
            {"study": each, **about.model_dump(), "small": has_small} for each, (about, has_small) in found.items()
        ]
        terminal.result({"studies": values}, plain_table(("study", "title", "paper", "small version"), rows))
        return
    if name is None:
        raise RecipeError("no study is named", fix="layerprobe study --list lists the known ones")
    loaded = load_study(name, small=small)
    if not dry_run:
        require_writable(cache)

    from layerprobe.workflow.study.plan import plan_without_data
    from layerprobe.workflow.study.study import StudyRequest, estimate_study, run_study
    from layerprobe.workflow.study.table import (
        StudyTable,
        about_lines,
        plan_table,
        plan_values,
        table_values,
        text_table,
    )

    request = StudyRequest(loaded, cache, jobs, device, tuple(data or ()), scores)
    if dry_run:
        cells, lacking = plan_without_data(loaded, cache, device, request.data)
        if lacking:
            terminal.result(plan_values(loaded, cells, lacking), plan_table(loaded, cells, lacking))
            return
        terminal.estimate(loaded.name, estimate_study(request, terminal))
        return
    made = run_study(request, terminal)
    if isinstance(made, StudyTable):
        terminal.result(table_values(made), text_table(made))
    else:
        for line in about_lines(loaded):
            terminal.say(line)
        terminal.result({"study": loaded.name, "plot": loaded.end.plot, "file": str(made)}, str(made))
