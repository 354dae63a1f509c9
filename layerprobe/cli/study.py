"""layerprobe study."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, DryRun, Format, Output
from layerprobe.cli.output import Terminal
from layerprobe.cli.requests import with_options
from layerprobe.system.options import Flag
from layerprobe.workflow.study.request import StudyRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(study, "data jobs scores devices"))


def study(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A study's name, or a .toml file.")] = None,
    listed: Annotated[bool, Flag("List the studies.", name="--list")] = False,
    small: Annotated[bool, Flag("Run its small version, on data made by code.")] = False,
    request: partial[StudyRequest],
    dry_run: DryRun = False,
    form: Format = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Train what is missing of a study, and show its table or figure."""
    from layerprobe.system.errors import RecipeError
    from layerprobe.system.files import require_writable
    from layerprobe.workflow.study.study_file import load_study, studies

    terminal = output.terminal(form)
    if listed:
        from layerprobe.tables.tables import plain_table

        rows, values = [], []
        for study_name, (about, has_small) in studies().items():
            rows.append((study_name, about.title, about.paper, "yes" * has_small))
            values.append({"study": study_name, **about.model_dump(), "small": has_small})
        terminal.result({"studies": values}, plain_table(("study", "title", "paper", "small version"), rows))
        return
    if name is None:
        raise RecipeError("no study is named", fix="layerprobe study --list lists the known ones")
    loaded = load_study(name, small=small)
    if not dry_run:
        require_writable(cache)

    from layerprobe.workflow.study.plan import plan_without_data
    from layerprobe.workflow.study.study import (
        StudyTable,
        about_lines,
        estimate_study,
        plan_table,
        plan_values,
        run_study,
        table_values,
        text_table,
    )

    studying = request(loaded, cache)
    if loaded.search is not None:
        _search(studying, terminal, dry_run=dry_run)
        return
    if dry_run:
        cells, lacking = plan_without_data(loaded, cache, studying.data)
        if lacking:
            terminal.result(plan_values(loaded, cells, lacking), plan_table(loaded, cells, lacking))
            return
        terminal.estimate(loaded.name, estimate_study(studying, terminal))
        return
    end = run_study(studying, terminal)
    if isinstance(end, StudyTable):
        terminal.result(table_values(end), text_table(end))
    else:
        for line in about_lines(loaded):
            terminal.say(line)
        files = [*map(str, end)]
        terminal.result({"study": loaded.name, "plot": loaded.end.plot, "files": files}, *files)


def _search(request: StudyRequest, terminal: Terminal, *, dry_run: bool) -> None:
    from layerprobe.workflow.study.search import plan_search, run_search
    from layerprobe.workflow.study.search_tables import plan_texts, plan_values, search_values, text_tables

    if dry_run:
        plan = plan_search(request, terminal)
        terminal.result(plan_values(plan), *plan_texts(plan))
        return
    table = run_search(request, terminal)
    terminal.result(search_values(table), *text_tables(table))
