"""layerprobe runs remove."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output
from layerprobe.cli.requests import with_options
from layerprobe.system.errors import RecipeError
from layerprobe.system.options import Flag
from layerprobe.system.wording import as_size, one_line

if TYPE_CHECKING:
    from layerprobe.workflow.run.runs import Removal

# The command `runs` takes the name of a run; `main` looks for `remove` first.
group = typer.Typer(name="runs", help="List the runs, or remove one.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.add_typer(group)


@group.callback()
def _runs() -> None:
    """A group even with one command."""


@group.command()
@with_options
def remove(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The run.")],
    features: Annotated[bool, Flag("Remove only its stored features.")] = False,
    checkpoints: Annotated[bool, Flag("Remove only its checkpoints.")] = False,
    yes: Annotated[bool, Flag("Do not ask.")] = False,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Remove a run, an ensemble with its members, or only features or checkpoints.

    Scores and ranks stay where only features or checkpoints are removed. Features are computed again when they are
    needed. A run without checkpoints can neither go on training nor measure further layers.
    """
    from layerprobe.workflow.run.runs import plan_removal
    from layerprobe.workflow.run.runs import remove as carry_out

    parts = ["features"] * features + ["checkpoints"] * checkpoints
    planned = plan_removal(cache, name, parts)
    terminal, objects = output.terminal(), _in_words(planned)
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise RecipeError(f"{objects} would be removed; confirmation needs a terminal", fix="Give --yes")
        print(f"Remove {one_line(objects)}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            terminal.result({"removed": [], "parts": parts, "bytes": 0}, "nothing was removed")
            return
    carry_out(planned)
    removed = [run.name for run in planned.runs]
    terminal.result({"removed": removed, "parts": parts, "bytes": planned.size}, f"removed {objects}")


def _in_words(planned: Removal) -> str:
    """`the run tiny (12 MB)`, or `features and checkpoints of the runs e.1, e.2, e (1.9 GB)`."""
    names = ", ".join(run.name for run in planned.runs)
    runs = f"the run{'s' * (len(planned.runs) > 1)} {names}"
    of = f"{' and '.join(planned.parts)} of " if planned.parts else ""
    return f"{of}{runs} ({as_size(planned.size)})"
