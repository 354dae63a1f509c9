"""layerprobe cache list and cache clean: the decoded images that all runs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output
from layerprobe.cli.output import Terminal
from layerprobe.cli.requests import with_options
from layerprobe.system.wording import as_size

if TYPE_CHECKING:
    from layerprobe.workflow.manage.cache import DecodedImages

group = typer.Typer(name="cache", help="List or remove the decoded images that all runs share.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(group)


@group.command("list")
@with_options
def list_(*, cache: Cache = DEFAULT_CACHE, output: Output) -> None:
    """List the decoded images by data set and split, last used first."""
    from layerprobe.workflow.manage.cache import list_images

    entries = list_images(cache)
    _show(output.terminal(), "images", entries, f"{_count(entries)} in {cache / 'images'}")


@group.command()
@with_options
def clean(
    *,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Ids from cache list (default: all that no process uses)."),
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Remove decoded images. A run that needs them decodes them again; runs themselves are never removed."""
    from layerprobe.workflow.manage.cache import clean_images, list_images

    removed = clean_images(cache, ids or ())
    entries = list_images(cache)
    note = f"; {len(entries)} left" if ids else f"; {len(entries)} in use by a process were left" if entries else ""
    _show(output.terminal(), "removed", removed, f"removed {_count(removed)} from {cache / 'images'}{note}")


def _show(terminal: Terminal, key: str, entries: Sequence[DecodedImages], summary: str) -> None:
    from layerprobe.tables.tables import plain_table

    rows = [
        (k.id, k.data, k.split, f"{k.images:,}", as_size(k.size), k.used, "whole" if k.complete else "begun")
        for k in entries
    ]
    table = plain_table(("id", "data", "split", "images", "size", "used", "state"), rows)
    terminal.result({key: entries}, *([table] if entries else []), summary)


def _count(entries: Sequence[DecodedImages]) -> str:
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'} ({as_size(sum(k.size for k in entries))})"
