"""The sentences and tables of docs/results/findings.md, and of README, are those of the stored scores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.findings import by_epoch, by_layer, by_share, by_shift
from benchmarks.findings_sentences import (
    FINDINGS,
    FOLDER,
    NEW,
    README,
    Stored,
    equal_dimension_table,
    read_stored,
    readme_table,
    regrets,
    sentences,
)
from layerprobe.values.scores import read_scores

ROOT = Path(__file__).parents[2]
# What no csv has: the set-up, and what was measured without its scores being kept.
FACTS = (
    "EfficientNet-Lite0",
    "ResNet18",
    "(seed 9), a rate of 0.001 with ten times as much for was worse",
    "on validation classes with softmax (51 against 66 %)",
    "more classes than the 700 here",
    "of seed 0, 14 of 2,275 test images are in train",
    "(Student's t with 2 degrees of freedom)",
    "partial whitening to 64 and 128 dimensions, and full whitening to 128,",
    "R@1",
    "95 % interval",
    "Partially whitened to 128 dimensions (, fitted on the training classes)",
    "Every layer that has 128,",
    "*epoch 0* and *epoch 12* are raw",
    "compares at epoch 12 with",
    "since epoch 0, which stands in the first column",
    "at epoch 12 after training on 40 % (140), 80 % (280, as above) and 100 % (350) of the training classes",
    "the network trains on 280 classes",
    "280 queries, one a class, and a gallery of 840 images",
    "(Hendrycks & Dietterich 2019;",
    "(70 emoji, 14 characters) at epoch 12",
    "partially whitened to 128 numbers in the last column",
)
UNCOMPUTED = {"effective rank", "LOES", "LOES at equal dimensions"}  # these need the features


@pytest.fixture(scope="module")
def stored() -> Stored:
    return read_stored()


def text_of(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return text[text.index("**What it found**") : text.index("**How fast.**")] if page == README else text


def words(text: str) -> str:
    return re.sub(r"\s+(- )?", " ", text)


def test_every_statement_of_a_sentence_holds(stored: Stored) -> None:
    assert [(one.text, what) for one in sentences(stored) for what, holds in one.holds.items() if not holds] == []


def test_every_sentence_stands_in_its_page(stored: Stored) -> None:
    pages = {page: words(text_of(page)) for page in (FINDINGS, README)}
    assert [one.text for one in sentences(stored) if words(one.text) not in pages[one.page]] == []


@pytest.mark.parametrize("page", [FINDINGS, README])
def test_no_other_sentence_has_a_number(stored: Stored, page: str) -> None:
    text = text_of(page).partition("## CPU time")[0]
    text = re.sub(r"```.*?```|^\|.*?$|^#.*?$|^\*\*[^*\n]*\*\*$", "", text, flags=re.DOTALL | re.MULTILINE)
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
    (before, *_), (after, *_) = (sentences(one) for one in (stored, changed))
    assert before.text != after.text
    assert (before.holds["the block leads"], after.holds["the block leads"]) == (True, False)


def tables(page: str) -> list[tuple[str, list[list[str]]]]:
    """Each table with the last line above it."""
    found, above = [], ""
    for block in text_of(page).split("\n\n"):
        if block.startswith("|"):
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.strip().splitlines()]
            found.append((above.strip("*"), [rows[0], *rows[2:]]))
        above = block.strip().splitlines()[-1] if block.strip() else above
    return found


def chosen(rows: Sequence[Sequence[str]], like: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows and columns that a table of the page has."""
    by_name = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows}
    return [[by_name[row[0]][column] for column in like[0]] for row in like[1:]]


def test_the_tables_by_layer_and_epoch_are_those_of_the_scores(stored: Stored) -> None:
    wrong = []
    for title, rows in tables(FINDINGS):
        if title in stored.cells and rows[0][0] == "layer@avg":
            computed = by_layer if "change" in rows[0] else by_epoch
            if chosen(computed(stored.cells[title], "avg"), rows) != rows[1:]:
                wrong.append((title, rows[0]))
    assert wrong == []
    assert sum(title in stored.cells for title, _ in tables(FINDINGS)) == 12


def test_the_table_of_shares_is_that_of_the_scores(stored: Stored) -> None:
    (rows,) = (rows for _, rows in tables(FINDINGS) if "80 %" in rows[0])
    assert chosen(by_share(stored.shares, "avg"), rows) == rows[1:]


def test_the_table_of_the_shift_is_that_of_the_scores() -> None:
    (rows,) = (rows for _, rows in tables(FINDINGS) if rows[0][0] == "queries")
    computed = {(table, layer): numbers for table, layer, *numbers in by_shift(read_scores(FOLDER / "shift.csv"))}
    table = ""
    for name, layer, *numbers in rows[1:]:
        table = name or table
        assert computed[table, layer] == numbers, (table, layer)


def test_the_tables_at_equal_dimension_are_those_of_the_scores(stored: Stored) -> None:
    (rows,) = (rows for _, rows in tables(FINDINGS) if rows[0][-1].startswith("at 128"))
    ((_, in_readme),) = tables(README)
    assert (rows[1:], in_readme[1:]) == (equal_dimension_table(stored), readme_table(stored))


def test_the_table_of_regrets_is_that_of_the_scores(stored: Stored) -> None:
    (rows,) = (rows for _, rows in tables(FINDINGS) if rows[0][0] == "way")
    ways = {
        "last layer": "last layer",
        "best on validation": "best on validation",
        "among all post-processings: last layer, raw": "last of all",
        "among all post-processings: `layerprobe choose`, former rule": "choose",
    }
    assert {name for name, *_ in rows[1:]} == {*ways, *UNCOMPUTED}
    for name, *numbers in rows[1:]:
        if name in ways:
            assert numbers == [f"{regret:.1f}" for regret in regrets(stored, ways[name])], name
