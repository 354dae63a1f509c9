"""A run beside a table of a paper, as tables and in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from layerprobe.papers.tables import PaperCell, PaperColumn, PaperRow
from layerprobe.tables.tables import TextTable
from layerprobe.values.facts import fact_lines
from layerprobe.values.metric_names import is_fraction
from layerprobe.values.scores import Score
from layerprobe.workflow.compare.comparison import number_text
from layerprobe.workflow.compare.paper import OwnRow, PaperComparison

_ABSENT, _DOUBTFUL, _OURS = "-", "?", ">"
_NARROW = 6  # columns of numbers of a table that holds all data sets


def paper_tables(found: PaperComparison) -> list[TextTable]:
    """The paper's rows as printed, and the run's numbers beside those of its recipe; in percent.

    Of a table that has the run's data set, only its columns are shown, with the run's rows below the paper's. Else the
    whole table is shown, and then its rows of the run's recipe beside the run's numbers on its own data set.
    """
    columns = found.table.columns
    if found.is_same_data:
        tables = [_printed(found, [i for i, one in enumerate(columns) if one.data in ("", found.columns[0].data)])]
    elif len(columns) <= _NARROW:
        tables = [_printed(found, range(len(columns))), _beside_table(found)]
    else:
        blocks = [[i for i, one in enumerate(columns) if one.data in ("", data)] for data in found.table.data]
        tables = [*(_printed(found, block) for block in blocks), _beside_table(found)]
    tables[0] = replace(tables[0], heading=(*_heading(found), *tables[0].heading))
    tables[-1] = replace(tables[-1], notes=tuple(_notes(found)))
    return tables


def _printed(found: PaperComparison, block: Sequence[int]) -> TextTable:
    """Some of the paper's columns, without rows that have none; with the run's rows if these are of its data set."""
    shown = [found.table.columns[i] for i in block]
    network = [] if found.table.network else ["network"]
    rows: list[tuple[str, ...]] = []

    def add(method: str, own_network: str, *numbers: str) -> None:
        rows.append((method, *(own_network for _ in network), *numbers))

    for place, row in enumerate(found.table.rows):
        own = [one for one in found.rows if one.row == place and found.is_same_data]
        cells = [_text(row.cells[i]) for i in block]
        if own or set(cells) != {_ABSENT}:
            add(row.method, row.network, _text(row.dim), *cells)
        for one in own:
            add(*_own_row(found, one, shown))
    for one in found.rows:
        if one.row is None and found.is_same_data:
            add(*_own_row(found, one, shown))
    several = len({column.data for column in shown if column.data}) > 1
    headers = ("method", *network, "dim", *(_header(column, with_data=several) for column in shown))
    # The network counts as a number, which is not folded: the method is.
    return TextTable(headers, tuple(rows), frozenset(range(1, len(headers))), heading=() if several else _data(shown))


def _data(shown: Sequence[PaperColumn]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column.data for column in shown if column.data))


def _own_row(found: PaperComparison, one: OwnRow, shown: Sequence[PaperColumn]) -> tuple[str, ...]:
    values = {column: _own_text(score, column) for column, score in zip(found.columns, one.scores, strict=True)}
    return (f"{_OURS} {one.layer}", found.network, _dim(one), *(values.get(column, "") for column in shown))


def _beside_table(found: PaperComparison) -> TextTable:
    """For each row of the run's recipe and metric the paper's values on its data sets, and the run's on its own."""
    table = found.table
    places = {column: i for i, column in enumerate(table.columns)}
    rows = []
    for one in found.rows:
        row = None if one.row is None else table.rows[one.row]
        for column, score in zip(found.columns, one.scores, strict=True):
            if row is None and score is None:
                continue
            printed = [places.get(replace(column, data=data)) for data in table.data]
            cells = [_ABSENT if row is None or i is None else _text(row.cells[i]) for i in printed]
            method = _ABSENT if row is None else row.method
            metric = f"{column.split} {column.metric}"
            rows.append((method, metric, *cells, _own_text(score, column), one.layer, _dim(one)))
    data = found.columns[0].data or found.run
    headers = ("method", "metric", *table.data, f"{_OURS} {data}", f"{_OURS} layer", f"{_OURS} dim")
    numbers = {*range(2, 3 + len(table.data)), len(headers) - 1}
    return TextTable(headers, tuple(rows), frozenset(numbers))


