"""layerprobe train."""

from __future__ import annotations

from typing import Annotated

import typer

from layerprobe.cli.options import (
    DEFAULT_CACHE,
    Cache,
    Debug,
    Device,
    DryRun,
    Json,
    Quiet,
    RunModel,
    Workers,
    split_names,
)
from layerprobe.cli.output import Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a .toml file.")],
    data: Annotated[
        str | None, typer.Option("--data", metavar="NAME[:ROOT]", help="Train on another data set.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key of the recipe; repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Override train.seed of the recipe.")] = None,
    device: Device = "auto",
    workers: Workers = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Name of the run (default: from the recipe).")
    ] = None,
    model: RunModel = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; an existing run of that name is kept as NAME~1.")
    ] = False,
    probe: Annotated[
        str | None, typer.Option("--probe", metavar="LAYERS", help="Probe these layers after every epoch.")
    ] = None,
    dry_run: DryRun = False,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Train a recipe, or resume its run."""
    from layerprobe.recipe.overrides import Overrides
    from layerprobe.recipe.recipe import is_changed, load_recipe
    from layerprobe.system.files import require_writable

    if not dry_run:
        require_writable(cache)
    overrides = Overrides(data, tuple(settings or ()), seed)
    loaded = load_recipe(recipe, overrides, model)

    from layerprobe.workflow.train.building import TrainRequest
    from layerprobe.workflow.train.ensemble import estimate_training_of, train_any
    from layerprobe.workflow.train.plan import rates_apart

    terminal = Terminal(as_json, quiet)
    if overrides.flags("train", ("learning_rate",)):
        for text in rates_apart(loaded):
            terminal.say(f"note: {text}")
    request = TrainRequest(
        recipe=loaded,
        overridden=bool(overrides) and is_changed(recipe, loaded),
        cache=cache,
        run=run,
        device=device,
        workers=workers,
        fresh=fresh,
        probe=split_names(probe),
    )
    if dry_run:
        terminal.estimate(request.target().name, estimate_training_of(request))
        return
    trained = train_any(request, terminal)
    record = trained.read()
    values = {"run": trained.name, "folder": str(trained.folder)}
    terminal.result(values | {key: getattr(record, key) for key in ("state", "epochs_done")}, str(trained.folder))
    terminal.say(f"next: {trained.command('probe')}")
