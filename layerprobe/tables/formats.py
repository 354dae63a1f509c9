"""Tables for a terminal, a notebook, Markdown, LaTeX and csv."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from layerprobe.system.wording import one_line, visible

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from layerprobe.tables.tables import TextTable

TERMINAL = "table"  # the format of a terminal, made by `as_rich`
_WIDTH = 200  # maximum characters of a line of text
_MARKDOWN = re.compile(r"([\\|*_`<\[~])")
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
    }
)


def as_markdown(table: TextTable) -> str:
    """A table in GitHub's Markdown, between its heading and its notes."""

    def escape(text: str) -> str:
        return _MARKDOWN.sub(r"\\\1", _one_line(text))

    header, *rows = (list(map(escape, row)) for row in (table.columns, *_cells(table)))
    rule = ["---:" if index in _right_columns(table) else "---" for index in range(len(header))]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))
    # Two spaces at the end of a line break it.
    heading, notes = ("  \n".join(map(escape, filter(None, texts))) for texts in (table.heading, table.notes))
    return "\n\n".join(block for block in (heading, lines, notes) if block)


def as_latex(table: TextTable) -> str:
    r"""A `tabular` that needs no package; the heading and the notes stand before and after it as comments."""

    def escape(text: str) -> str:
        cell = _one_line(text).translate(_LATEX)
        # `\\` takes a star or a bracket at the start of the next row for its own.
        return f"{{}}{cell}" if cell.startswith(("*", "[")) else cell

    columns = "".join("r" if index in _right_columns(table) else "l" for index in range(len(table.columns)))
    header, *rows = (" & ".join(map(escape, row)) + r" \\" for row in (table.columns, *_cells(table)))
    before, after = ([f"% {one_line(line)}" for line in lines] for lines in (table.heading, table.notes))
    body = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", header, r"\hline", *rows, r"\hline", r"\end{tabular}"]
    return "\n".join([*before, *body, *after])


def as_csv(table: TextTable) -> str:
    """The header and the cells; the ends of intervals are columns after their values."""
    text = io.StringIO()
    header: list[str] = []
    for index, name in enumerate(table.columns):
        header += [name, f"{name} low", f"{name} high"] if index in table.intervals else [name]
    rows = [header]
    for number, cells in enumerate(table.rows):
        row: list[str] = []
        for index, cell in enumerate(cells):
            row += [cell, *(table.intervals[index][number] or ("", ""))] if index in table.intervals else [cell]
        rows.append(row)
    csv.writer(text, lineterminator="\n").writerows([visible(cell.replace("\n", " ")) for cell in row] for row in rows)
    return text.getvalue().removesuffix("\n")


def _cells(table: TextTable, between: str = " ") -> list[tuple[str, ...]]:
    """The cells with the intervals of values: `89.7 [87.9, 91.2]`."""

    def cell_text(index: int, number: int, cell: str) -> str:
        cell = one_line(cell, keep="\n" if index in table.multiline else "")
        return cell if index not in table.intervals else _add_ends(cell, table.intervals[index][number], between)

    return [
        tuple(cell_text(index, number, cell) for index, cell in enumerate(cells))
        for number, cells in enumerate(table.rows)
    ]


def _align(table: TextTable) -> TextTable:
    """The table with equally wide values in each column, and equally wide ends of intervals."""
    columns = list(zip(*table.rows, strict=True))
    intervals = {}
    for index, ends in table.intervals.items():
        low, high = (max(len(pair[end]) for pair in ends if pair) if any(ends) else 0 for end in (0, 1))
        # The reason why there is no value may be long.
        width = max(len(cell) for cell in columns[index] if " " not in cell)
        columns[index] = tuple(cell.rjust(width) for cell in columns[index])
        intervals[index] = tuple(pair and (pair[0].rjust(low), pair[1].rjust(high)) for pair in ends)
    return replace(table, rows=tuple(zip(*columns, strict=True)), intervals=intervals)


def _add_ends(cell: str, ends: tuple[str, str] | None, between: str) -> str:
    return cell if ends is None else f"{cell}{between}[{ends[0]}, {ends[1]}]"


def _right_columns(table: TextTable) -> frozenset[int]:
    """The right-aligned columns: numbers, except those followed by intervals."""
    return table.numbers - table.intervals.keys()


