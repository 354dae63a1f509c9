"""layerprobe demo."""

from __future__ import annotations

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Debug, Json, Quiet, cache_flag
from layerprobe.cli.output import Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Train, probe and plot a small network in a few minutes.

    The images are drawn by layerprobe; nothing is downloaded.
    """
    from layerprobe.workflow.manage.demo import demo as run_demo
    from layerprobe.workflow.run.facts import score_tables

    terminal = Terminal(as_json, quiet)
    shown = run_demo(cache, terminal)
    values = {
        "run": shown.run.name,
        "finding": shown.finding,
        "plots": [str(path) for path in shown.plots],
        "scores": shown.scores,
    }
    terminal.result(values, *score_tables(shown.run, shown.scores), shown.finding, *map(str, shown.plots))
    terminal.say(
        f"to use your own images, one folder for each class: layerprobe train netA --data folder:DIR{cache_flag(cache)}"
    )
