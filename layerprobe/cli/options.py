"""The options that every command takes, and those that several share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from layerprobe.errors import RecipeError

Cache = Annotated[
    Path, typer.Option("--cache", envvar="LAYERPROBE_CACHE", help="Folder of all runs.", show_default="./cache")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no messages.")]
# Read by `main`, which stands above the commands.
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:i.")]
Workers = Annotated[int | None, typer.Option("--workers", min=0, help="Data worker processes.", show_default="auto")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Estimate time, memory and disk; do nothing.")]
RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run touched last, unless named.")]

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12}

DEFAULT_CACHE = Path("cache")


def split_names(text: str | None) -> tuple[str, ...] | None:
    """`a,b` -> ("a", "b"); None stays None.

    Raises:
        RecipeError: nothing between the commas.
    """
    if text is None:
        return None
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise RecipeError("an empty list where names were expected", fix="Name some, or leave the flag out")
    return parts


def byte_count(text: str | None) -> int | None:
    """`4GB` -> 4,000,000,000; None stays None.

    Raises:
        RecipeError: no size, or none at all.
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    count = int(float(match[1]) * 10 ** _POWERS[match[2].upper()]) if match else 0
    if not count:
        raise RecipeError(f"--memory {text}: not a size like 4GB or 500MB")
    return count
