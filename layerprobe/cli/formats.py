"""Tables as a terminal, Markdown, LaTeX and csv show them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from layerprobe.errors import RecipeError, UnknownNameError
from layerprobe.wording import visible

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from layerprobe.tables import TextTable

TERMINAL = "table"  # the format of a terminal, made by `as_rich`
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
    """A table of GitHub's Markdown, under its heading and above its notes."""

    def shown(text: str) -> str:
        return _MARKDOWN.sub(r"\\\1", _one_line(text))

    header, *rows = (list(map(shown, row)) for row in (table.columns, *table.rows))
    rule = ["---:" if place in table.numbers else "---" for place in range(len(header))]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))
    # Two spaces at the end of a line break it.
    heading, notes = ("  \n".join(map(shown, texts)) for texts in (table.heading, table.notes))
    return "\n\n".join(part for part in (heading, lines, notes) if part)


def as_latex(table: TextTable) -> str:
    r"""A `tabular` that needs no package; the heading and the notes stand before and after it as comments."""

    def shown(text: str) -> str:
        cell = _one_line(text).translate(_LATEX)
        # `\\` takes a star or a bracket at the start of the next row for its own.
        return f"{{}}{cell}" if cell.startswith(("*", "[")) else cell

    columns = "".join("r" if place in table.numbers else "l" for place in range(len(table.columns)))
    header, *rows = (" & ".join(map(shown, row)) + r" \\" for row in (table.columns, *table.rows))
    before, after = ([f"% {visible(line)}" for line in lines] for lines in (table.heading, table.notes))
    body = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", header, r"\hline", *rows, r"\hline", r"\end{tabular}"]
    return "\n".join([*before, *body, *after])


def as_csv(table: TextTable) -> str:
    """The header and the cells alone."""
    text = io.StringIO()
    rows = (table.columns, *table.rows)
    csv.writer(text, lineterminator="\n").writerows([_one_line(cell) for cell in row] for row in rows)
    return text.getvalue().removesuffix("\n")


def as_rich(table: TextTable) -> Table:
    """A table for `rich`, which fits it to the terminal: words are folded before numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    if table.heading:
        made.title, made.title_justify, made.title_style = _beside(table.heading, bold=True), "left", ""
    if table.notes:
        made.caption, made.caption_justify = _beside(table.notes), "left"
    for place, header in enumerate(table.columns):
        words = any(" " in row[place] for row in table.rows)
        number = place in table.numbers
        made.add_column(
            _text(header), justify="right" if number else "left", overflow="fold", no_wrap=number and not words
        )
    for place, row in enumerate(table.rows):
        made.add_row(*map(_text, row), style="bold" if place == table.marked else None)
    return made


_TEXTS: Mapping[str, Callable[[TextTable], str]] = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv}
FORMATS = (TERMINAL, *_TEXTS)


def chosen_format(name: str | None, *, as_json: bool) -> str:
    """The format that a command's `--format` names.

    Raises:
        UnknownNameError: none of `FORMATS`.
        RecipeError: a format beside `--json`.
    """
    if name is not None and name not in FORMATS:
        raise UnknownNameError("format", name, FORMATS)
    if name is not None and as_json:
        raise RecipeError("--format and --json are two forms of one result", fix="Leave one of them out")
    return name or TERMINAL


def rendered(table: TextTable, form: str) -> str:
    """A table in one of `FORMATS`, but the terminal's."""
    return _TEXTS[form](table)


def _one_line(text: str) -> str:
    return visible(text.replace("\n", " "))


def _text(cell: str) -> Text:
    """A cell without markup and control characters: names come from files and must not style or steer the terminal."""
    from rich.text import Text

    return Text(visible(cell, keep="\n"))


def _beside(lines: tuple[str, ...], *, bold: bool = False) -> Text:
    """A title or caption that may be wider than its table; rich would fold it to the table's width."""
    wide = _text("\n".join(lines))
    wide.no_wrap, wide.overflow = True, "ignore"
    if bold:
        wide.stylize("bold", 0, len(lines[0]))
    return wide
