"""The sentences and tables of docs/results/findings.md are those of the stored scores."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.findings_sentences import (
    FINDINGS,
    NEW,
    Stored,
    draw_layers,
    read_stored,
    regrets,
    sentences,
    short_table,
)

ROOT = Path(__file__).parents[2]
# What no csv has: the set-up, and what was measured without its scores being kept.
FACTS = (
    "EfficientNet-Lite0",
    "ResNet18",
    "Recall@1",
    "95 % intervals",
    "95 % interval",
    "R@1 of each layer of",
    "*At 128 dimensions*",
    "partially whitened to 128.",
    "more classes than the 700 here",
    "(Hendrycks & Dietterich, 2019;",
)
UNCOMPUTED = {"effective rank", "LOES", "LOES at equal dimensions"}  # these need the features


@pytest.fixture(scope="module")
def stored() -> Stored:
    return read_stored()


TEXT = (ROOT / FINDINGS).read_text(encoding="utf-8")


def words(text: str) -> str:
    return re.sub(r"\s+(- )?", " ", text)


def test_every_statement_of_a_sentence_holds(stored: Stored) -> None:
    assert [(one.text, what) for one in sentences(stored) for what, holds in one.holds.items() if not holds] == []


def test_every_sentence_stands_in_the_page(stored: Stored) -> None:
    assert [one.text for one in sentences(stored) if words(one.text) not in words(TEXT)] == []


def test_no_other_sentence_has_a_number(stored: Stored) -> None:
    text = re.sub(r"```.*?```|^\|.*?$|^#.*?$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    prose = words(text)
    for sentence in sentences(stored):
        prose = prose.replace(words(sentence.text), "")
    prose = words(re.sub(r"\]\([^)]*\)|`[^`]*`", "", prose))
    for fact in FACTS:
        prose = prose.replace(fact, "")
    assert re.findall(r"[^.]*\d[^.]*", prose) == []


def test_other_scores_give_other_text_and_statements(stored: Stored) -> None:
    cell = NEW[0]
    worse = [
        {key: value - 20 * (key[0] == 12 and key[2].layer == "blocks.6.0") for key, value in one.items()}
        for one in stored.cells[cell].each
    ]
    changed = replace(stored, cells={**stored.cells, cell: replace(stored.cells[cell], each=worse)})
    (_, before, *_), (_, after, *_) = (sentences(one) for one in (stored, changed))
    assert before.text != after.text
    assert (before.holds["the block leads"], after.holds["the block leads"]) == (True, False)


def rows_of(heading: str, page: str = FINDINGS) -> list[list[str]]:
    """The rows of a page's table whose first column has this heading, without the heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (table,) = (block for block in text.split("\n\n") if block.startswith(f"| {heading} |"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_table_of_trainings_is_that_of_the_scores(stored: Stored) -> None:
    assert rows_of("training") == short_table(stored)


def test_the_table_of_regrets_is_that_of_the_scores(stored: Stored) -> None:
    rows = rows_of("way", "docs/results/choice.md")
    ways = {"last layer", "best on validation"}
    assert {name for name, *_ in rows} == ways | UNCOMPUTED
    for name, *numbers in rows:
        if name in ways:
            assert numbers == [f"{regret:.1f}" for regret in regrets(stored, name)], name


def test_the_figure_is_drawn(stored: Stored) -> None:
    assert draw_layers(stored).startswith(b"\x89PNG")