def as_rich(table: TextTable, width: int | None = None) -> Table:
    """A table for `rich`, which fits it to the terminal: words are folded before numbers.

    Args:
        width: maximum characters of a line; in a wider table intervals are below their values. None: no maximum.
    """
    from rich.console import Console

    rich_table = _rich_table(table, " ")
    if width is None or not table.intervals:
        return rich_table
    console = Console(width=10 * _WIDTH)  # wider than any table
    return rich_table if console.measure(rich_table).maximum <= width else _rich_table(table, "\n")


def _rich_table(table: TextTable, between: str) -> Table:
    from rich import box
    from rich.table import Table

    rows = _cells(_align(table), between)
    rich_table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    if table.heading:
        rich_table.title, rich_table.title_justify, rich_table.title_style = (
            _wide_text(table.heading, bold=True),
            "left",
            "",
        )
    if table.notes:
        rich_table.caption, rich_table.caption_justify = _wide_text(table.notes), "left"
    for index, header in enumerate(table.columns):
        # Words fold, numbers never: a narrow terminal wraps their lines, and would lose digits otherwise.
        whole = index in table.numbers and not any(" " in row[index] for row in table.rows)
        rich_table.add_column(
            _text(header),
            justify="right" if index in _right_columns(table) else "left",
            overflow="fold",
            no_wrap=whole,
            min_width=max(len(line) for row in (table.columns, *rows) for line in row[index].split("\n"))
            if whole
            else None,
        )
    for index, row in enumerate(rows):
        rich_table.add_row(*map(_text, row), style="bold" if index == table.marked else None)
    return rich_table


def as_html(table: TextTable) -> str:
    """A table for a notebook, between its heading and its notes."""

    def escape(text: str) -> str:
        return html.escape(visible(text, keep="\n")).replace("\n", "<br/>")

    def row(cells: tuple[str, ...], tag: str, bold: bool) -> str:
        cells_html = []
        for index, cell in enumerate(cells):
            align = "right" if index in _right_columns(table) else "left"
            text = f"<b>{escape(cell)}</b>" if bold and cell else escape(cell)
            cells_html.append(f'<{tag} style="text-align: {align}">{text}</{tag}>')
        return f"<tr>{''.join(cells_html)}</tr>"

    rows = [row(cells, "td", index == table.marked) for index, cells in enumerate(_cells(table))]
    head = row(table.columns, "th", False)
    body = f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    heading, notes = (
        f"<p>{escape(chr(10).join(map(one_line, lines)))}</p>" * bool(lines) for lines in (table.heading, table.notes)
    )
    return heading + body + notes


def as_text(table: TextTable) -> str:
    """A table as a terminal without colours shows it, at most 200 characters wide."""
    from rich.console import Console

    lines = io.StringIO()
    Console(file=lines, width=_WIDTH, color_system=None).print(as_rich(table, _WIDTH), crop=False)
    return "\n".join(line.rstrip() for line in lines.getvalue().splitlines())


@dataclass(frozen=True)
class PrintedTables:
    """Tables in Python: text if printed, HTML in a notebook."""

    tables: tuple[TextTable, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(as_text, self.tables))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(map(as_html, self.tables))


_TEXTS: Mapping[str, Callable[[TextTable], str]] = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv}
FORMATS = (TERMINAL, *_TEXTS)


def format_table(table: TextTable, form: str) -> str:
    """A table in one of `FORMATS` except the terminal's."""
    return _TEXTS[form](table)


def _one_line(text: str) -> str:
    return one_line(text.replace("\n", " "))


def _text(cell: str) -> Text:
    """A cell without markup and control characters: names come from files and must not style or steer the terminal."""
    from rich.text import Text

    return Text(visible(cell, keep="\n"))


def _wide_text(lines: tuple[str, ...], *, bold: bool = False) -> Text:
    """A title or caption that may be wider than its table, to whose width rich would fold it."""
    lines = tuple(map(one_line, lines))
    text = _text("\n".join(lines))
    text.no_wrap, text.overflow = True, "ignore"
    if bold:
        later = takewhile(lambda line: line.startswith("  "), lines[1:])  # of a wrapped sentence
        text.stylize("bold", 0, len("\n".join([lines[0], *later])))
    return text
