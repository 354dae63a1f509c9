"""Fields of a request as options of the command line.

Modules that define requests evaluate their annotations (no `from __future__ import annotations`), since
`cli.requests` reads them, and import nothing heavy: every `--help` imports them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from layerprobe.system.errors import RecipeError

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12}


@dataclass(frozen=True)
class Flag:
    """An option, in the annotation of a field: `epoch: Annotated[int | None, Flag("Epoch to show.", min=0)] = None`.

    Args:
        name: where it is not the field's, such as `--set`.
        default: shown for the field's default, where that is not the default itself; the text of it that `parse` reads.
        parse: reads the option's text; None for a field of a type that typer reads, or of texts from a repeatable flag.
    """

    help: str
    name: str | None = None
    metavar: str | None = None
    min: int | None = None
    default: str | None = None
    parse: Callable[[str], object] | None = None


Device = Annotated[str, Flag("Device: auto, cpu, cuda, cuda:i or mps.", metavar="DEVICE")]
Workers = Annotated[int | None, Flag("Number of processes that load data.", metavar="N", min=0, default="auto")]
Cluster = Annotated[
    str | None, Flag("Resample the values of a column (parent: folders), not classes.", metavar="COLUMN")
]
# Of a run that exists: nothing is imported or fetched that the user has not named.
RunModel = Annotated[
    str | None, Flag("Network of the run, such as python:FILE.py:FUNCTION.", name="--model", metavar="SOURCE")
]


def split_names(text: str) -> tuple[str, ...]:
    """Split `a,b` into ("a", "b")."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise RecipeError(f"no names in {text!r}", fix="Write names separated by commas, or leave the flag out")
    return names


def split_ks(text: str) -> tuple[int, ...]:
    """Split `1,2,4` of `--k`, each K once."""
    numbers = split_names(text)
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise RecipeError(f"--k {text}: not whole numbers above 0", fix="Write them like 1,2,4")
    return tuple(dict.fromkeys(int(number) for number in numbers))


def byte_count(text: str) -> int:
    """Read `4GB` of `--memory` as 4,000,000,000."""
    match = _SIZE.fullmatch(text.strip())
    count = int(float(match[1]) * 10 ** _POWERS[match[2].upper()]) if match else 0
    if not count:
        raise RecipeError(f"--memory {text}: not a size", fix="Write one like 4GB or 500MB")
    return count


# Bytes of features and searches; None for no limit.
Memory = Annotated[int | None, Flag("Memory limit of ranking, such as 4GB.", metavar="SIZE", parse=byte_count)]
