"""layerprobe compare."""

from __future__ import annotations

from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Debug, Json, Quiet
from layerprobe.cli.output import Terminal
from layerprobe.intervals import ESTIMANDS, IntervalKind

_LAYER = "RUN[#epoch][:layer[@pool][/reduction][~similarity]]"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(compare)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"{_LAYER}; the layer may be a glob.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What A is compared with, in the same words.")],
    metric: Annotated[str, typer.Option("--metric", metavar="M", help="R@K, MAP@R, mAP, MRR ...")] = "R@1",
    split: Annotated[str, typer.Option("--split", metavar="S", help="train, validation or test.")] = "test",
    interval: Annotated[
        str, typer.Option("--interval", metavar="|".join(ESTIMANDS), help="Of other queries, or another draw of all.")
    ] = "gallery",
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="COLUMN", help="What is resampled (default: the classes); parent: folders."),
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Say how much better one layer is than another, and how sure that is.

    What A and B leave out is the last epoch, the embedding layer, and the run's similarity.
    """
    from layerprobe.errors import UnknownNameError
    from layerprobe.workflow.compare import CompareRequest
    from layerprobe.workflow.compare import compare as compared
    from layerprobe.workflow.comparison_text import comparison_table, sentence
    from layerprobe.workflow.references import parse_reference

    if interval not in ESTIMANDS:
        raise UnknownNameError("interval", interval, ESTIMANDS)
    kind = IntervalKind(interval, cluster)
    found = compared(CompareRequest(cache, a, b, metric, split, kind))
    terminal = Terminal(as_json, quiet)
    if any(parse_reference(text).is_glob for text in (a, b)):
        values = {"comparisons": found[0].basis.comparisons, "results": [one.as_row() for one in found]}
        terminal.result(values, comparison_table(found))
    else:
        terminal.result(found[0].as_row(), sentence(found[0]), *found[0].notes)
