"""layerprobe choose."""

from __future__ import annotations

from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Debug, Device, Json, Quiet, cache_flag
from layerprobe.cli.output import Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(choose)


def choose(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN ...]", help="Runs to choose among (default: the most recent).")
    ] = None,
    epochs: Annotated[
        str, typer.Option("--epochs", metavar="all|last|0,5", help="Epochs to choose among; all: those ranked.")
    ] = "all",
    within: Annotated[
        float, typer.Option("--within", metavar="POINTS", help="How much worse than the best a cheaper one may be.")
    ] = 1.0,
    device: Device = "auto",
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Say which layer to ship, chosen without the test classes.

    Among all layers, epochs, pools and reductions that are ranked, the cheapest that is not worse than the best. It is
    chosen on validation classes; on the training classes where the network has not seen them; and where there are
    none, on test, cross-fitted. Runs of one experiment count as one, by their mean.
    """
    from layerprobe.records import FROM_PYTHON
    from layerprobe.runs import find_run
    from layerprobe.workflow.choice_text import choice_lines, choice_values, next_step
    from layerprobe.workflow.choose import ChooseRequest, choose_runs

    terminal = Terminal(as_json, quiet)
    found = [find_run(cache, name) for name in dict.fromkeys(runs)] if runs else [find_run(cache, None)]
    if not runs:
        terminal.say(f"run {found[0].name}")
    choice = choose_runs(found, ChooseRequest(epochs, within, device), terminal)
    terminal.result(choice_values(choice), *choice_lines(choice))
    having = next(run for run in found if choice.run in (run.name, run.read()["experiment"]))
    if having.read().get(FROM_PYTHON):
        terminal.say(f"next: layerprobe summary {having.name}{cache_flag(cache)}")
    else:
        terminal.say(f"{next_step(choice, having.name)}{cache_flag(cache)}")
