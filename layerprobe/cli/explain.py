"""layerprobe explain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Debug, Json, Quiet, RunModel, RunName, split_names
from layerprobe.cli.output import Terminal
from layerprobe.cli.streams import printed_apart


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explain)


def explain(
    run: RunName = None,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            metavar="L,...",
            help="Layers: LAYER[@pool][/reduction] or a glob (default: the stored choice and the embedding).",
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option("--query", metavar="ID", help="Image to explain (default: as plot panels chooses)."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="TEXT",
            help="Rule for choosing the query: 'LAYER right, LAYER wrong', worst, random or 'class NAME'.",
        ),
    ] = None,
    model: RunModel = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the figure to this .png, .pdf or .svg file, or to - (stdout).")
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Show which pixels make an image and its neighbour similar.

    The neighbour is the nearest one by each layer, which explains it by integrated gradients and Grad-CAM.
    Without --out the figure is kept with the run, where report shows it.
    """
    from layerprobe.system.errors import RecipeError
    from layerprobe.workflow.run.outputs import require_output
    from layerprobe.workflow.run.runs import find_run

    terminal = Terminal(as_json, quiet)
    found = find_run(cache, run)
    if run is None:
        terminal.say(f"run {found.name}")
    asked = split_names(layers)
    if query is not None and where is not None:
        raise RecipeError("--query and --where exclude each other", fix="Omit one of them")
    if out is not None:
        require_output(out, "png", "pdf", "svg")

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.explain.explain import ExplainRequest
    from layerprobe.workflow.explain.explain import explain as explained
    from layerprobe.workflow.explain.explain_text import explanation_table, explanation_values

    made, path = explained(ExplainRequest(found, asked, query, where, out, model), terminal)
    with printed_apart(out):
        terminal.result({**explanation_values(made), "file": str(path)}, explanation_table(made), str(path))
