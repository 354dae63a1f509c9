"""layerprobe choose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.cli.options import (
    DEFAULT_CACHE,
    Cache,
    Debug,
    Device,
    Json,
    Labels,
    Model,
    ModelData,
    ModelRun,
    ModelSettings,
    ModelWeights,
    Quiet,
    Unseen,
    Workers,
    feature_files,
    split_names,
)
from layerprobe.cli.output import Terminal
from layerprobe.cli.probe import frozen_request, require_absent
from layerprobe.system.errors import RecipeError

if TYPE_CHECKING:
    from layerprobe.values.choice import Choice
    from layerprobe.workflow.export.writing import Written


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(choose)


def choose(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN ... | FEATURES]",
            help="Runs (default: the most recent), or a file of features: .npz, .npy, .pt or .h5.",
        ),
    ] = None,
    model: Model = None,
    weights: ModelWeights = None,
    data: ModelData = None,
    settings: ModelSettings = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Random seed of --weights none, or of the folds of FEATURES.")
    ] = None,
    name: ModelRun = None,
    labels: Labels = None,
    unseen: Unseen = False,
    epochs: Annotated[
        str, typer.Option("--epochs", metavar="all|last|0,5", help="Candidate epochs; all: every probed one.")
    ] = "all",
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="L,...", help="Candidates, such as pool5.*,fc6/*; default: all probed ones."),
    ] = None,
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="The metric that decides: R@1, R@10, MAP@R, mAP ...")
    ] = "R@1",
    within: Annotated[
        float, typer.Option("--within", metavar="POINTS", help="Points of the metric that do not matter.")
    ] = 1.0,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Also export what is chosen; of FEATURES the map alone."),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            "--index", metavar="KIND,...", help="Also compare indexes of the choice: flat, ivfpq, hnsw (by faiss)."
        ),
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    cache: Cache = DEFAULT_CACHE,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="COLUMN", help="Resample the values of a column (parent: folders), not classes."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also show the best on test, shares of resamples, what was left out.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Choose the layer to ship without looking at the test classes.

    It says whether to switch from the embedding, to which layer, and how sure that is. Where it cannot be told, the
    embedding is kept.

    Candidates are all probed layers, epochs, pools and reductions. The best mean is preferred; within half of
    a standard error of it MAP@R decides. Means are those on validation classes; without these on training classes that
    the network has not seen; else on test classes by cross-fitting. Runs of one experiment are averaged.

    With --model, a pretrained model is first measured on the images of --data. FEATURES needs no model: a .npz, .pt or
    .h5 has `labels` (N,), optionally `split` and `group`, and an array (N, D) for each layer; a .npy is one layer.
    """
    from layerprobe.values.indexes import index_kinds
    from layerprobe.workflow.choose.request import ChooseRequest
    from layerprobe.workflow.export.request import ExportRequest
    from layerprobe.workflow.run.runs import find_run
    from layerprobe.workflow.run.seen import epochs_to_choose_among, split_to_choose_on, state_seen

    terminal = Terminal(as_json, quiet)
    given: dict[str, object] = {"--weights": weights, "--data": data, "--set": settings, "--run": name}
    kinds = index_kinds(split_names(index) or ())
    request = ChooseRequest(epochs, within, device, split_names(layers) or (), metric, kinds, cluster)
    to_export = None if export is None else ExportRequest(export)
    if to_export is not None:
        to_export.require_ready()
    files = feature_files(runs or [], labels)
    found, frozen = [], None
    if model is not None:
        given |= {"--seed": seed}
        run = runs[0] if runs else None
        frozen = frozen_request(model, run, given, unseen=unseen, cache=cache, device=device, workers=workers)
        frozen.require_ready()
    else:
        require_absent(given)
        if files and epochs != "all":
            raise RecipeError(f"--epochs {epochs}: {files[0]} has one epoch only", fix="Leave it out, or name a run")
        if not files:
            require_absent({"--seed": seed})
            found = [find_run(cache, word) for word in dict.fromkeys(runs)] if runs else [find_run(cache, None)]
        for each in found:
            if unseen:
                state_seen(each, seen=False)
            record = each.read()
            split_to_choose_on(each, record, epochs_to_choose_among(each, record, epochs))

    # All that imports torch comes after what can be refused without it.
    from layerprobe.ranking.faiss_search import import_faiss
    from layerprobe.workflow.choose.next_step import next_step

    if kinds:
        import_faiss()  # fails before the work, not after it

    if files:
        from layerprobe.workflow.choose.choose_features import choose_file
        from layerprobe.workflow.choose.given_files import read_given

        given_features = read_given(*files, labels=labels, cluster=cluster)
        choice = choose_file(
            given_features,
            seen=not unseen,
            within=within,
            metric=metric,
            layers=request.layers,
            indexes=kinds,
            seed=seed or 0,
            listener=terminal,
        )
        if to_export is None:
            _show(terminal, choice, full=full)
            return
        from layerprobe.workflow.export.export_features import export_features

        ranked = choice.chosen.ranked
        map_of = partial(export_features, given_features, ranked, to_export, terminal, seen=not unseen, seed=seed or 0)
        _show(terminal, choice, map_of, full=full)
        return
    if to_export is not None:
        from layerprobe.workflow.export.export_run import export_run, require_exportable
        from layerprobe.workflow.export.layer_of_run import layer_of_choice

        for each in found:
            require_exportable(each.read(), each, to_export)
    if frozen is not None:
        from layerprobe.workflow.choose.choose_model import choose_model

        run_of_model, choice = choose_model(frozen, request, terminal)
        found = [run_of_model]
    else:
        from layerprobe.workflow.choose.choose_once import choose_once

        if not runs:
            terminal.say(f"run {found[0].name}")
        choice = choose_once(found, request, terminal)
    if to_export is None:
        _show(terminal, choice, full=full)
    else:
        _show(terminal, choice, lambda: export_run(layer_of_choice(choice, found), to_export, terminal), full=full)
    chosen = next(run for run in found if choice.run in (run.name, run.read().experiment))
    if chosen.read().from_python:
        terminal.say(f"next: {chosen.command('summary')}")
    elif to_export is None:
        terminal.say(next_step(choice, chosen))


def _show(
    terminal: Terminal, choice: Choice, export: Callable[[], Written] | None = None, *, full: bool = False
) -> None:
    """Print a choice with its indexes, and then what was exported of it; with --json in one object."""
    from layerprobe.values.choice import choice_lines
    from layerprobe.workflow.choose.index_table import index_table

    indexes = [] if choice.indexes is None else [index_table(choice.indexes)]
    if export is None or not terminal.as_json:
        terminal.result(choice, *choice_lines(choice, full=full), *indexes)
    if export is not None:
        from layerprobe.workflow.export.export_text import export_lines

        written = export()
        terminal.result({**choice.as_json(), "export": written}, *export_lines(written))
