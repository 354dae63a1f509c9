"""layerprobe export."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Labels, Output, RunOrFeatures, feature_files
from layerprobe.cli.requests import with_options
from layerprobe.system.errors import RecipeError
from layerprobe.system.options import Flag
from layerprobe.workflow.export.request import ExportRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(export, "out layer epoch formats index force model"))


def export(
    *,
    name: RunOrFeatures = None,
    out: Annotated[Path | None, Flag("Folder to make.", metavar="DIR")] = None,
    request: partial[ExportRequest],
    labels: Labels = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Export a layer and its post-processing as files.

    They need no layerprobe. The network is cut after the layer; inversion, normalisation, pooling, post-processing and
    L2 are inside. Images are uint8 (B, H, W, C), features float32, float16 or int8 (B, D), or packed bits. Before the
    folder gets its name, its files are compared with the probe's features on 64 images. Of FEATURES the map alone is
    exported.
    """
    from layerprobe.workflow.run.runs import find_run

    terminal = output.terminal()
    if out is None:
        raise RecipeError("export: no folder is named", fix="Add --out DIR")
    exporting = request(out)
    exporting.require_ready()
    files = feature_files([name] if name else [], labels)
    run = None if files else find_run(cache, name)
    if run is not None and name is None:
        terminal.say(f"run {run.name}")

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.export.writing import export_lines

    if run is not None:
        from layerprobe.workflow.export.export_run import export_run, layer_to_export

        written = export_run(layer_to_export(run, exporting, terminal), exporting, terminal)
    else:
        from layerprobe.workflow.choose.feature_files import read_user_features
        from layerprobe.workflow.export.export_features import export_features, ranked_to_export

        features = read_user_features(*files, labels=labels)
        ranked = ranked_to_export(features, exporting, terminal)
        written = export_features(features, ranked, exporting, terminal, seen=True, seed=0)
    terminal.result(written, *export_lines(written))
