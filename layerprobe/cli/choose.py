"""layerprobe choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.cli.options import (
    DEFAULT_CACHE,
    Cache,
    Format,
    Labels,
    ModelsOptions,
    Output,
    Unseen,
    feature_files,
)
from layerprobe.cli.output import Terminal
from layerprobe.cli.requests import with_options
from layerprobe.system.errors import RecipeError
from layerprobe.system.options import Flag, Workers
from layerprobe.workflow.choose.request import ChooseRequest

if TYPE_CHECKING:
    from layerprobe.values.choice import Choice
    from layerprobe.workflow.export.request import ExportRequest
    from layerprobe.workflow.export.writing import Written
    from layerprobe.workflow.train.frozen_request import FrozenRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    order = "layers metric within budget export indexes device workers cache cluster full"
    app.command()(with_options(choose, "model weights models data settings seed run labels unseen", order))


def choose(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN ... | FEATURES]",
            help="Runs (default: the most recent), or a file of features: .npz, .npy, .pt or .h5.",
        ),
    ] = None,
    model: ModelsOptions,
    seed: Annotated[
        int | None, Flag("Random seed of --weights none, or of the folds of FEATURES.", metavar="N", min=0)
    ] = None,
    labels: Labels = None,
    unseen: Unseen = False,
    request: ChooseRequest,
    export: Annotated[
        Path | None, Flag("Also export what is chosen; of FEATURES the map alone.", metavar="DIR")
    ] = None,
    workers: Workers = None,
    cache: Cache = DEFAULT_CACHE,
    full: Annotated[bool, Flag("Also show the best on test, shares of resamples, what was left out.")] = False,
    form: Format = None,
    output: Output,
) -> None:
    """Choose the layer to deploy without looking at the test classes.

    It says whether to switch from the embedding, to which layer, and how sure that is. Where that is
    inconclusive, the embedding is kept.

    Candidates are all probed layers, epochs, pools and post-processings. The best mean is preferred; within half
    of a standard error of it MAP@R decides. Means are those on validation classes; without these on training classes
    that the network has not seen; else on test classes by cross-fitting. Runs of one experiment are averaged.

    With --model, a pretrained model is first measured on the images of --data; several, or those of --models, become
    one table that says which of them differ. FEATURES needs no model: a .npz, .pt or
    .h5 has `labels` (N,), optionally `split` and `group`, and an array (N, D) for each layer; a .npy is one layer.
    """
    from layerprobe.workflow.export.request import ExportRequest

    terminal, to_export = output.terminal(form), None if export is None else ExportRequest(export)
    models = model.by_model()
    if len(models) > 1:
        _require_single({"--export": export, "--index": request.indexes, "--full": full})
    elif form is not None:
        raise RecipeError(f"--format {form}: a single choice is no table", fix="Name several models, or use --json")
    if to_export is not None:
        to_export.require_ready()
    files, frozen = feature_files(names or [], labels), []
    if models[0].model is None:
        models[0].require_absent(seed=not files)
    else:
        others = {"cache": cache, "device": request.device, "workers": workers}
        frozen = [single.request(names[0] if names else None, unseen=unseen, **others) for single in models]
        for frozen_model in frozen:
            frozen_model.require_ready()
    if len(frozen) > 1:
        _choose_models(terminal, frozen, request, cache)
        return
    if files:
        _choose_features(terminal, files, labels, request, to_export, seen=not unseen, seed=seed or 0, full=full)
    else:
        single = frozen[0] if frozen else None
        _choose_runs(terminal, names or [], single, request, to_export, cache=cache, unseen=unseen, full=full)


def _require_single(flags: Mapping[str, object]) -> None:
    """Refuse flags for a single choice."""
    for flag, value in flags.items():
        if value:
            raise RecipeError(
                f"{flag} is for a single model", fix=f"Leave {flag} out, then name one of the runs with it"
            )


def _choose_models(terminal: Terminal, requests: Sequence[FrozenRequest], request: ChooseRequest, cache: Path) -> None:
    """Choose a layer of each of several models, and show them in one table."""
    from layerprobe.workflow.choose.choose_models import choose_models
    from layerprobe.workflow.choose.models_text import models_table, report_step

    table = choose_models(requests, request, terminal)
    terminal.result(table, models_table(table))
    terminal.say(report_step(table, cache))


def _choose_features(
    terminal: Terminal,
    files: Sequence[Path],
    labels: Path | None,
    request: ChooseRequest,
    to_export: ExportRequest | None,
    *,
    seen: bool,
    seed: int,
    full: bool,
) -> None:
    """Choose among the features of a file."""
    if request.epochs != "all":
        problem = f"--epochs {request.epochs}: {files[0]} has one epoch only"
        raise RecipeError(problem, fix="Leave it out, or name a run")
    _require_faiss(request)
    from layerprobe.workflow.choose.choose_features import choose_file
    from layerprobe.workflow.choose.feature_files import read_user_features

    features = read_user_features(*files, labels=labels, cluster=request.cluster)
    choice = choose_file(features, request, seen=seen, seed=seed, listener=terminal)
    if to_export is None:
        _show(terminal, choice, full=full)
        return
    from layerprobe.workflow.export.export_features import export_features

    ranked = choice.chosen.ranked
    map_of = partial(export_features, features, ranked, to_export, terminal, seen=seen, seed=seed)
    _show(terminal, choice, map_of, full=full)


def _choose_runs(
    terminal: Terminal,
    names: Sequence[str],
    frozen: FrozenRequest | None,
    request: ChooseRequest,
    to_export: ExportRequest | None,
    *,
    cache: Path,
    unseen: bool,
    full: bool,
) -> None:
    """Choose among runs, or the layers of a model, and say what to do next."""
    from layerprobe.workflow.run.runs import find_run
    from layerprobe.workflow.run.seen import epochs_to_choose_among, split_to_choose_on, state_seen

    runs = []
    if frozen is None:
        runs = [find_run(cache, name) for name in dict.fromkeys(names)] if names else [find_run(cache, None)]
    for run in runs:
        if unseen:
            state_seen(run, seen=False)
        record = run.read()
        split_to_choose_on(run, record, epochs_to_choose_among(run, record, request.epochs))
    _require_faiss(request)
    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.choose.choose_once import choose_model, choose_once
    from layerprobe.workflow.choose.choose_text import next_step

    if to_export is not None:
        from layerprobe.workflow.export.export_run import export_run, layer_of_choice, require_exportable

        for run in runs:
            require_exportable(run.read(), run, to_export)
    if frozen is not None:
        run, choice = choose_model(frozen, request, terminal)
        runs = [run]
    else:
        if not names:
            terminal.say(f"run {runs[0].name}")
        choice = choose_once(runs, request, terminal)
    if to_export is None:
        _show(terminal, choice, full=full)
    else:
        _show(terminal, choice, lambda: export_run(layer_of_choice(choice, runs), to_export, terminal), full=full)
    chosen = next(run for run in runs if choice.run in (run.name, run.read().experiment))
    if chosen.read().from_python:
        terminal.say(f"next: {chosen.command('summary')}")
    elif to_export is None:
        terminal.say(next_step(choice, chosen))


def _require_faiss(request: ChooseRequest) -> None:
    """Fail before the work, not after it, where indexes cannot be compared."""
    if request.indexes:
        from layerprobe.ranking.faiss_search import import_faiss

        import_faiss()


def _show(
    terminal: Terminal, choice: Choice, export: Callable[[], Written] | None = None, *, full: bool = False
) -> None:
    """Print a choice with its indexes, and then what was exported of it; with --json in one object."""
    from layerprobe.values.choice import choice_lines
    from layerprobe.workflow.choose.choose_text import index_table

    indexes = [] if choice.indexes is None else [index_table(choice.indexes)]
    if export is None or not terminal.as_json:
        terminal.result(choice, *choice_lines(choice, full=full), *indexes)
    if export is not None:
        from layerprobe.workflow.export.writing import export_lines

        written = export()
        terminal.result({**choice.as_json(), "export": written}, *export_lines(written))
