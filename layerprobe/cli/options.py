"""The options of every command, and those shared by several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from layerprobe.system.errors import RecipeError
from layerprobe.system.wording import DEFAULT_CACHE as DEFAULT_CACHE

Cache = Annotated[
    Path, typer.Option("--cache", envvar="LAYERPROBE_CACHE", help="Folder that holds all runs.", show_default="./cache")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress and no messages.")]
# `main` reads it: errors are shown there, for all commands.
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Device = Annotated[str, typer.Option("--device", help="Device: auto, cpu, cuda or cuda:i.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=0, help="Number of processes that load data.", show_default="auto")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Estimate time, memory and disk space; do nothing.")]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="table|markdown|latex|csv", help="Format of tables.", show_default="table"),
]
RunName = Annotated[str | None, typer.Argument(metavar="RUN", help="Run name (default: the most recent).")]
RunOrFeatures = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN | FEATURES]",
        help="Run (default: the most recent), or a file of features: .npz, .npy, .pt or .h5.",
    ),
]
# Of a run that exists: nothing is imported or fetched that the user has not named.
RunModel = Annotated[
    str | None,
    typer.Option("--model", metavar="SOURCE", help="Network of the run, such as python:FILE.py:FUNCTION."),
]
# Of a frozen model.
Model = Annotated[
    str | None, typer.Option("--model", metavar="SOURCE", help="Pretrained model to measure, such as timm:NAME.")
]
ModelWeights = Annotated[
    str | None,
    typer.Option(
        "--weights", metavar="W", help="Weights of --model: model, none, FILE[#PART], 'DIR/*.pt' or run:NAME."
    ),
]
ModelData = Annotated[
    str | None, typer.Option("--data", metavar="NAME[:ROOT]", help="Data set on which --model is measured.")
]
ModelSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="data.KEY=VALUE", help="Key of [data] for --model; repeatable."),
]
Unseen = Annotated[
    bool,
    typer.Option(
        "--not-trained-on-these", help="The weights were not trained on the training classes (data.seen = false)."
    ),
]
ModelRun = Annotated[str | None, typer.Option("--run", metavar="NAME", help="Name of the run of --model.")]
Labels = Annotated[
    Path | None,
    typer.Option("--labels", metavar="FILE", help="Labels of FEATURES: a .npy (N,), or text with one label a line."),
]

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12}


def feature_files(words: Sequence[str], labels: Path | None) -> tuple[Path, ...]:
    """The files of features that words name; empty if they name runs, or nothing."""
    from layerprobe.workflow.choose.request import FEATURE_SUFFIXES

    # A file of another kind is refused as one, rather than as an unknown run.
    files = [word for word in words if word.endswith(FEATURE_SUFFIXES) or ("." in word and Path(word).is_file())]
    if files and len(files) < len(words):
        raise RecipeError(f"{files[0]} and {len(words) - 1} more", fix="Name one file of features, or runs")
    if labels is not None and not files:
        raise RecipeError("--labels: no file of features is named", fix="Name one, such as layer4.npy, or leave it out")
    return tuple(map(Path, files))


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Split `a,b` into ("a", "b"); None stays None."""
    if text is None:
        return None
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise RecipeError(f"no names in {text!r}", fix="Write names separated by commas, or leave the flag out")
    return parts


def byte_count(text: str | None) -> int | None:
    """Read `4GB` as 4,000,000,000; None stays None."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    count = int(float(match[1]) * 10 ** _POWERS[match[2].upper()]) if match else 0
    if not count:
        raise RecipeError(f"--memory {text}: not a size", fix="Write one like 4GB or 500MB")
    return count