def _dim(one: OwnRow) -> str:
    return _ABSENT if one.dim is None else str(one.dim)


def _header(column: PaperColumn, *, with_data: bool) -> str:
    if not column.data:
        return column.metric.replace(" ", "\n")
    return "\n".join([*([column.data] if with_data else []), column.split, column.metric])


def _text(cell: PaperCell) -> str:
    return f"{cell.text}{_DOUBTFUL}" if cell.doubtful else cell.text


def _own_text(score: Score | None, column: PaperColumn) -> str:
    if score is None or score.value is None:
        return _ABSENT
    return number_text(score.value, is_fraction(column.metric))


def _heading(found: PaperComparison) -> tuple[str, ...]:
    table = found.table
    return (
        f"{table.title} ({table.text}), {table.name.replace('table', 'table ')}",
        table.caption,
        f"paper: {', '.join(filter(None, (table.network, table.protocol)))}",
        f"{_OURS} {found.run}: recipe {found.recipe}, {found.network}, seed {found.seed}, epoch {found.epoch} of"
        f" {found.epochs}",
        *(f"{_OURS} {line}" for line in fact_lines(found.facts)),
    )


def _notes(found: PaperComparison) -> list[str]:
    doubtful = [f"{_DOUBTFUL} {row.method}: {row.error}" for row in found.table.rows if row.error]
    fix = [f"{_ABSENT} is not measured. {found.fix}"] if found.fix else []
    return [*_claim(found), *doubtful, *found.table.notes, *found.notes, *fix]


def _claim(found: PaperComparison) -> list[str]:
    """In what the run differs from its rows; never that it reproduces them."""
    of_all = [caveat for caveat in found.rows[0].caveats if all(caveat in row.caveats for row in found.rows)]
    lines = [f"{_OURS} {found.run} reproduces no row:"] if any(row.caveats for row in found.rows) else []
    lines += [f"  {caveat}" for caveat in of_all]
    for row in found.rows:
        lines += [f"  {_beside(found, row)}: {caveat}" for caveat in row.caveats if caveat not in of_all]
    if not lines:
        lines = [f"{_OURS} {found.run} has its rows' recipe, data set, splits, network and dimensions"]
    return [
        *lines,
        f"{_OURS} is one training (seed {found.seed}), and the table has no spread: differences may be chance",
    ]


def _beside(found: PaperComparison, row: OwnRow) -> str:
    return row.layer if row.row is None else f"{row.layer} beside {found.table.rows[row.row].method}"


def paper_values(found: PaperComparison) -> dict[str, Any]:
    """The fields in JSON: the paper's cells as text, the run's values as fractions."""
    table = found.table
    return {
        "paper": table.paper,
        "table": table.name,
        "text": table.text,
        "caption": table.caption,
        "protocol": table.protocol,
        "columns": table.columns,
        "rows": [_row_values(row) for row in table.rows],
        "notes": table.notes,
        "run": found.run,
        "epoch": found.epoch,
        "seed": found.seed,
        "recipe": found.recipe,
        "network": found.network,
        "splits": found.facts.splits,
        "own_columns": found.columns,
        "own": [_own_values(row) for row in found.rows],
        "note": "; ".join(found.notes),
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


def _own_values(row: OwnRow) -> dict[str, Any]:
    return {
        "row": row.row,
        "layer": row.layer,
        "dim": row.dim,
        "scores": row.scores,
        "caveats": row.caveats,
        "changes": row.changes,
    }
