"""layerprobe export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.cli.options import (
    DEFAULT_CACHE,
    Cache,
    Debug,
    Json,
    Labels,
    Quiet,
    RunModel,
    RunOrFeatures,
    feature_files,
    split_names,
)
from layerprobe.cli.output import Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)


def export(
    run: RunOrFeatures = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder to make.")] = None,
    layer: Annotated[
        str | None,
        typer.Option("--layer", metavar="L[@P][/R]", help="Ranked layer to export (default: what choose says)."),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option("--epoch", min=0, help="Epoch (default: the last measured, or the choice's).")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", metavar="npz,pt2,onnx", help="Files: the map, the network in torch or ONNX.")
    ] = "npz,pt2",
    index: Annotated[
        str | None,
        typer.Option("--index", metavar="flat|ivfpq|hnsw", help="Also write a faiss index of the test images."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an export that is there.")] = False,
    model: RunModel = None,
    labels: Labels = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Export a layer and its post-processing as files.

    They need no layerprobe. The network is cut after the layer; inversion, normalisation, pooling, reduction and L2 are
    inside. Images are uint8 (B, H, W, C), features float32 (B, D) or packed bits. Before the folder gets its name, its
    files are compared with the probe's features on 64 images. Of FEATURES the map alone is exported.
    """
    from layerprobe.system.errors import RecipeError
    from layerprobe.values.indexes import index_kinds
    from layerprobe.workflow.export.request import ExportRequest
    from layerprobe.workflow.run.runs import find_run

    terminal = Terminal(as_json, quiet)
    if out is None:
        raise RecipeError("export: no folder is named", fix="Add --out DIR")
    (kind,) = (None,) if index is None else index_kinds([index])
    request = ExportRequest(
        out, split_names(formats) or (), force=force, layer=layer, epoch=epoch, model=model, index=kind
    )
    request.require_ready()
    if files := feature_files([run] if run else [], labels):
        from layerprobe.workflow.choose.given_files import read_given
        from layerprobe.workflow.export.export_features import export_features, ranked_to_export
        from layerprobe.workflow.export.export_text import export_lines

        given = read_given(*files, labels=labels)
        ranked = ranked_to_export(given, request, terminal)
        written = export_features(given, ranked, request, terminal, seen=True, seed=0)
        terminal.result(written, *export_lines(written))
        return
    found = find_run(cache, run)
    if run is None:
        terminal.say(f"run {found.name}")

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.export.export_run import export_run, layer_to_export
    from layerprobe.workflow.export.export_text import export_lines

    written = export_run(layer_to_export(found, request, terminal), request, terminal)
    terminal.result(written, *export_lines(written))
