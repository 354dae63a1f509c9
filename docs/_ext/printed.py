"""The tables of results that the five papers print, with the command that trains each row."""

from __future__ import annotations

import shlex

from docs._ext.markdown import escaped, table
from layerprobe.papers.tables import PaperCell, PaperRow, PaperTable, paper_names, read_tables


def page() -> str:
    """A section for each paper, with each of its tables folded."""
    sections = []
    for paper in paper_names():
        tables = read_tables(paper)
        title = next(iter(tables.values())).title
        sections.append("\n\n".join([f"### Printed by {title}", *(_folded(one) for one in tables.values())]))
    return "\n\n".join(sections)


def _folded(printed: PaperTable) -> str:
    title = f"{printed.paper}:{printed.name}: {printed.caption}"
    notes = "\n".join(f"- {escaped(note)}" for note in printed.notes)
    errors = "\n".join(f"- {escaped(row.method)}: {escaped(row.error)}" for row in printed.rows if row.error)
    wrong = f"Known errors of the paper:\n\n{errors}" if errors else ""
    parts = [escaped(printed.protocol), _values(printed), notes, wrong, _commands(printed)]
    return f"::::{{dropdown}} {escaped(title)}\n" + "\n\n".join(filter(None, parts)) + "\n::::"


def _values(printed: PaperTable) -> str:
    names = [" ".join(filter(None, (one.data, one.split, one.metric))) for one in printed.columns]
    rows = [(row.method, row.network, _cell(row.dim), *map(_cell, row.cells)) for row in printed.rows]
    return table([[escaped(cell) for cell in row] for row in [("method", "network", "dim", *names), *rows]])


def _cell(cell: PaperCell) -> str:
    return f"{cell.text}?" if cell.doubtful else cell.text


def _commands(printed: PaperTable) -> str:
    trained = [row for row in printed.rows if row.recipe]
    if not trained:
        return ""
    lines = "\n".join(f"# {row.method}, {row.network}, {row.dim.text}\n{command(row)}" for row in trained)
    where = "SET is the data set's name, DIR its folder. The values of the table's rows are those of:"
    return f"{where}\n\n```sh\n{lines}\n```"


def command(row: PaperRow) -> str:
    """The command that trains a row, each setting on a line of its own; a second line probes what is no embedding."""
    lines = [f"layerprobe train {row.recipe} --data SET:DIR", *(f"--set {shlex.quote(text)}" for text in row.settings)]
    return " \\\n  ".join(lines)
