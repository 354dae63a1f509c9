"""layerprobe features."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output, RunName
from layerprobe.cli.requests import with_options
from layerprobe.cli.streams import printed_apart
from layerprobe.system.errors import RecipeError
from layerprobe.system.options import Flag
from layerprobe.workflow.features.request import FeaturesRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(features, "layers split epoch out"))


def features(
    *,
    name: RunName = None,
    request: partial[FeaturesRequest],
    out: Annotated[
        Path | None, Flag("File to write: .parquet, .npz or .csv, or - (csv to stdout).", metavar="FILE")
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Write features, classes and nearest neighbours for other tools.

    A row for each image, with data.queries for each that is searched for: id, path, class, and for each layer its
    vector, the id of the nearest neighbour, and whether that is right. Several layers go into .parquet and .npz.
    """
    from layerprobe.workflow.run.runs import find_run

    terminal = output.terminal()
    if out is None:
        raise RecipeError("features: no file is named", fix="Add --out FILE.parquet, .npz or .csv")
    run = find_run(cache, name)
    if name is None:
        terminal.say(f"run {run.name}")
    asked = request(run, out)

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.features.features import write_features

    table = write_features(asked)
    dims = {layer.name: layer.dim for layer in table.layers}
    values = {"run": run.name, "epoch": table.epoch, "split": asked.split, "images": len(table.ids), "layers": dims}
    shown = ", ".join(f"{layer} ({dim})" for layer, dim in dims.items())
    with printed_apart(out):
        terminal.result({**values, "file": str(out)}, f"{out}: {len(table.ids)} images, {shown}")
