"""A run beside a table of a paper, as tables and in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from layerprobe.papers.tables import PaperCell, PaperColumn, PaperRow
from layerprobe.tables.tables import TextTable
from layerprobe.values.facts import fact_lines
from layerprobe.values.scores import Score, is_fraction
from layerprobe.workflow.compare.comparison import number_text
from layerprobe.workflow.compare.paper import PaperComparison, RunRow

_ABSENT, _DOUBTFUL, _OURS = "-", "?", ">"
_NARROW = 6  # columns of numbers of a table that holds all data sets


def paper_tables(comparison: PaperComparison) -> list[TextTable]:
    """The paper's rows as printed, and the run's numbers beside those of its recipe; in percent.

    Of a table that has the run's data set, only its columns are shown, with the run's rows below the paper's. Else the
    whole table is shown, and then its rows of the run's recipe beside the run's numbers on its own data set.
    """
    columns = comparison.table.columns
    if comparison.is_same_data:
        tables = [
            _paper_table(
                comparison, [i for i, column in enumerate(columns) if column.data in ("", comparison.columns[0].data)]
            )
        ]
    elif len(columns) <= _NARROW:
        tables = [_paper_table(comparison, range(len(columns))), _beside_table(comparison)]
    else:
        blocks = [
            [i for i, column in enumerate(columns) if column.data in ("", data)] for data in comparison.table.data
        ]
        tables = [*(_paper_table(comparison, block) for block in blocks), _beside_table(comparison)]
    tables[0] = replace(tables[0], heading=(*_heading(comparison), *tables[0].heading))
    tables[-1] = replace(tables[-1], notes=tuple(_notes(comparison)))
    return tables


def _paper_table(comparison: PaperComparison, block: Sequence[int]) -> TextTable:
    """The paper's rows with a value in some columns; below each the run's, if the table has the run's data set."""
    columns = [comparison.table.columns[i] for i in block]
    network = [] if comparison.table.network else ["network"]
    rows: list[tuple[str, ...]] = []

    def add(method: str, network_name: str, *numbers: str) -> None:
        rows.append((method, *(network_name for _ in network), *numbers))

    for index, row in enumerate(comparison.table.rows):
        run_rows = [run_row for run_row in comparison.rows if run_row.row == index and comparison.is_same_data]
        cells = [_cell_text(row.cells[i]) for i in block]
        if run_rows or set(cells) != {_ABSENT}:
            add(row.method, row.network, _cell_text(row.dim), *cells)
        for run_row in run_rows:
            add(*_run_cells(comparison, run_row, columns))
    for run_row in comparison.rows:
        if run_row.row is None and comparison.is_same_data:
            add(*_run_cells(comparison, run_row, columns))
    has_several_sets = len({column.data for column in columns if column.data}) > 1
    headers = ("method", *network, "dim", *(_header(column, with_data=has_several_sets) for column in columns))
    # The network counts as a number, which is not folded: the method is.
    return TextTable(
        headers, tuple(rows), frozenset(range(1, len(headers))), heading=() if has_several_sets else _data(columns)
    )


def _data(columns: Sequence[PaperColumn]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column.data for column in columns if column.data))


def _run_cells(comparison: PaperComparison, run_row: RunRow, columns: Sequence[PaperColumn]) -> tuple[str, ...]:
    values = {
        column: _score_text(score, column) for column, score in zip(comparison.columns, run_row.scores, strict=True)
    }
    return (
        f"{_OURS} {run_row.layer}",
        comparison.network,
        _dim(run_row),
        *(values.get(column, "") for column in columns),
    )


def _beside_table(comparison: PaperComparison) -> TextTable:
    """A line for each row of the run's recipe and each metric: the paper's values by data set, then the run's."""
    table = comparison.table
    indices = {column: i for i, column in enumerate(table.columns)}
    rows = []
    for run_row in comparison.rows:
        row = None if run_row.row is None else table.rows[run_row.row]
        for column, score in zip(comparison.columns, run_row.scores, strict=True):
            if row is None and score is None:
                continue
            printed = [indices.get(replace(column, data=data)) for data in table.data]
            cells = [_ABSENT if row is None or i is None else _cell_text(row.cells[i]) for i in printed]
            method = _ABSENT if row is None else row.method
            metric = f"{column.split} {column.metric}"
            rows.append((method, metric, *cells, _score_text(score, column), run_row.layer, _dim(run_row)))
    data = comparison.columns[0].data or comparison.run
    headers = ("method", "metric", *table.data, f"{_OURS} {data}", f"{_OURS} layer", f"{_OURS} dim")
    numbers = {*range(2, 3 + len(table.data)), len(headers) - 1}
    return TextTable(headers, tuple(rows), frozenset(numbers))


