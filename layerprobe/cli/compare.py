"""layerprobe compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Output
from layerprobe.cli.output import Terminal
from layerprobe.cli.requests import with_options
from layerprobe.system.options import Cluster, Flag
from layerprobe.values.intervals import ESTIMANDS, IntervalKind, estimand_of

if TYPE_CHECKING:
    from layerprobe.tables.tables import TextTable
    from layerprobe.workflow.compare.comparison import Comparison, SeedComparison

_LAYER = "[RUN[#epoch]:]LAYER[@pool][/reduction][~similarity] or RUN[#epoch]"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(compare))


def compare(
    *,
    a: Annotated[
        str | None, typer.Argument(metavar="A", help=f"{_LAYER}; the layer may be a glob.", show_default=False)
    ] = None,
    b: Annotated[str | None, typer.Argument(metavar="B", help="Layer to compare A with, written likewise.")] = None,
    metric: Annotated[str, Flag("R@K, MAP@R, mAP, MRR ...", metavar="M")] = "R@1",
    split: Annotated[str, Flag("train, validation or test.", metavar="S")] = "test",
    interval: Annotated[
        str,
        Flag("Generalise to new queries (gallery) or to new classes (redraw).", metavar="|".join(ESTIMANDS)),
    ] = "gallery",
    cluster: Cluster = None,
    seeds: Annotated[bool, Flag("Compare all trainings of both experiments, paired by seed.")] = False,
    paper: Annotated[
        str | None, Flag("Compare run A with a paper's table: vo-hays-2019:table3.", metavar="NAME:TABLE")
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Compare two layers, or a run with a table of a paper.

    Defaults: the run used last, its last epoch, the embedding, the run's similarity.
    """
    from layerprobe.system.errors import RecipeError

    if paper is not None:
        if b is not None or (metric, split, interval) != ("R@1", "test", "gallery") or cluster or seeds:
            raise RecipeError(
                "--paper has the table's own metrics and splits", fix=f"Write layerprobe compare RUN --paper {paper}"
            )
        _with_paper(output.terminal(), cache, a, paper)
        return
    if a is None or b is None:
        raise RecipeError(
            "compare takes two layers, A and B", fix="Name both, or a paper's table by --paper NAME:TABLE"
        )
    from layerprobe.values.layers import is_glob
    from layerprobe.workflow.run.metric_values import require_mean_over_queries
    from layerprobe.workflow.run.references import find_reference

    require_mean_over_queries(metric)
    for text in (a, b):
        find_reference(cache, text)

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.compare.compare import CompareRequest
    from layerprobe.workflow.compare.compare import compare as compare_layers
    from layerprobe.workflow.compare.compare_seeds import compare_seeds, seeds_sentence, seeds_table
    from layerprobe.workflow.compare.comparison import comparison_table, sentence
    from layerprobe.workflow.compare.evidence import Measure

    request = CompareRequest(cache, a, b, split, Measure(metric, IntervalKind(estimand_of(interval), cluster)))
    as_table = any(map(is_glob, (a, b)))
    answer: TextTable | str
    results: Sequence[Comparison | SeedComparison]
    if seeds:
        results = of_seeds = compare_seeds(request)
        answer = seeds_table(of_seeds) if as_table else seeds_sentence(of_seeds[0])
    else:
        results = of_runs = compare_layers(request)
        answer = comparison_table(of_runs) if as_table else sentence(of_runs[0])
    values = {"comparisons": results[0].data.comparisons, "results": results} if as_table else results[0].as_json()
    if seeds:
        values = {"schema": 2, **values}
    output.terminal().result(values, answer, *(() if as_table else results[0].notes))


def _with_paper(terminal: Terminal, cache: Path, run: str | None, reference: str) -> None:
    """Show a run, by default the one used last, beside a table of a paper."""
    from layerprobe.papers.tables import find_table
    from layerprobe.workflow.run.references import find_reference
    from layerprobe.workflow.run.runs import find_run

    table = find_table(reference)
    run = run or find_run(cache, None).name
    find_reference(cache, run)

    from layerprobe.workflow.compare.paper import compare_with_paper, paper_tables, paper_values

    comparison = compare_with_paper(cache, run, table)
    terminal.result(paper_values(comparison), *paper_tables(comparison))
