from __future__ import annotations

import csv
from xml.etree import ElementTree

import pytest
from rich.console import Console

from layerprobe.tables.formats import PrintedTables, as_html, as_rich, format_table
from layerprobe.tables.tables import TextTable

TABLE = TextTable(
    ("", "layer", "test\nR@1"),
    (("", "a_b", "50.0"), ("*", "c|d", "NaN (3 rows)")),
    numbers=frozenset({2}),
    heading=("one, epoch 3",),
    notes=("* best", "50 % tied"),
    marked=1,
)

SURE = TextTable(
    ("layer", "test\nR@1", "n"),
    (("a", "9.7", "1"), ("b", "100.0", "2"), ("c", "50.0", "3")),
    numbers=frozenset({1, 2}),
    notes=("n" * 30,),
    intervals={1: (("8.0", "11.2"), None, ("48.9", "51.0"))},
)


def test_markdown_has_the_heading_above_and_the_notes_below() -> None:
    assert format_table(TABLE, "markdown").splitlines() == [
        "one, epoch 3",
        "",
        "|  | layer | test R@1 |",
        "| --- | --- | ---: |",
        r"|  | a\_b | 50.0 |",
        r"| \* | c\|d | NaN (3 rows) |",
        "",
        r"\* best  ",
        "50 % tied",
    ]


def test_latex_is_a_tabular_between_comments() -> None:
    # A star after the two backslashes that end a row would be taken as theirs.
    assert format_table(TABLE, "latex").splitlines() == [
        "% one, epoch 3",
        r"\begin{tabular}{llr}",
        r"\hline",
        r" & layer & test R@1 \\",
        r"\hline",
        r" & a\_b & 50.0 \\",
        r"{}* & c\textbar{}d & NaN (3 rows) \\",
        r"\hline",
        r"\end{tabular}",
        "% * best",
        "% 50 % tied",
    ]


def test_latex_shows_its_own_characters_as_they_are() -> None:
    table = TextTable(("a",), (("\\&%$#_{}~^<>",), ("[x]",)))
    assert format_table(table, "latex").splitlines()[4:6] == [
        r"\textbackslash{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}\textless{}\textgreater{} \\",
        r"{}[x] \\",
    ]


def test_csv_has_the_cells_alone() -> None:
    table = TextTable(("layer", "test\nR@1"), (("a,b", "50.0"), ('"c"', "-")), heading=("one",), notes=("n",))
    rows = list(csv.reader(format_table(table, "csv").split("\n")))
    assert rows == [["layer", "test R@1"], ["a,b", "50.0"], ['"c"', "-"]]


@pytest.mark.parametrize("form", ["markdown", "latex", "csv"])
def test_control_characters_reach_no_format(form: str) -> None:
    table = TextTable(("a",), (("x\x1b[31m\ny",),), heading=("h\nh\x07",), notes=("n\rn",))
    assert all(character.isprintable() or character == "\n" for character in format_table(table, form))
    assert format_table(table, form).count("\n") == {"markdown": 6, "latex": 8, "csv": 1}[form]


def test_the_marked_row_alone_is_bold() -> None:
    assert [row.style for row in as_rich(TABLE).rows] == [None, "bold"]


def test_the_heading_is_bold_in_its_first_line() -> None:
    console = Console(force_terminal=True, color_system="standard", width=60)
    table = TextTable(("a",), (("b",),), heading=("first", "second"))
    with console.capture() as capture:
        console.print(as_rich(table))
    first, second, *_ = capture.get().splitlines()
    assert first.startswith("\x1b[1mfirst\x1b[0m")
    assert second.startswith("second")


def test_html_has_a_row_for_each_row_and_the_marked_one_bold() -> None:
    made = ElementTree.fromstring(f"<div>{as_html(TABLE)}</div>")
    cells = [["".join(cell.itertext()) for cell in row] for row in made.iter("tr")]
    assert cells == [["", "layer", "testR@1"], ["", "a_b", "50.0"], ["*", "c|d", "NaN (3 rows)"]]
    assert [bold.text for bold in made.iter("b")] == ["*", "c|d", "NaN (3 rows)"]
    assert [paragraph.text for paragraph in made.iter("p")] == ["one, epoch 3", "* best"]


def test_names_are_no_markup_of_html() -> None:
    table = TextTable(("<b>",), (("<script>&\x1b",),), heading=("<h>",))
    assert "&lt;script&gt;&amp;\N{REPLACEMENT CHARACTER}" in as_html(table)
    assert "<script>" not in as_html(table)
    assert "<h>" not in as_html(table)


def test_printed_tables_follow_each_other_as_text_without_colours() -> None:
    shown = PrintedTables((TABLE, TextTable(("a",), (("b",),))))
    lines = str(shown).splitlines()
    assert lines[0] == "one, epoch 3"
    assert [line.split() for line in lines[4:6]] == [["a_b", "50.0"], ["*", "c|d", "NaN", "(3", "rows)"]]
    assert lines[-4:] == ["", "a", "─", "b"]
    assert repr(shown) == str(shown)


def test_an_interval_stands_behind_its_value() -> None:
    assert format_table(SURE, "markdown").splitlines()[:5] == [
        "| layer | test R@1 | n |",
        "| --- | --- | ---: |",
        r"| a | 9.7 \[8.0, 11.2] | 1 |",
        "| b | 100.0 | 2 |",
        r"| c | 50.0 \[48.9, 51.0] | 3 |",
    ]
    assert r"a & 9.7 [8.0, 11.2] & 1 \\" in format_table(SURE, "latex").splitlines()
    assert '<td style="text-align: left">9.7 [8.0, 11.2]</td>' in as_html(SURE)


def test_a_csv_has_columns_for_the_ends_of_intervals() -> None:
    assert list(csv.reader(format_table(SURE, "csv").splitlines())) == [
        ["layer", "test R@1", "test R@1 low", "test R@1 high", "n"],
        ["a", "9.7", "8.0", "11.2", "1"],
        ["b", "100.0", "", "", "2"],
        ["c", "50.0", "48.9", "51.0", "3"],
    ]


def lines_of(table: TextTable, width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(as_rich(table, width))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_values_and_intervals_stand_below_each_other() -> None:
    assert lines_of(SURE, 80)[3:6] == [
        "a        9.7 [ 8.0, 11.2]  1",
        "b      100.0               2",
        "c       50.0 [48.9, 51.0]  3",
    ]


def test_in_a_narrow_terminal_intervals_stand_under_their_values() -> None:
    assert lines_of(SURE, 28)[3].split() == ["a", "9.7", "[", "8.0,", "11.2]", "1"]
    narrow = [line.split() for line in lines_of(SURE, 27)[3:6]]
    assert narrow == [["a", "9.7", "1"], ["[", "8.0,", "11.2]"], ["b", "100.0", "2"]]


def test_printed_notes_are_not_cut() -> None:
    assert str(PrintedTables((TextTable(("a",), (("b",),), notes=("n" * 250,)),))).count("n") == 250


@pytest.mark.parametrize("width", range(10, 30, 3))
def test_no_digit_is_lost_where_a_terminal_is_narrower_than_the_numbers(width: int) -> None:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(as_rich(SURE, width), crop=False)
    words = capture.get().split()
    assert [word for word in words if word[-1] in "],"] == ["8.0,", "11.2]", "[48.9,", "51.0]"]
    assert {"9.7", "100.0", "50.0", "R@1"} <= set(words)
