from __future__ import annotations

from docs._ext.markdown import code, entry, escaped, parsed, table

TEXT = """Mean of *a*.

A paragraph with `x_i * 2`.

>>> 1 + 1
2

Args:
    first, second: not used.
    third: a weight: at least 0,
        and below 1.

Raises:
    ValueError: no.
"""


def test_a_docstring_is_divided_into_summary_body_and_entries() -> None:
    docstring = parsed(TEXT)
    assert docstring.summary == "Mean of *a*."
    assert docstring.body == ("A paragraph with `x_i * 2`.", ">>> 1 + 1\n2")
    assert docstring.entries["Args"] == {
        "first": "not used.",
        "second": "not used.",
        "third": "a weight: at least 0, and below 1.",
    }
    assert docstring.entries["Raises"] == {"ValueError": "no."}


def test_text_is_shown_as_it_stands_and_examples_as_code() -> None:
    assert parsed(TEXT).markdown == ("Mean of \\*a\\*.\n\nA paragraph with `x_i * 2`.\n\n```python\n>>> 1 + 1\n2\n```")


def test_a_minus_sign_at_the_start_of_a_line_begins_no_list() -> None:
    assert parsed("It is d(a, n)\n- d(a, p), printed.").markdown == "It is d(a, n)\n\\- d(a, p), printed."
    assert parsed("Kinds:\n- one\n  more\n- two").markdown == "Kinds:\n- one\n  more\n- two"


def test_code_is_not_escaped() -> None:
    assert escaped("a_b < `a_b < c` [x]") == "a\\_b \\< `a_b < c` \\[x\\]"
    assert code("a `b`") == "``a `b```"


def test_a_table_and_an_entry() -> None:
    assert table([("a", "b"), ("1", "2\n3")]) == "| a | b |\n|---|---|\n| 1 | 2 3 |"
    assert entry("margin", ("number", ""), "A distance.", target="loss.margin") == (
        "(loss.margin)=\n\n`margin` (number)\n: A distance.\n"
    )
