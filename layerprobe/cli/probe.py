"""layerprobe probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layerprobe.cli.formats import chosen_format
from layerprobe.cli.options import (
    DEFAULT_CACHE,
    Cache,
    Debug,
    Device,
    DryRun,
    Format,
    Json,
    Model,
    ModelData,
    ModelRun,
    ModelSettings,
    ModelWeights,
    Quiet,
    RunName,
    Unseen,
    Workers,
    byte_count,
    split_names,
)
from layerprobe.cli.output import Terminal, error_values, show_error
from layerprobe.system.errors import RecipeError

if TYPE_CHECKING:
    from layerprobe.values.scores import Score
    from layerprobe.workflow.run.runs import Run
    from layerprobe.workflow.train.frozen_request import FrozenRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(probe)


def probe(
    run: RunName = None,
    model: Model = None,
    weights: ModelWeights = None,
    data: ModelData = None,
    settings: ModelSettings = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Random seed of --weights none.")] = None,
    name: ModelRun = None,
    unseen: Unseen = False,
    layers: Annotated[
        str | None, typer.Option("--layers", metavar="L,...", help="Layers to probe: names, globs or module paths.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="P,...", help="Pooling: max, avg, gem, grid:s, cls or cls+avg."),
    ] = None,
    epochs: Annotated[str, typer.Option("--epochs", metavar="all|last|best|0,5", help="Epochs to probe.")] = "all",
    splits: Annotated[
        str | None, typer.Option("--splits", metavar="S,...", help="Splits to probe: train, validation or test.")
    ] = None,
    reduce: Annotated[
        str | None,
        typer.Option("--reduce", metavar="R,...", help="Reductions of the features, such as none,l2+pca:64+l2."),
    ] = None,
    fit: Annotated[
        str, typer.Option("--fit", metavar="train|gallery", help="Split on which reductions are fitted.")
    ] = "train",
    equal_dim: Annotated[
        int | None,
        typer.Option(
            "--equal-dim",
            metavar="D",
            min=1,
            help="Also reduce each layer to D dimensions by PCA, half-whitening and random projection.",
        ),
    ] = None,
    similarity: Annotated[
        str | None, typer.Option("--similarity", metavar="S", help="Similarity: cosine, euclidean or dot.")
    ] = None,
    k: Annotated[str | None, typer.Option("--k", metavar="1,2,4", help="K of Recall@K.")] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="M,...", help="Further metrics: MAP@R, mAP, MRR, NMI ...")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="COLUMN", help="Resample the values of a column (parent: folders), not classes."
        ),
    ] = None,
    gallery_size: Annotated[
        int | None,
        typer.Option("--gallery-size", metavar="N", help="Also R@K in a gallery thinned to N items."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Memory limit of ranking, such as 4GB.")
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    full: Annotated[
        bool, typer.Option("--full", help="Show all scores of the last epoch, and what `summary` shows.")
    ] = False,
    dry_run: DryRun = False,
    form: Format = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Measure every layer's recall on training and unseen classes.

    Defaults of layers, pools, reductions, similarity, K and metrics come from [probe] of the recipe. It ends with one
    table of the last epoch; --full shows everything.

    With --model and no RUN, a pretrained model is measured on the images of --data.
    """
    from layerprobe.workflow.probe.request import ProbeRequest
    from layerprobe.workflow.run.runs import find_run, require_free

    terminal = Terminal(as_json, quiet, chosen_format(form, as_json=as_json))
    request = ProbeRequest(
        layers=split_names(layers),
        pools=split_names(pool),
        epochs=epochs,
        splits=split_names(splits),
        similarity=similarity,
        ks=_counts(k),
        metrics=split_names(metrics),
        device=device,
        workers=workers,
        memory=byte_count(memory),
        cluster=cluster,
        gallery_size=gallery_size,
        reduce=split_names(reduce),
        fit=fit,
        equal_dim=equal_dim,
        model=model if run is not None else None,
    )
    given = {"--weights": weights, "--data": data, "--set": settings, "--seed": seed, "--run": name}
    frozen: FrozenRequest | None = None
    if model is None or run is not None:
        require_absent(given)
        found = find_run(cache, run)
        if not dry_run:
            require_free(found)
    else:
        frozen = frozen_request(model, run, given, unseen=unseen, cache=cache, device=device, workers=workers)
    if frozen is not None and not dry_run:
        frozen.require_ready()

    # All that takes long to import comes after what can be refused without it.
    from layerprobe.summary.table import summary_tables, summary_values
    from layerprobe.values.label_free import agreements
    from layerprobe.values.metric_names import is_recall
    from layerprobe.workflow.run.damage import PartlyMeasuredError, PartlyReducedError
    from layerprobe.workflow.run.facts import overview, score_tables
    from layerprobe.workflow.run.seen import state_seen
    from layerprobe.workflow.summary.summary import stored_summary
    from layerprobe.workflow.train.ensemble import estimate_probe_of, probe_any

    if frozen is not None:
        from layerprobe.workflow.train.frozen import estimate_frozen, frozen_run

        if dry_run:
            terminal.estimate(*estimate_frozen(frozen, request))
            return
        found = frozen_run(frozen, terminal)
    elif unseen and not dry_run:
        state_seen(found, seen=False)
    if run is None:
        terminal.say(f"run {found.name}")
    if dry_run:
        terminal.estimate(found.name, estimate_probe_of(found, request))
        return
    damaged: PartlyMeasuredError | PartlyReducedError | None = None
    try:
        scores = probe_any(found, request, terminal)
    except (PartlyMeasuredError, PartlyReducedError) as error:
        damaged, scores = error, error.scores
        if not scores:
            raise
    values: dict[str, object] = {"run": found.name, "scores": scores, "label_free": agreements(scores)}
    tables = score_tables(found, scores) if full else [overview(found, scores)]
    if full or as_json:
        summary = stored_summary(found, cluster)
        values["summary"] = summary_values(summary)
        tables = [*tables, *(summary_tables(summary) if full else ())]
    damage = {} if damaged is None else {"error": error_values(damaged)}
    terminal.result(values | damage, *tables)
    commands = [found.command(*command.split()) for command in _next(found, scores)]
    terminal.say(f"{len(scores)} scores in {found.scores_file}; next: {' or '.join(commands)}")
    without = [score for score in scores if score.value is None]
    if without:
        terminal.say(f"without a value: {len(without)} of these; the notes say why")
    if damaged is not None:
        if not as_json:
            show_error(damaged, as_json=False)
        raise typer.Exit(damaged.exit_code)
    # A further metric may not be defined on features that are finite.
    if any(is_recall(score.metric) for score in without):
        raise typer.Exit(4)


