"""layerprobe compare."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output
from layerprobe.cli.output import Terminal
from layerprobe.cli.requests import with_options
from layerprobe.system.errors import RecipeError
from layerprobe.system.options import Flag
from layerprobe.workflow.compare.request import CompareRequest

if TYPE_CHECKING:
    from layerprobe.tables.tables import TextTable

_LAYER = "[RUN[#epoch]:]LAYER[@pool][/post-processing][~similarity] or RUN[#epoch]"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(compare))


def compare(
    *,
    a: Annotated[
        str | None, typer.Argument(metavar="FIRST", help=f"{_LAYER}; the layer may be a glob.", show_default=False)
    ] = None,
    b: Annotated[
        str | None, typer.Argument(metavar="SECOND", help="Layer to compare FIRST with, written likewise.")
    ] = None,
    request: partial[CompareRequest],
    paper: Annotated[
        str | None, Flag("Compare run FIRST with a paper's table: vo-hays-2019:table3.", metavar="PAPER:TABLE")
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Compare two layers, or a run with a table of a paper.

    Defaults: the run used last, its last epoch, the embedding, the run's similarity.
    """
    if paper is not None:
        if b is not None or request(cache, "", "") != CompareRequest(cache, "", ""):
            raise RecipeError(
                "--paper has the table's own metrics and splits", fix=f"Write layerprobe compare RUN --paper {paper}"
            )
        _with_paper(output.terminal(), cache, a, paper)
        return
    if a is None or b is None:
        raise RecipeError("compare takes two layers", fix="Name both, or a paper's table by --paper PAPER:TABLE")
    from layerprobe.values.layers import is_glob
    from layerprobe.workflow.compare.compare import compare as compare_layers
    from layerprobe.workflow.compare.comparison import comparison_table, sentence

    comparisons = compare_layers(request(cache, a, b))
    first = comparisons[0]
    if is_glob(a) or is_glob(b):
        values = {"comparisons": first.data.comparisons, "results": comparisons}
        items: tuple[TextTable | str, ...] = (comparison_table(comparisons),)
    else:
        values, items = first.as_json(), (sentence(first), *first.notes)
    output.terminal().result({"schema": 3, **values} if first.seeds else values, *items)


def _with_paper(terminal: Terminal, cache: Path, run: str | None, reference: str) -> None:
    """Show a run, by default the one used last, beside a table of a paper."""
    from layerprobe.papers.tables import find_table
    from layerprobe.workflow.run.references import find_reference
    from layerprobe.workflow.run.runs import find_run

    table = find_table(reference)
    run = run or find_run(cache, None).name
    find_reference(cache, run)

    from layerprobe.workflow.compare.paper import compare_with_paper, paper_tables, paper_values

    comparison = compare_with_paper(cache, run, table)
    terminal.result(paper_values(comparison), *paper_tables(comparison))
