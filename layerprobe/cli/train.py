"""layerprobe train."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, DryRun, Log, Output
from layerprobe.cli.requests import with_options
from layerprobe.cli.tracking import require_trackers, tracking_of
from layerprobe.recipe.overrides import Overrides
from layerprobe.system.launch import Launch
from layerprobe.system.options import RunModel
from layerprobe.workflow.train.request import TrainRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(train, "device workers run model fresh"))


def train(
    *,
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a .toml file.")],
    overrides: Overrides,
    request: partial[TrainRequest],
    model: RunModel = None,
    log: Log = (),
    dry_run: DryRun = False,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Train a recipe, or resume its run."""
    from layerprobe.recipe.recipe import is_changed, load_recipe
    from layerprobe.system.files import require_writable

    if not dry_run:
        require_writable(cache)
    require_trackers(log)
    loaded = load_recipe(recipe, overrides, model)

    from layerprobe.workflow.train.building import rates_apart
    from layerprobe.workflow.train.train import estimate_training, train_any

    terminal = output.terminal()
    if overrides.flags("train", ("learning_rate",)):
        for text in rates_apart(loaded):
            terminal.say(f"note: {text}")
    overridden = bool(overrides) and is_changed(recipe, loaded)
    training = request(recipe=loaded, overridden=overridden, cache=cache, launch=context.ensure_object(Launch))
    if dry_run:
        terminal.estimate(training.target().name, estimate_training(training))
        return
    trained = train_any(training, terminal, tracking_of(log, terminal))
    record = trained.read()
    values = {"run": trained.name, "folder": str(trained.folder)}
    terminal.result(values | {key: getattr(record, key) for key in ("state", "epochs_done")}, str(trained.folder))
    terminal.say(f"next: {trained.command('probe')}")
