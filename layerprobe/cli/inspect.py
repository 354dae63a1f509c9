"""layerprobe layers, recipes, runs, runs remove and doctor: what there is to use."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Format, Output
from layerprobe.cli.requests import with_options
from layerprobe.registry import MODEL_NAMES
from layerprobe.system.errors import RecipeError
from layerprobe.system.memory import keep_freed_memory
from layerprobe.system.options import Flag, RunModel
from layerprobe.system.wording import as_size, one_line, visible

if TYPE_CHECKING:
    from layerprobe.workflow.run.runs import Removal

_NAMES = f"A network, a recipe, a run, or a model from elsewhere: {', '.join(MODEL_NAMES)}."
# The command `runs` takes the name of a run; `main` looks for `remove` first.
group = typer.Typer(name="runs", help="List the runs, or remove one.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (layers, recipes, runs, doctor):
        app.command()(with_options(command))
    app.add_typer(group)


def layers(
    *,
    name: Annotated[str, typer.Argument(metavar="NET|RECIPE|RUN|SOURCE", help=_NAMES)],
    model: RunModel = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """List the layers that can be probed, in execution order."""
    from layerprobe.tables.tables import plain_table
    from layerprobe.workflow.manage.layers import layers as list_layers

    listing = list_layers(name, cache, model)
    columns = ("layer", "module", "dim", "kind", "size", "pools", *(["weights"] if listing.layers[0].weights else []))
    rows = [{**asdict(row), "pools": ", ".join(row.pools)} for row in listing.layers]
    table = plain_table(columns, [[str(row[column]) for column in columns] for row in rows])
    values = {"name": name, "layers": listing.layers, "notes": listing.notes}
    output.terminal().result(values, replace(table, notes=listing.notes))


def recipes(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this recipe.")] = None,
    output: Output,
) -> None:
    """List the recipes, or print one."""
    from layerprobe.recipe.recipe_files import find_recipe, list_recipes, summary
    from layerprobe.tables.tables import plain_table

    terminal = output.terminal()
    if name is not None:
        text = find_recipe(name).read_text(encoding="utf-8")
        terminal.result({"recipe": name, "text": text})
        if not output.as_json:
            print(visible(text.rstrip(), keep="\n\t"))
        return
    rows = [[recipe, summary(path)] for recipe, path in list_recipes().items()]
    terminal.result({"recipes": dict(rows)}, plain_table(("recipe", "what it trains"), rows))


def runs(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this run's record.")] = None,
    form: Format = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """List the runs, the most recent first, or show one; `layerprobe runs remove NAME` removes one.

    A run that is called remove is shown by `layerprobe runs -- remove`.
    """
    from layerprobe.tables.tables import plain_table
    from layerprobe.workflow.run.runs import damaged_runs, find_run, list_runs

    terminal = output.terminal(form)
    if name is not None:
        run = find_run(cache, name)
        record, sizes = run.read().as_json(), run.sizes()
        lines = [[key, str(value)] for key, value in record.items() if key not in ("hashes", "new_parameters")]
        lines.append(["size", ", ".join(f"{files} {as_size(size)}" for files, size in sizes.items())])
        terminal.result({"run": name, "record": record, "bytes": sizes}, plain_table(("field", "value"), lines))
        return
    records = list_runs(cache)
    keys = ("recipe_name", "state", "epochs_done", "seed", "touched")
    sizes = {run.name: run.sizes()["total"] for run, _ in records}
    rows = [
        [run.name, *(str(getattr(record, key)) for key in keys), as_size(sizes[run.name])] for run, record in records
    ]
    values = [
        {"run": run.name, **{key: getattr(record, key) for key in keys}, "bytes": sizes[run.name]}
        for run, record in records
    ]
    for run, error in damaged_runs(cache):  # `runs NAME` names the damage
        size = run.sizes()["total"]
        rows.append([run.name, "", "damaged", "", "", "", as_size(size)])
        nothing = dict.fromkeys(keys)
        values.append({"run": run.name, **nothing, "state": "damaged", "bytes": size, "problem": str(error)})
    columns = ("run", "recipe", "state", "epochs", "seed", "touched", "size")
    terminal.result({"runs": values}, plain_table(columns, rows))


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


def doctor(*, cache: Cache = DEFAULT_CACHE, output: Output) -> None:
    """Check versions, devices, disk space and pretrained weights."""
    from layerprobe.tables.tables import plain_table
    from layerprobe.workflow.manage.doctor import doctor as examine

    checks = examine(cache, keep_freed_memory())
    rows = [[check.subject, check.found, check.fix] for check in checks]
    output.terminal().result({"findings": checks}, plain_table(("", "found", "fix"), rows))
    if any(check.fix for check in checks):
        raise typer.Exit(5)