def _dim(run_row: RunRow) -> str:
    return _ABSENT if run_row.dim is None else str(run_row.dim)


def _header(column: PaperColumn, *, with_data: bool) -> str:
    if not column.data:
        return column.metric.replace(" ", "\n")
    return "\n".join([*([column.data] if with_data else []), column.split, column.metric])


def _cell_text(cell: PaperCell) -> str:
    return f"{cell.text}{_DOUBTFUL}" if cell.doubtful else cell.text


def _score_text(score: Score | None, column: PaperColumn) -> str:
    if score is None or score.value is None:
        return _ABSENT
    return number_text(score.value, is_fraction(column.metric))


def _heading(comparison: PaperComparison) -> tuple[str, ...]:
    table = comparison.table
    return (
        f"{table.title} ({table.text}), {table.name.replace('table', 'table ')}",
        table.caption,
        f"paper: {', '.join(filter(None, (table.network, table.protocol)))}",
        f"{_OURS} {comparison.run}: recipe {comparison.recipe}, {comparison.network}, seed {comparison.seed}, epoch"
        f" {comparison.epoch} of {comparison.epochs}",
        *(f"{_OURS} {line}" for line in fact_lines(comparison.facts)),
    )


def _notes(comparison: PaperComparison) -> list[str]:
    doubtful = [f"{_DOUBTFUL} {row.method}: {row.error}" for row in comparison.table.rows if row.error]
    fix = [f"{_ABSENT} is not measured. {comparison.fix}"] if comparison.fix else []
    return [*_claim(comparison), *doubtful, *comparison.table.notes, *comparison.notes, *fix]


def _claim(comparison: PaperComparison) -> list[str]:
    """Lines on how the run differs from its rows; none claims that it reproduces them."""
    shared = [caveat for caveat in comparison.rows[0].caveats if all(caveat in row.caveats for row in comparison.rows)]
    lines = [f"{_OURS} {comparison.run} reproduces no row:"] if any(row.caveats for row in comparison.rows) else []
    lines += [f"  {caveat}" for caveat in shared]
    for row in comparison.rows:
        lines += [f"  {_layer_beside_row(comparison, row)}: {caveat}" for caveat in row.caveats if caveat not in shared]
    if not lines:
        lines = [f"{_OURS} {comparison.run} has its rows' recipe, data set, splits, network and dimensions"]
    return [
        *lines,
        f"{_OURS} is one training (seed {comparison.seed}), and the table has no spread: differences may be chance",
    ]


def _layer_beside_row(comparison: PaperComparison, row: RunRow) -> str:
    return row.layer if row.row is None else f"{row.layer} beside {comparison.table.rows[row.row].method}"


def paper_values(comparison: PaperComparison) -> dict[str, Any]:
    """The fields in JSON: the paper's cells as text, the run's values as fractions."""
    table = comparison.table
    return {
        "paper": table.paper,
        "table": table.name,
        "text": table.text,
        "caption": table.caption,
        "protocol": table.protocol,
        "columns": table.columns,
        "rows": [_row_values(row) for row in table.rows],
        "notes": table.notes,
        "run": comparison.run,
        "epoch": comparison.epoch,
        "seed": comparison.seed,
        "recipe": comparison.recipe,
        "network": comparison.network,
        "splits": comparison.facts.splits,
        "own_columns": comparison.columns,
        "own": [_run_values(row) for row in comparison.rows],
        "note": "; ".join(comparison.notes),
    }


def _row_values(row: PaperRow) -> dict[str, Any]:
    return {
        "method": row.method,
        "network": row.network,
        "dim": row.dim,
        "cells": row.cells,
        "error": row.error or None,
        "recipe": row.recipe or None,
        "set": row.settings,
    }


def _run_values(row: RunRow) -> dict[str, Any]:
    return {
        "row": row.row,
        "layer": row.layer,
        "dim": row.dim,
        "scores": row.scores,
        "caveats": row.caveats,
        "changes": row.changes,
    }