def _next(run: Run, scores: Sequence[Score]) -> list[str]:
    """The commands that fit next."""
    if len({score.epoch for score in scores}) > 1:
        return ["plot curves"]
    record = run.read()
    if not record.recipe["train"]["epochs"] or "validation" in record.manifests:
        return ["choose", "report"]
    return ["plot layers", "report"]


def require_absent(given: Mapping[str, object]) -> None:
    """Refuse flags for a model without --model."""
    for flag, value in given.items():
        if value is not None:
            fix = f"Add --model SOURCE and leave RUN out, or leave {flag} out"
            raise RecipeError(f"{flag} is for a model that is named by --model, without RUN", fix=fix)


def frozen_request(
    model: str, run: str | None, given: Mapping[str, Any], *, unseen: bool, **where: Any
) -> FrozenRequest:
    """The request for a frozen model."""
    from layerprobe.workflow.train.frozen_request import FrozenRequest

    if run is not None:
        raise RecipeError(f"{run} and --model {model}: one of them", fix=f"Name the model's run by --run {run}")
    if given["--data"] is None:
        raise RecipeError(f"--model {model} needs images", fix="Add --data, such as --data folder:DIR")
    return FrozenRequest(
        model,
        given["--data"],
        weights=given["--weights"] or "model",
        settings=(*(given["--set"] or ()), *(["data.seen=false"] if unseen else [])),
        seed=given["--seed"] or 0,
        run=given["--run"],
        **where,
    )


def _counts(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = split_names(text) or ()
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise RecipeError(f"--k {text}: not whole numbers above 0", fix="Write them like 1,2,4")
    return tuple(dict.fromkeys(int(part) for part in parts))
